"""Use of an attempt's GPUs, measured from the readings that the scheduler has while the attempt runs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, field

from gputui.domain.units import format_duration, format_size

if TYPE_CHECKING:
    from gputui.domain.gpu import GpuSample  # jobs are read where no GPU is known

MAX_GAP = timedelta(seconds=30)
"""Longest time for which one reading counts: beyond it nothing is known."""
_IDLE = 0.01
"""Utilization up to which a GPU is idle."""


class Efficiency(Struct, frozen=True):
    """Use of its GPUs by an attempt that has ended. None: it could not be read."""

    seconds: float = 0.0
    """Seconds measured, the mean over its GPUs: less than it ran where readings or a scheduler were missing."""
    utilization: float | None = None
    """0 to 1: mean over time and GPUs."""
    idle: float | None = None
    """0 to 1: share of that time in which its GPUs did nothing."""
    memory_peak: int | None = None
    """Peak memory in bytes on any one of its GPUs; on a shared GPU, that of its own processes."""
    memory_total: int | None = None
    """Bytes of each GPU that it could use: what it asked for of a shared GPU, else all of it."""

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


class GpuUseTally(Struct):
    """Sums over the readings of an attempt so far."""

    gpus: int
    read: float = 0.0
    """GPU-seconds for which a reading was there."""
    measured: float = 0.0
    """GPU-seconds for which the utilization was known."""
    used: float = 0.0
    idle: float = 0.0
    memory_peak: int | None = None
    memory_total: int | None = None
    last: dict[str, Annotated[datetime, Meta(tz=True)]] = field(default_factory=dict)
    """Time of the last reading that counted, by UUID."""

    def add(self, sample: GpuSample, began: datetime, own: Iterable[str] | None = None) -> None:
        """Count a reading, if it is new; `own` are the names of the attempt's processes on a GPU that it shares."""
        last = self.last.get(sample.uuid, began)
        if sample.sampled_at <= last:
            if last - sample.sampled_at > MAX_GAP:  # the clock was set back
                self.last[sample.uuid] = sample.sampled_at
            return
        self.last[sample.uuid] = sample.sampled_at
        seconds = min(MAX_GAP, sample.sampled_at - last).total_seconds()
        self.read += seconds
        if sample.utilization is not None:
            self.measured += seconds
            self.used += seconds * sample.utilization
            self.idle += seconds * (sample.utilization <= _IDLE)
        memory = sample.memory_used if own is None else _memory_of(sample, frozenset(own))
        if memory is not None:
            self.memory_peak = max(memory, self.memory_peak or 0)
        if sample.memory_total is not None:
            self.memory_total = max(sample.memory_total, self.memory_total or 0)

    def result(self, asked: int = 0) -> Efficiency | None:
        """Return the figures; None where nothing was read. `asked` are the bytes promised of a shared GPU."""
        if not self.read or not self.gpus:
            return None
        used, idle = (
            (round(value / self.measured, 4) for value in (self.used, self.idle)) if self.measured else (None,) * 2
        )
        total = asked or self.memory_total
        return Efficiency(round(self.read / self.gpus, 1), used, idle, self.memory_peak, total)


def _memory_of(sample: GpuSample, own: frozenset[str]) -> int | None:
    """Return the bytes used by processes of these containers or attempts; None where their list is not known."""
    if sample.processes is None:
        return None
    mine = (each for each in sample.processes if each.container_id in own or each.attempt in own)
    return sum(each.memory or 0 for each in mine)


def _percent(share: float | None) -> str:
    return f"{(share or 0.0) * 100:.0f}%"
