"""GPUs that were just released: no job holds them, and no reading shows them free yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from gputui.domain.gpu import GpuState, GpuView
from gputui.domain.job import Job
from gputui.domain.policy.gpus.availability import AWAITED
from gputui.domain.policy.gpus.index import GpuIndex

SETTLING = timedelta(seconds=30)
"""Time after the end of an attempt during which its GPUs may still look busy."""
SOON = 1.0
"""Seconds until GPUs that were just released are known to be free."""


def recently_freed(jobs: Iterable[Job], gpus: GpuIndex, now: datetime) -> tuple[int, ...]:
    """Return the GPUs that will be free as soon as they are read again, by node."""
    if not any(_may_settle(row) for node in gpus.rows for row in node):
        return (0,) * len(gpus.rows)
    freed: set[str] = set()
    for job in jobs:
        ended_at = job.attempts[-1].ended_at if job.attempts else None
        if ended_at is not None and now - ended_at < SETTLING:
            freed.update(job.attempts[-1].gpus)
    return gpu_masks(gpus, lambda row: _is_settling(row, freed))


def gpu_masks(gpus: GpuIndex, wanted: Callable[[GpuView], bool]) -> tuple[int, ...]:
    """Return the GPUs whose views are wanted, by node."""
    return tuple(sum(1 << bit for bit, row in enumerate(node) if wanted(row)) for node in gpus.rows)


def _may_settle(row: GpuView) -> bool:
    return row.state in {GpuState.UNKNOWN, GpuState.FOREIGN} and row.drain is None


def _is_settling(row: GpuView, freed: set[str]) -> bool:
    """Return whether it was just released and only a fresh, idle reading is missing."""
    if not _may_settle(row):
        return False
    claimed = any(holder.kind == "container" for holder in row.holders)
    return row.why == AWAITED or (row.gpu.uuid in freed and not claimed and row.health.is_schedulable)
