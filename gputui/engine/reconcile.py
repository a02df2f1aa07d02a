"""Store and runtime brought together: what has to be done so that they agree. The containers are the truth.

A scheduler may have died between any two steps of the start protocol: (a) the store says CONFIGURING, with attempt
and GPUs; (b) the container is created under a name made of store, job and attempt; (c) it is started; (d) the store
says RUNNING. Every mixture that this leaves behind has its line here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gputui.domain.container import ContainerRecord, ContainerState
from gputui.domain.job import Attempt, Job, JobId
from gputui.domain.state import JobState

Key: TypeAlias = tuple[JobId, int]
"""A job and the number of an attempt."""


@dataclass(frozen=True)
class Adopt:
    """Decision to record that a container runs, or ran, for a job."""

    job_id: JobId
    record: ContainerRecord


@dataclass(frozen=True)
class StartAgain:
    """Its container exists and was never started."""

    job_id: JobId
    number: int


@dataclass(frozen=True)
class GiveBack:
    """No container came of it: back to PENDING, the number free again, no retry charged."""

    job_id: JobId
    number: int
    """0: it was fetching its image, without an attempt."""


@dataclass(frozen=True)
class Finish:
    """Its container has ended."""

    job_id: JobId
    record: ContainerRecord


@dataclass(frozen=True)
class Vanished:
    """Its container is gone, without a trace of how it ended."""

    job_id: JobId
    number: int


@dataclass(frozen=True)
class Clean:
    """A container of an attempt that is over: its output is to be saved, then it is to go."""

    record: ContainerRecord


@dataclass(frozen=True)
class KillStray:
    """It runs although the store has its attempt ended, or other jobs on its GPUs."""

    record: ContainerRecord


Change: TypeAlias = Adopt | GiveBack | Finish | Vanished
"""What is written into the store."""
Decision: TypeAlias = Change | StartAgain | Clean | KillStray


@dataclass(frozen=True)
class Seen:
    """One listing of a runtime, and what this scheduler is doing itself meanwhile."""

    records: tuple[ContainerRecord, ...]
    begun: int
    """Place of the listing in the order of events."""
    is_busy: Callable[[Key], bool]
    """Whether a worker of ours is on that attempt."""
    settled: Callable[[Key], int]
    """Place in the order of events of our last work on that attempt; 0 when there was none."""

    def covers(self, key: Key) -> bool:
        """Whether absence from the listing means something: it began after our last work on that attempt."""
        return self.begun > self.settled(key)


def decide(jobs: Mapping[JobId, Job], mine: Iterable[Job], seen: Seen) -> list[Decision]:
    """What has to be done about the active jobs of one runtime (`mine`) and all its containers."""
    by_key = {(record.job_id, record.attempt): record for record in seen.records}
    decisions = [decision for job in mine for decision in _of_job(job, by_key, seen)]
    for key, record in by_key.items():
        job = jobs.get(record.job_id)
        if job is not None and not seen.is_busy(key) and not _is_current(job, record):
            decisions += _of_leftover(job, record, jobs, seen)
    return decisions


def strays(jobs: Mapping[JobId, Job], records: Iterable[ContainerRecord]) -> tuple[ContainerRecord, ...]:
    """Running containers with this store's label that no attempt under way accounts for: their GPUs are taken.

    One whose job or attempt is unknown (a store put back from a backup, or repaired) is left alone; one whose attempt
    is over is being killed.
    """
    return tuple(
        r for r in records if r.state is ContainerState.RUNNING and not _is_accounted_for(jobs.get(r.job_id), r)
    )


def runs_already(job: Job, records: Iterable[ContainerRecord]) -> bool:
    """Return whether a container runs for an attempt that the store knows nothing of."""
    return any(
        record.job_id == job.id and record.attempt >= job.next_attempt and record.state is ContainerState.RUNNING
        for record in records
    )


def _is_accounted_for(job: Job | None, record: ContainerRecord) -> bool:
    return job is not None and _is_current(job, record)


def _is_current(job: Job, record: ContainerRecord) -> bool:
    attempt = job.attempt
    return job.state.is_active and attempt is not None and not attempt.is_over and attempt.number == record.attempt


def _of_job(job: Job, by_key: Mapping[Key, ContainerRecord], seen: Seen) -> Iterator[Decision]:
    attempt = job.attempt
    if attempt is None or attempt.is_over:
        if job.state is JobState.CONFIGURING and not seen.is_busy((job.id, 0)):
            yield GiveBack(job.id, 0)
        return
    key = (job.id, attempt.number)
    if seen.is_busy(key):
        return
    record = by_key.get(key)
    if record is None:
        if seen.covers(key):
            yield _of_absent(job, attempt)
    elif record.state is ContainerState.EXITED:
        yield Finish(job.id, record)
    elif record.state is ContainerState.RUNNING:
        if job.state is JobState.CONFIGURING:
            yield Adopt(job.id, record)
    elif seen.covers(key):
        yield StartAgain(job.id, attempt.number)


def _of_absent(job: Job, attempt: Attempt) -> Decision:
    if job.state is JobState.CONFIGURING:
        return GiveBack(job.id, attempt.number)
    return Vanished(job.id, attempt.number)


def _of_leftover(job: Job, record: ContainerRecord, jobs: Mapping[JobId, Job], seen: Seen) -> Iterator[Decision]:
    """Yield what is done about a container that is not the current attempt of its job.

    An attempt that the store does not know, and whose number this process did not give back, was lost with a part of
    the queue: its container is never killed. While other jobs hold its GPUs it is left alone.
    """
    is_unknown = record.attempt >= job.next_attempt
    is_late = record.attempt == job.next_attempt and bool(seen.settled((job.id, record.attempt)))
    ran = record.state is not ContainerState.CREATED  # one that has ended since is adopted too, lest its job run twice
    may_adopt = is_unknown and ran and job.state is JobState.PENDING
    if may_adopt and not seen.covers((job.id, record.attempt)):
        return  # this process removes it, or has just done so: the next listing tells
    if may_adopt and not _is_in_the_way(job, record, jobs, is_late=is_late):
        yield Adopt(job.id, record)
    elif record.state is not ContainerState.RUNNING:
        yield Clean(record)
    elif not is_unknown or is_late:
        yield KillStray(record)


def _is_in_the_way(job: Job, record: ContainerRecord, jobs: Mapping[JobId, Job], *, is_late: bool) -> bool:
    """Return whether other jobs hold its GPUs, and do not share them with it.

    After a late start those that share are in the way too: they were let in while it was not known to run.
    """
    holders = [other for other in jobs.values() if any(uuid in other.gpus for uuid in record.gpus)]
    if is_late or not job.spec.gpus.promised:
        return bool(holders)
    return any(not other.spec.gpus.promised for other in holders)
