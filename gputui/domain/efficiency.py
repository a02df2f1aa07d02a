"""Efficiency of an attempt's use of its GPUs, from the scheduler's readings while the attempt runs."""

from __future__ import annotations

from datetime import timedelta

from msgspec import Struct

from gputui.domain.telemetry import AttemptTelemetry
from gputui.domain.units import format_duration, format_size


class Efficiency(Struct, frozen=True):
    """An ended attempt's use of its GPUs. None: it could not be read."""

    seconds: float = 0.0
    """Seconds measured, as the mean over its GPUs; less than its runtime if readings or a scheduler were missing."""
    utilization: float | None = None
    """0 to 1: mean over time and GPUs."""
    idle: float | None = None
    """0 to 1: share of that time in which its GPUs were idle."""
    memory_peak: int | None = None
    """Peak memory in bytes on any one of its GPUs; on a shared GPU, that of its own processes."""
    memory_total: int | None = None
    """Bytes of each GPU that it could use: its request on a shared GPU, else the whole GPU."""

    @property
    def short(self) -> str:
        """Return `util 83%  mem 71G/80G`; empty where nothing could be read."""
        words = [f"util {_percent(self.utilization)}"] if self.utilization is not None else []
        return "  ".join(words + ([f"mem {self._memory}"] if self.memory_peak is not None else []))

    @property
    def long(self) -> str:
        """Return a sentence with all figures."""
        parts = []
        if self.utilization is not None and self.idle is not None:
            parts.append(f"mean utilization {_percent(self.utilization)}, idle {_percent(self.idle)} of the time")
        if self.memory_peak is not None:
            parts.append(f"peak memory {self._memory} per GPU")
        return "; ".join([*parts, f"measured for {format_duration(timedelta(seconds=self.seconds))}"])

    @property
    def _memory(self) -> str:
        total = f"/{format_size(self.memory_total)}" if self.memory_total else ""
        return f"{format_size(self.memory_peak or 0)}{total}"


def efficiency_of(found: AttemptTelemetry | None) -> Efficiency | None:
    """Return the GPU figures of a telemetry; None if no GPU was read."""
    if found is None or found.seconds is None:
        return None
    used, memory = found.utilization, found.gpu_memory
    peak = None if memory is None else int(memory.peak)
    mean = None if used is None else round(used.mean, 4)
    return Efficiency(found.seconds, mean, found.idle, peak, found.gpu_memory_total)


def _percent(share: float | None) -> str:
    return f"{(share or 0.0) * 100:.0f}%"
