"""Retention rules: when finished jobs move from the queue to history."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.settings import StoreSettings


def jobs_to_archive(jobs: Iterable[Job], settings: StoreSettings, now: datetime) -> list[Job]:
    """Return the finished jobs to move to history, oldest first: too old, or beyond the number to keep.

    Elements of an array on which a waiting job depends stay, so that the scheduler sees the end of all of them.
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
    """Return when the job ended; for a job cancelled before its start, when it was submitted."""
    return job.ended_at or job.submitted_at


def month_of(moment: datetime) -> str:
    """Return the month in the notation of file names: `2026-03`."""
    return f"{moment:%Y-%m}"
