"""Time limits: when a job is warned of its own, and when it is over."""

from __future__ import annotations

from datetime import datetime

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.job import Job
from gputui.domain.state import JobState
from gputui.domain.units import format_duration


def is_to_be_warned(job: Job, now: datetime) -> bool:
    """Whether the time has come to announce its limit, and nobody has."""
    at, limit_at = job.warning_at, job.limit_at
    if job.state is not JobState.RUNNING or at is None or limit_at is None:
        return False
    return at <= now < limit_at and job.attempts[-1].warned_at is None


def overdue(job: Job, now: datetime) -> Cause | None:
    """Why it is to end, if its time is over."""
    limit, limit_at = job.spec.time_limit, job.limit_at
    if limit is None or limit_at is None or now < limit_at:
        return None
    return Cause(CauseCode.TIME_LIMIT, f"over its time limit of {format_duration(limit)}")
