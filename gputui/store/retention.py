"""Which finished jobs leave the queue for history."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from gputui.domain.job import Job, JobId
from gputui.domain.settings import StoreSettings


def outdated(jobs: Iterable[Job], settings: StoreSettings, now: datetime) -> list[Job]:
    """Finished jobs that ended too long ago, or are too many; oldest first.

    Elements of an array that a waiting job depends on stay: its scheduler has to see how all of them ended.
    """
    known = list(jobs)
    awaited = {
        job_id
        for job in known
        if not job.state.is_terminal and (job.spec.after or job.spec.after_any)
        for job_id in job.spec.after + job.spec.after_any
    }
    finished = sorted(
        (job for job in known if job.state.is_terminal and not job.requeue_requested and not _is_of(job, awaited)),
        key=lambda job: (ended_at(job), job.id),
    )
    surplus = len(finished) - settings.keep_finished
    oldest_kept = now - settings.history_after
    return [job for place, job in enumerate(finished) if place < surplus or ended_at(job) < oldest_kept]


def _is_of(job: Job, arrays: set[JobId]) -> bool:
    return job.array is not None and job.array.id in arrays


def ended_at(job: Job) -> datetime:
    """When it ended; one that was cancelled before it began may not say."""
    return job.ended_at or job.submitted_at


def month_of(moment: datetime) -> str:
    """`2026-03`, for the names of files."""
    return f"{moment:%Y-%m}"
