"""The order in which waiting jobs are considered."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TypeAlias

from gputui.domain.job import Job

Rank: TypeAlias = tuple[float, int, datetime, int]

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


def rank(job: Job) -> Rank:
    """Sorts first what starts first: put on top by hand (the latest wish first), priority, submit time, id."""
    topped = (job.topped_at - _LONG_AGO).total_seconds() if job.topped_at else 0.0
    return (-topped, -job.priority, job.submitted_at, job.id)
