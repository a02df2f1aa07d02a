"""A stand-in NVML in the environment, and probes that are closed afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gputui.bootstrap import SystemClock
from gputui.domain.settings import GpuSettings
from gputui.gpus.supervisor import NvmlProbe
from tests.gpus.standin import StandIn
from tests.gpus.watching import FAST, Watcher

Start = Callable[..., Watcher]


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Stand-in NVML with eight healthy GPUs, for every process started in the test."""
    made = StandIn(tmp_path / "behaviour")
    made.write()
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def watch() -> Iterator[Start]:
    """Return a function that starts a probe over the stand-in NVML and watches it."""
    probes: list[NvmlProbe] = []

    def start(settings: GpuSettings = FAST, **changes: object) -> Watcher:
        probe = NvmlProbe(settings, SystemClock(), pauses=(0.01, 0.05), **changes)  # type: ignore[arg-type]
        probes.append(probe)
        watcher = Watcher(probe)
        probe.start()
        return watcher

    yield start
    for probe in probes:
        probe.close()
