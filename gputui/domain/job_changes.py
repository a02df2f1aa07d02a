"""Changes of jobs between two snapshots: submissions, starts and ends.

Every attempt stays in its job, so nothing is missed when a job starts and ends between two ticks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from gputui.domain.attempt import Attempt
from gputui.domain.job import Job


class Change(Struct, frozen=True):
    """Change of one job, or of elements of an array together."""

    job: Job
    submitted: int = 0
    """Number of jobs that are new in the queue."""
    ended: int = 0
    """Number of jobs that ended and are not retried."""
    started: tuple[Attempt, ...] = ()
    over: tuple[Attempt, ...] = ()
    """Attempts that ended."""


class Update(Struct, frozen=True):
    """Difference between two snapshots."""

    came: tuple[Job, ...] = ()
    gone: tuple[Job, ...] = ()
    """Jobs and entries as they are now, and as they were; unchanged ones are in neither."""
    changes: tuple[Change, ...] = ()


NOTHING = Update()


class JobChanges:
    """Compares each snapshot's jobs with those of the previous one. Unchanged jobs are the same objects."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        """`jobs` are those of the queue at the beginning; earlier events do not count as changes."""
        self._objects = {id(job): job for job in jobs}
        self.jobs = {job.id: job for job in self._objects.values()}
        """Jobs of the last snapshot by id; entries of arrays by that of their first element."""
        self._highest = max((job.last_id for job in self.jobs.values()), default=0)
        self._seen: object = None

    def update(self, jobs: tuple[Job, ...]) -> Update:
        """Return the difference to the last call."""
        if jobs is self._seen:
            return NOTHING
        before, now = self._objects, dict(zip(map(id, jobs), jobs, strict=True))
        came = tuple(sorted((now[key] for key in now.keys() - before.keys()), key=lambda job: job.id))
        gone = tuple(before[key] for key in before.keys() - now.keys())
        changes = tuple(change for job in came if (change := self._change(job, gone)) is not None)
        for job in gone:
            self.jobs.pop(job.id, None)
        self.jobs.update((job.id, job) for job in came)
        self._highest = max(self._highest, max((job.last_id for job in came), default=0))
        self._objects, self._seen = now, jobs
        return Update(came, gone, changes)

    def _change(self, job: Job, gone: Iterable[Job]) -> Change | None:
        """Return the change; None for a job that came back from the history."""
        old = self.jobs.get(job.id)
        is_new = old is None and job.id > self._highest
        if old is None and not is_new:
            old = next((entry for entry in gone if entry.runs and entry.has(job.id)), None)
            if old is None:
                return None
        return Change(
            job,
            submitted=job.count if is_new else 0,
            ended=job.count if _has_ended(old, job) else 0,
            started=tuple(_newly(old, job, "started_at")),
            over=tuple(_newly(old, job, "ended_at")),
        )


def _has_ended(old: Job | None, job: Job) -> bool:
    was_over = old is not None and old.state.is_terminal and old.next_attempt == job.next_attempt
    return job.state.is_terminal and not was_over


def _newly(old: Job | None, job: Job, field: str) -> Iterator[Attempt]:
    """Yield the attempts for which that time has become known."""
    known = {attempt.number for attempt in old.attempts if getattr(attempt, field)} if old else set()
    return (attempt for attempt in job.attempts if getattr(attempt, field) and attempt.number not in known)
