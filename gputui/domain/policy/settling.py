"""GPUs that were given back a moment ago: nobody has them, and no reading says yet that they are free."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from gputui.domain.gpu import GpuState, GpuView
from gputui.domain.job import Job
from gputui.domain.policy.occupancy import AWAITED
from gputui.domain.policy.place import Places

SETTLING = timedelta(seconds=30)
"""So long after an attempt ended its GPUs may look busy, though nobody has them."""
SOON = 1.0
"""Seconds until GPUs that were given back a moment ago are known to be free."""


def settling(jobs: Iterable[Job], places: Places, now: datetime) -> tuple[int, ...]:
    """Of each node, the GPUs that will be free as soon as they are read again."""
    if not any(_may_settle(row) for node in places.rows for row in node):
        return (0,) * len(places.rows)
    freed: set[str] = set()
    for job in jobs:
        ended_at = job.attempts[-1].ended_at if job.attempts else None
        if ended_at is not None and now - ended_at < SETTLING:
            freed.update(job.attempts[-1].gpus)
    return masks(places, lambda row: _is_settling(row, freed))


def masks(places: Places, wanted: Callable[[GpuView], bool]) -> tuple[int, ...]:
    """Of each node, the GPUs whose rows are as wanted."""
    return tuple(sum(1 << bit for bit, row in enumerate(node) if wanted(row)) for node in places.rows)


def _may_settle(row: GpuView) -> bool:
    return row.state in {GpuState.UNKNOWN, GpuState.FOREIGN} and row.drain is None


def _is_settling(row: GpuView, freed: set[str]) -> bool:
    """Whether it was given back a moment ago, and only its reading is not there yet or not at rest."""
    if not _may_settle(row):
        return False
    claimed = any(holder.kind == "container" for holder in row.holders)
    return row.why == AWAITED or (row.gpu.uuid in freed and not claimed and row.health.is_schedulable)
