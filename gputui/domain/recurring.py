"""Recurring jobs: what is submitted again and again, and which run of it is due."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, tzinfo
from enum import StrEnum

from gputui.domain.audit import Actor
from gputui.domain.cron import CORRECTION, latest_until, next_after
from gputui.domain.job import Job, JobId, Submission

LATE = timedelta(minutes=1)
"""A run that could not be made within so long after its time was missed."""


class Missed(StrEnum):
    """What becomes of runs whose time came while nothing scheduled."""

    ONCE = "once"
    """One job for all of them, as soon as something schedules again."""
    SKIP = "skip"


class Overlap(StrEnum):
    """What becomes of a run while a job of an earlier one is not over."""

    SKIP = "skip"
    ALLOW = "allow"


@dataclass(frozen=True)
class Skipped:
    """A run that was not made."""

    at: datetime
    """When it was due."""
    why: str


@dataclass(frozen=True)
class RecurringJob:
    """What is submitted whenever its expression says so, until it is removed."""

    id: JobId
    """From the same sequence as those of jobs, so that no number means two things."""
    expression: str
    """The five fields of a crontab line, or `@daily` and its like."""
    zone: str
    """Name of the time zone in which these are meant."""
    submission: Submission
    added_at: datetime
    next_at: datetime
    """When it runs next."""
    counted_at: datetime
    """When that was found out."""
    name: str = ""
    added_by: str = ""
    uid: int = 0
    """Of who added it, who is also the one that submits its jobs."""
    missed: Missed = Missed.ONCE
    overlap: Overlap = Overlap.SKIP
    paused: bool = False
    last_at: datetime | None = None
    """Which run was made last: the time at which it was due."""
    last_job_id: JobId | None = None
    """The job of that run, or the first of its array."""
    skipped: Skipped | None = None
    """The last run that was not made."""

    def is_due(self, now: datetime) -> bool:
        """Whether something is to be done about it: a run is due, or the clock was corrected backwards.

        A clock that went back by less makes no run twice: the next one is awaited.
        """
        return not self.paused and (self.next_at <= now or now < self.counted_at - CORRECTION)

    def run_at(self, zone: tzinfo, now: datetime) -> datetime | None:
        """The run that is due: of several the latest, which stands for all; None when none is."""
        return latest_until(self.expression, zone, self.next_at, now) if self.next_at <= now else None

    def why_not(self, run: datetime, live: Iterable[Job], now: datetime) -> str:
        """Why that run is not made; empty when it is. `live` are its jobs that are not over."""
        if self.missed is Missed.SKIP and now - run > LATE:
            return "it was missed: nothing could make it when its time came"
        first = next(iter(live), None)
        if self.overlap is Overlap.SKIP and first is not None:
            return f"job {first.id} of an earlier run was {first.state}"
        return ""

    def awaiting(self, zone: tzinfo, now: datetime) -> RecurringJob:
        """The same, waiting for the first run after now."""
        return replace(self, next_at=next_after(self.expression, zone, now), counted_at=now)


@dataclass(frozen=True)
class Recurrence:
    """When something is to be submitted: what a face asks for."""

    expression: str
    zone: str
    name: str = ""
    missed: Missed = Missed.ONCE
    overlap: Overlap = Overlap.SKIP

    def begun(self, submission: Submission, zone: tzinfo, by: Actor, now: datetime) -> RecurringJob:
        """The recurring job, without an id yet; raises InputError for what is no expression."""
        return RecurringJob(
            id=0,
            expression=" ".join(self.expression.split()),
            zone=self.zone,
            submission=submission,
            added_at=now,
            next_at=next_after(self.expression, zone, now),
            counted_at=now,
            name=self.name,
            added_by=by.user,
            uid=by.uid,
            missed=self.missed,
            overlap=self.overlap,
        )


def live_jobs(jobs: Iterable[Job], recurring: JobId) -> list[Job]:
    """The jobs that this recurring one submitted and that are not over."""
    return [job for job in jobs if job.recurring == recurring and not job.state.is_terminal]
