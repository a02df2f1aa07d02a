"""What every test may use: which engines of the outside world are here, and what a lack of one means."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "any load", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # over whichever profile is in force: how long an example takes tells of the machine, not of the code
settings.load_profile("any load")

REQUIRED = frozenset(filter(None, os.environ.get("GPUTUI_TEST_REQUIRE", "").split(",")))
"""Engines without which a test fails instead of being skipped: any of docker, ssh, nvml, tmux, chromium."""


def lacks_docker() -> str | None:
    """Why the tests cannot start a Docker engine of their own; None when they can."""
    if os.geteuid() != 0:
        return "starting a private dockerd needs root"
    missing = [name for name in ("docker", "dockerd", "containerd", "iptables", "unshare") if not shutil.which(name)]
    if not shutil.which("busybox"):
        missing.append("busybox (busybox-static)")
    return f"not installed: {', '.join(missing)}" if missing else None


def lacks_ssh() -> str | None:
    """Why the tests cannot start an sshd of their own; None when they can."""
    if os.geteuid() != 0:
        return "starting a private sshd needs root"
    return None if shutil.which("ssh") and shutil.which("/usr/sbin/sshd") else "not installed: openssh-server"


def lacks_nvml() -> str | None:
    return None if shutil.which("gcc") or shutil.which("cc") else "not installed: gcc, to compile the stand-in NVML"


def lacks_tmux() -> str | None:
    return None if shutil.which("tmux") else "not installed: tmux"


def lacks_chromium() -> str | None:
    from tests.e2e.browser import find

    return None if find() else "not installed: chromium"


LONG_LANE = os.environ.get("GPUTUI_TEST_LANE") == "long"
"""Run the long lane: only the tests marked `long` or `torture`. Without it, tests marked `long` are left out."""

SLOW_FIRST = ("torture", "e2e", "runtime")

LACKS: dict[str, Callable[[], str | None]] = {
    "docker": lacks_docker,
    "ssh": lacks_ssh,
    "nvml": lacks_nvml,
    "tmux": lacks_tmux,
    "chromium": lacks_chromium,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--torture", type=float, default=1.0, help="how much torture: 1 is CI's, 20 is at length")


@pytest.fixture(scope="session")
def torture(request: pytest.FixtureRequest) -> float:
    """By how much to scale the number of kills."""
    return float(request.config.getoption("--torture"))


def pytest_configure(config: pytest.Config) -> None:
    """Give out tests a few at a time: by default a worker is handed a twelfth of them at once, slow ones included."""
    if getattr(config.option, "maxschedchunk", 0) is None:
        config.option.maxschedchunk = 2


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the lane: deselected tests are not reported as skipped."""
    left_out = [item for item in items if not _is_in_lane(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    items[:] = sorted(filter(_is_in_lane, items), key=_turn)


def _turn(item: pytest.Item) -> int:
    """Sort tests that wait long to the front, so that no worker begins one when the others are done."""
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    return SLOW_FIRST.index(folder) if folder in SLOW_FIRST else len(SLOW_FIRST)


def _is_in_lane(item: pytest.Item) -> bool:
    is_long = item.get_closest_marker("long") is not None
    return is_long or item.get_closest_marker("torture") is not None if LONG_LANE else not is_long


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what lacks its engine, and say why; under GPUTUI_TEST_REQUIRE fail instead."""
    for name, lacks in LACKS.items():
        if item.get_closest_marker(name) and (why := lacks()):
            if name in REQUIRED:
                pytest.fail(f"{name} is required here, but {why}", pytrace=False)
            pytest.skip(f"{name}: {why}")


@pytest.fixture(autouse=True)
def _garbage_as_python_has_it() -> Iterator[None]:
    """A scheduler leaves old objects alone for minutes: of a thousand tests in one process they would be too many."""
    before = gc.get_threshold()
    yield
    if gc.get_threshold() != before:
        gc.set_threshold(*before)
        gc.unfreeze()
