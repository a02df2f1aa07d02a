"""Values of simulated processes that the kernel would know: processor use, memory and age. For the demo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from gputui.domain.container import ProcessRow
from gputui.domain.errors import GputuiError
from gputui.domain.gpu import GpuProcess, GpuSample, ProbeReading
from gputui.domain.gpu_processes import ProcessTarget, SignalOutcome
from gputui.gpus.simulated import chance, started_at, wave
from gputui.ports import Clock

_GIB = 1024**3
_EVERY = 2
"""Seconds for which the values stay."""
_LOADED = timedelta(seconds=20)
"""Age at which a process has loaded its data, and its memory no longer grows."""


class SimulatedProcesses:
    """HostProcesses of simulated GPUs. They get no signals and have no environment."""

    def __init__(self, latest: Callable[[], ProbeReading], clock: Clock) -> None:
        self._latest = latest
        self._clock = clock

    def rows(self, pids: tuple[int, ...], *, with_parents: bool = False) -> Mapping[int, ProcessRow]:
        """Return the processes that are on GPUs, by pid; none has a parent."""
        del with_parents
        samples, now = self._latest().samples.values(), self._clock.now()
        listed = {each.pid: (each, sample) for sample in samples for each in sample.processes or ()}
        return {pid: _row(*listed[pid], now) for pid in pids if pid in listed}

    def environment(self, target: ProcessTarget) -> tuple[str, ...]:
        """Raise GputuiError."""
        raise GputuiError(f"pid {target.pid} is simulated: it has no environment")

    def signal(self, target: ProcessTarget, number: int, patience: float, before: Callable[[], None]) -> SignalOutcome:
        """Raise GputuiError."""
        del number, patience, before
        raise GputuiError(f"pid {target.pid} is simulated: it gets no signals")


def _row(process: GpuProcess, sample: GpuSample, now: datetime) -> ProcessRow:
    """Return the values of a process: a few cores that feed its GPU, and memory that grows while it loads its data."""
    began = started_at(process)
    age = None if began is None else max(timedelta(0), now - began)
    loaded = 1.0 if age is None else min(1.0, 0.1 + age / _LOADED)
    at = now.timestamp() // _EVERY * _EVERY
    cores = 1.1 + 2.5 * chance(process.pid, "cores") if sample.utilization else 0.0  # none while its job is suspended
    return ProcessRow(
        process.pid,
        user=process.user or "",
        command=process.command or "",
        cpu=round(cores * (1 + 0.25 * wave(f"{process.pid} cores", at, 8)), 2),
        memory=round((3 + 15 * chance(process.pid, "memory")) * loaded * _GIB),
        age=age,
        ticks=process.ticks,
    )
