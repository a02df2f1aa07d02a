"""Recurring jobs: the template, and which run of it is due."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta, tzinfo
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.audit import Actor
from gputui.domain.cron import CORRECTION, latest_until, next_after
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, Submission

LATE = timedelta(minutes=1)
"""Delay after which a run counts as missed."""


class Missed(StrEnum):
    """Handling of runs that were due while no scheduler ran."""

    ONCE = "once"
    """Submit one job for all missed runs, as soon as a scheduler runs again."""
    SKIP = "skip"


class Overlap(StrEnum):
    """Handling of a run that is due while a job of an earlier run has not ended."""

    SKIP = "skip"
    ALLOW = "allow"


class Skipped(Struct, frozen=True):
    """A run that was not made."""

    at: datetime
    """Time at which the run was due."""
    why: str


class RecurringJob(Struct, frozen=True):
    """Submission that is repeated whenever its cron expression is due, until it is removed."""

    id: JobId
    """Id from the same sequence as job ids, so that ids are unique across both."""
    expression: str
    """The five fields of a crontab line, or a nickname such as `@daily`."""
    zone: str
    """Name of the time zone of these fields."""
    submission: Submission
    added_at: datetime
    next_at: datetime
    """Time of the next run."""
    counted_at: datetime
    """Time at which that time was computed."""
    name: str = ""
    added_by: str = ""
    uid: int = 0
    """Uid of the user who added it and who submits its jobs."""
    missed: Missed = Missed.ONCE
    overlap: Overlap = Overlap.SKIP
    paused: bool = False
    last_at: datetime | None = None
    """Due time of the last run that was made."""
    last_job_id: JobId | None = None
    """The job of that run, or the first of its array."""
    skipped: Skipped | None = None
    """The last run that was not made."""

    def is_due(self, now: datetime) -> bool:
        """Return whether a run is due, or the clock was corrected backwards.

        After a smaller step backwards no run is repeated: the next one stays as it is.
        """
        return not self.paused and (self.next_at <= now or now < self.counted_at - CORRECTION)

    def run_at(self, zone: tzinfo, now: datetime) -> datetime | None:
        """Return the run that is due; of several the latest, which represents all; None when none is due."""
        return latest_until(self.expression, zone, self.next_at, now) if self.next_at <= now else None

    def why_not(self, run: datetime, live: Iterable[Job], now: datetime) -> str:
        """Return why that run is not made; empty when it is. `live` are its jobs that have not ended."""
        if self.missed is Missed.SKIP and now - run > LATE:
            return "it was missed: no scheduler could make it at its time"
        first = next(iter(live), None)
        if self.overlap is Overlap.SKIP and first is not None:
            return f"job {first.id} of an earlier run was {first.state}"
        return ""

    def awaiting(self, zone: tzinfo, now: datetime) -> RecurringJob:
        """Return it waiting for the first run after now."""
        return replace(self, next_at=next_after(self.expression, zone, now), counted_at=now)


class Recurrence(Struct, frozen=True):
    """Request for a recurring submission: the expression, and how it repeats."""

    expression: str
    zone: str
    name: str = ""
    missed: Missed = Missed.ONCE
    overlap: Overlap = Overlap.SKIP

    def begun(self, submission: Submission, zone: tzinfo, by: Actor, now: datetime) -> RecurringJob:
        """Return the recurring job, still without an id; raises InputError for an invalid expression."""
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
    """Return the jobs that this recurring job submitted and that have not ended."""
    return [job for job in jobs if job.recurring == recurring and not job.state.is_terminal]
