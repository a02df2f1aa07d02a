"""Utilisation of running jobs, for their rows in the queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gputui.domain.gpu import GpuView
from gputui.domain.job import JobId

_STEP = 5
"""Points by which utilisation has to change before a row shows it: figures that jump each second tell nothing."""


class JobLoads:
    """Mean utilisation of each job's GPUs in percent, which stays the same until it changes by several points."""

    def __init__(self) -> None:
        self._shown: dict[JobId, int] = {}

    def update(self, views: Iterable[GpuView]) -> Mapping[JobId, int]:
        """Return the utilisation to show; nothing for jobs that share a GPU or have one that was not read."""
        shown = {}
        for job_id, values in _read(views).items():
            if any(value is None for value in values):
                continue
            now = round(100 * sum(value or 0 for value in values) / len(values))
            before = self._shown.get(job_id)
            shown[job_id] = now if before is None or abs(now - before) >= _STEP else before
        self._shown = shown
        return shown


def _read(views: Iterable[GpuView]) -> dict[JobId, list[float | None]]:
    """Return the utilisation of each job's GPUs; None for a GPU that was not read lately or has several jobs."""
    found: dict[JobId, list[float | None]] = {}
    for view in views:
        is_known = view.sample is not None and not view.stale and len(view.job_ids) < 2
        for job_id in view.job_ids or ((view.job_id,) if view.job_id is not None else ()):
            found.setdefault(job_id, []).append(view.sample.utilization if is_known and view.sample else None)
    return found
