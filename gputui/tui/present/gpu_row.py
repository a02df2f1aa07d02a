"""What the cells of a GPU are made from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gputui.domain.gpu import GpuSample, GpuView, HealthCode
from gputui.domain.gpu_past import NO_PAST, Past
from gputui.domain.job import Job


@dataclass(frozen=True)
class GpuRow:
    """What the cells of one GPU are made from."""

    view: GpuView
    job: Job | None = None
    """The first that holds it."""
    past: Past = NO_PAST
    late: timedelta = timedelta(0)
    """How long ago the picture was taken: added to the reading's age."""
    beside: tuple[Job, ...] = ()
    """The others, that share it."""
    kept: str = ""
    """For whom it is kept, in words."""
    label: str = ""
    """How it is called where there are several nodes; empty: by its index."""
    now: datetime | None = None

    @property
    def is_old(self) -> bool:
        """Whether what was read last no longer holds: nothing is read of it now."""
        return self.view.sample is None or self.view.stale or self.view.health.code is HealthCode.LOST


@dataclass(frozen=True)
class GpuPicture:
    """All rows of the grid, by UUID, in the driver's order."""

    rows: Mapping[str, GpuRow] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()
    """Columns that are not wanted."""

    def unread(self) -> frozenset[str]:
        """Columns of which no GPU has anything to show; none as long as nothing is read at all."""
        samples = [row.view.sample for row in self.rows.values() if row.view.sample is not None]
        if not samples:
            return self.left_out | {"fan"}
        gone = {name for name, fields in _FIELDS.items() if not any(_has(sample, fields) for sample in samples)}
        known_limit = any(row.view.gpu.power_limit is not None for row in self.rows.values())
        return self.left_out | (gone - {"power_limit"} if known_limit else gone)


def _has(sample: GpuSample, fields: Iterable[str]) -> bool:
    return any(getattr(sample, name) is not None for name in fields)


_FIELDS = {
    "history": ("utilization",),
    "load": ("utilization",),
    "percent": ("utilization",),
    "memory_bar": ("memory_used",),
    "memory": ("memory_used", "memory_total"),
    "temperature": ("temperature",),
    "power": ("power",),
    "power_limit": ("power_limit",),
    "clock": ("sm_clock",),
    "fan": ("fan",),
}
"""What each column is made from."""
