"""The grid's rows, made from a picture."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from gputui.domain.gpu import GpuView
from gputui.domain.gpu_history import History
from gputui.domain.job import Job, JobId
from gputui.domain.snapshot import Snapshot
from gputui.domain.window import WindowView
from gputui.tui.present.gpu_row import GpuPicture, GpuRow
from gputui.tui.present.gpu_words import kept_words
from gputui.tui.present.labels import Labels


def gpu_picture(snapshot: Snapshot, jobs: Mapping[JobId, Job], history: History, now: datetime) -> GpuPicture:
    """Every GPU with who holds it, what it is kept for, and its past."""
    labels = Labels.of(snapshot).by_uuid if len(snapshot.nodes) > 1 else {}
    late = max(now - snapshot.taken_at, now - now)
    kept = _kept(snapshot)

    def row(view: GpuView) -> GpuRow:
        uuid = view.gpu.uuid
        return GpuRow(
            view,
            holder(view, jobs),
            history.of(uuid),
            late,
            tuple(jobs[job_id] for job_id in view.job_ids[1:] if job_id in jobs),
            kept_words(kept.get(uuid, ()), now),
            labels.get(uuid, ""),
            now,
        )

    return GpuPicture({view.gpu.uuid: row(view) for view in snapshot.gpus})


def holder(view: GpuView, jobs: Mapping[JobId, Job]) -> Job | None:
    """The first job on it."""
    return None if view.job_id is None else jobs.get(view.job_id)


def _kept(snapshot: Snapshot) -> dict[str, list[WindowView]]:
    """The reservations of each GPU, by their start."""
    found: dict[str, list[WindowView]] = {}
    for window in snapshot.windows:
        for uuid in window.gpus:
            found.setdefault(uuid, []).append(window)
    return found
