"""Waits of jobs: for other jobs, and the time for which a job waited while it could run.

An array's id stands for all its elements.

The eligible wait does not count time while the job is held, before `--begin`, during a back-off, while it waits for
another job, or while it runs. A wait counts for the job's priority at that time and for lower ones: so nothing is
gained by waiting at priority 0 and being raised at the end, and nothing is lost when a priority is raised and lowered
again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct, field

from gputui.domain.arrays import Entries
from gputui.domain.errors import CauseCode
from gputui.domain.job import Job, Waited
from gputui.domain.job_spec import JobId, JobSpec
from gputui.domain.snapshot import Unreadable
from gputui.domain.state import JobState
from gputui.domain.text import plural

_NEVER = "can never start after "
_WAITED = "waited for "


class ArrayTally(Struct):
    """State of an array as far as its elements are known; those in history have completed."""

    known: int = 0
    left: int = 0
    unfinished: list[Job] = field(default_factory=list)
    """Elements that have not ended, and their entries."""
    failed: Job | None = None
    ended_at: datetime | None = None
    """End of the element that ended last."""


class Dependencies(Struct, frozen=True):
    """Jobs that waiting ones depend on."""

    jobs: Mapping[JobId, Job] = field(default_factory=dict)
    arrays: Mapping[JobId, ArrayTally] = field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()
    """Ids of unreadable jobs: it is unknown whether they have ended."""

    @classmethod
    def of(cls, jobs: Iterable[Job], unreadable: Iterable[Unreadable] = ()) -> Dependencies:
        """Return the dependencies among these jobs; arrays are examined only if a job depends on one."""
        left_out = frozenset(entry.key for entry in unreadable)
        known = tuple(jobs)
        specs = [job.spec for job in known if (job.spec.after or job.spec.after_any) and job.state is JobState.PENDING]
        wanted = {job_id for spec in specs for job_id in spec.after + spec.after_any}
        if not wanted:
            return cls()
        entries = Entries({job.id: job for job in known})
        found = {job_id: job for job_id in wanted if (job := entries.get(job_id))}
        arrays = {job_id: ArrayTally() for job_id, job in found.items() if job.array and job.array.id == job_id}
        if arrays:
            for job in known:
                if job.array and (tally := arrays.get(job.array.id)):
                    _count(tally, job)
        return cls(found, {job_id: tally for job_id, tally in arrays.items() if tally.known > 1}, left_out)

    def unmet(self, job: Job) -> str | None:
        """Describe what it still waits for; None if nothing."""
        for job_id in job.spec.after:
            if words := self._unfinished(job_id, successful=True):
                return f"starts after {words}"
        for job_id in job.spec.after_any:
            if words := self._unfinished(job_id, successful=False):
                return f"starts after {words}"
        return None

    def ended_at(self, job: Job, now: datetime) -> datetime | None:
        """Return the end of the last job that it waits for, `now` if one has not ended; None if it waits for none."""
        if not job.spec.after and not job.spec.after_any:
            return None
        if self.unmet(job):
            return now
        ends = []
        for job_id in (*job.spec.after, *job.spec.after_any):
            found = self.arrays.get(job_id) or self.jobs.get(job_id)
            if found is not None and found.ended_at is not None:
                ends.append(found.ended_at)
        return min(now, max(ends, default=job.submitted_at))

    def awaited(self, job: Job) -> set[JobId]:
        """Return the jobs whose end it waits for; an array's id stands for its elements that have not ended."""
        ids: set[JobId] = set()
        for job_id in (*job.spec.after, *job.spec.after_any):
            other = self.jobs.get(job_id)
            if tally := self.arrays.get(job_id):
                ids.update((job_id,) if tally.left else ())
            elif other is not None and not other.state.is_terminal:
                ids.add(job_id)
        return ids

    def never_met(self, job: Job) -> str | None:
        """Return why its dependencies can never be met; None while they can."""
        for job_id in job.spec.after:
            tally, failed = self.arrays.get(job_id), self.jobs.get(job_id)
            if tally:
                failed = tally.failed
            if failed is not None and has_failed(failed):
                return f"{_NEVER}job {failed.shown_id}, which {_how_ended(failed)}"
        return None

    def _unfinished(self, job_id: JobId, *, successful: bool) -> str | None:
        how = "has completed" if successful else "has ended"
        if tally := self.arrays.get(job_id):
            if tally.left:
                return f"array {job_id} {how}: {plural(tally.left, 'element')} left"
            failed = tally.failed if successful else None
            return f"array {job_id} {how}: job {failed.shown_id} is {failed.state}" if failed else None
        if str(job_id) in self.unreadable:
            return f"job {job_id} {how}: it cannot be read"
        other = self.jobs.get(job_id)
        if other is None or (other.state is JobState.COMPLETED if successful else other.state.is_terminal):
            return None
        return f"job {other.shown_id} {how}: it is {other.state}"


def _count(tally: ArrayTally, job: Job) -> None:
    tally.known += job.count
    if not job.state.is_terminal:
        tally.left += job.count
        tally.unfinished.append(job)
        return
    if job.ended_at is not None:
        tally.ended_at = max(job.ended_at, tally.ended_at or job.ended_at)
    if tally.failed is None and has_failed(job):
        tally.failed = job


def _how_ended(job: Job) -> str:
    """Return how it ended; of one that could never start itself, the job at the head of that chain."""
    if job.cause is not None and job.cause.code is CauseCode.DEPENDENCY_NEVER_MET:
        first = job.cause.text.rpartition(_NEVER)[2].rpartition(_WAITED)[2]
        return f"{_WAITED}{first}"
    return f"ended {job.state}{f': {job.end_words}' if job.cause else ''}"


def cancelled_with(requeued: Iterable[Job], jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs that are cancelled because one of the first had failed, and those that waited for them."""
    names = {name for job in requeued for name in (*job.ids, *((job.array.id,) if job.array else ()))}
    over = [job for job in jobs if job.has_ended]
    lost = [job for job in over if job.cause is not None and job.cause.code is CauseCode.DEPENDENCY_NEVER_MET]
    found: list[Job] = []
    while more := [job for job in lost if job not in found and not names.isdisjoint(job.spec.after)]:
        found += more
        names.update(job_id for job in more for job_id in job.ids)
    return sorted(found, key=lambda job: job.id)


def has_failed(job: Job) -> bool:
    return job.state.is_terminal and job.state is not JobState.COMPLETED and not job.requeue_requested


def eligible_since(job: Job, dependencies_ended_at: datetime | None, now: datetime) -> float:
    """Return the start, in seconds since the epoch, of an uninterrupted wait of the same length.

    `dependencies_ended_at` is the result of `Dependencies.ended_at`.
    """
    spec = job.spec
    if not (job.waited or job.held or job.not_before or spec.begin_at or dependencies_ended_at):
        return min(now, job.waiting_since or job.submitted_at).timestamp()
    return (now - eligible_wait(job, dependencies_ended_at, now)).timestamp()


def eligible_wait(job: Job, dependencies_ended_at: datetime | None, now: datetime) -> timedelta:
    return counted_wait(job) + _under_way(job, dependencies_ended_at, now)


def counted_wait(job: Job) -> timedelta:
    return sum((each.time for each in job.waited if each.priority >= job.priority), timedelta())


def end_wait(job: Job, dependencies_ended_at: datetime | None, now: datetime) -> Job:
    """Return the job with its current wait ended; a new one begins now."""
    waited = {each.priority: each.time for each in job.waited}
    waited[job.priority] = waited.get(job.priority, timedelta()) + _under_way(job, dependencies_ended_at, now)
    kept = tuple(Waited(priority, time) for priority, time in sorted(waited.items()) if time)
    return job.evolve(waited=kept, waiting_since=now)


def keep_wait(before: Job, after: Job, dependencies_ended_at: datetime | None, now: datetime) -> Job:
    """Return the changed job with the wait that it keeps; none if it asks for more than before."""
    if before.state is not JobState.PENDING or after.state is not JobState.PENDING:
        return after
    if asks_for_more(before.spec, after.spec):
        return after.evolve(waited=(), waiting_since=now)
    counts_by, then = (  # what decides whether its time counts, and for which priority
        (job.held, job.priority, job.not_before, job.spec.begin_at, job.spec.after, job.spec.after_any)
        for job in (before, after)
    )
    if counts_by == then:
        return after
    kept = end_wait(before, dependencies_ended_at, now)
    return after.evolve(waited=kept.waited, waiting_since=now)


def asks_for_more(before: JobSpec, after: JobSpec) -> bool:
    """Return whether a job asks for more GPUs, more of a GPU, more time or less `nice` than before."""
    demands: list[tuple[float, ...]] = []
    for spec in (before, after):
        gpus, everything = spec.gpus, math.inf if spec.gpus.everything else 0
        time = spec.time_limit.total_seconds() if spec.time_limit else math.inf
        memory = (gpus.memory or 0, gpus.free_memory or 0, not gpus.share)
        demands.append((max(gpus.minimum, everything), max(gpus.maximum, everything), *memory, time, -spec.nice))
    return any(now_asked > asked for asked, now_asked in zip(*demands, strict=True))


def _under_way(job: Job, dependencies_ended_at: datetime | None, now: datetime) -> timedelta:
    """Return the length of the current wait; zero before it begins."""
    if job.held:
        return timedelta()
    began = job.waiting_since or job.submitted_at
    for gate in (job.not_before, job.spec.begin_at, dependencies_ended_at):
        if gate is not None and gate > began:
            began = gate
    return max(timedelta(), now - began)
