"""Reconciliation of store and runtime: the corrections that make them agree. The containers are authoritative.

A scheduler may have died between any two steps of the start protocol (`start_protocol`). Every resulting combination is
handled here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.container import ContainerRecord, ContainerState
from gputui.domain.errors import Cause, CauseCode
from gputui.domain.job import Attempt, Job, JobState
from gputui.domain.job_spec import JobId

if TYPE_CHECKING:
    from gputui.engine.files.telemetry_files import AttemptKey  # loads logging, which commands do not need

_NO_JOBS: Mapping[JobId, Job] = {}


class _OfContainer(Struct, frozen=True):
    job_id: JobId
    record: ContainerRecord


class _OfAttempt(Struct, frozen=True):
    job_id: JobId
    number: int
    """Attempt number; 0 while its image was being pulled, without an attempt."""


class Adopt(_OfContainer, frozen=True):
    """Correction to record that a container runs, or ran, for a job."""


class StartAgain(_OfAttempt, frozen=True):
    """Correction to start a container that was created and never started."""


class GiveBack(_OfAttempt, frozen=True):
    """Correction to return a job to PENDING whose start created no container; no retry is charged."""


class Finish(_OfContainer, frozen=True):
    """Correction to record the end of an attempt's container."""


class Vanished(_OfAttempt, frozen=True):
    """Correction to end an attempt whose container is gone without a trace."""


class Clean(Struct, frozen=True):
    """Correction to save the output of a container whose attempt has ended, and to remove it."""

    record: ContainerRecord


class KillStray(Struct, frozen=True):
    """Correction to kill a container that runs although its attempt has ended, or its GPUs are another job's."""

    record: ContainerRecord


StoreCorrection: TypeAlias = Adopt | GiveBack | Finish | Vanished
"""Correction that is written into the store."""
Correction: TypeAlias = StoreCorrection | StartAgain | Clean | KillStray


class Listing(Struct, frozen=True):
    """Listing of a runtime, with the current work of this scheduler's workers."""

    records: tuple[ContainerRecord, ...]
    begun: int
    """Sequence number of the listing."""
    is_busy: Callable[[AttemptKey], bool]
    """Tells whether a worker of this process is working on an attempt."""
    last_worked_on: Callable[[AttemptKey], int]
    """Returns the sequence number of this process's last work on that attempt; 0 for none."""

    def covers(self, key: AttemptKey) -> bool:
        """Return whether an unlisted container is absent: the listing began after the last work on that attempt."""
        return self.begun > self.last_worked_on(key)


def find_corrections(
    jobs: Mapping[JobId, Job], mine: Iterable[Job], seen: Listing, past: Mapping[JobId, Job] = _NO_JOBS
) -> list[Correction]:
    """Return the corrections for the active jobs of one runtime (`mine`) and all its containers.

    `past` are jobs in history whose containers are still there, because their clean-up failed.
    """
    by_key = {(record.job_id, record.attempt): record for record in seen.records}
    corrections = [correction for job in mine for correction in _for_active(job, by_key, seen)]
    for key, record in by_key.items():
        job = jobs.get(record.job_id) or past.get(record.job_id)
        if job is not None and not seen.is_busy(key) and not _is_current(job, record):
            corrections += _for_leftover(job, record, jobs, seen)
    return corrections


def find_strays(jobs: Mapping[JobId, Job], records: Iterable[ContainerRecord]) -> tuple[ContainerRecord, ...]:
    """Return running containers of this store that belong to no current attempt; their GPUs count as taken.

    A container of an unknown job or attempt (after a restore from a backup, or a repair) is left alone; one whose
    attempt has ended is being killed.
    """
    return tuple(
        r for r in records if r.state is ContainerState.RUNNING and not _is_accounted_for(jobs.get(r.job_id), r)
    )


def runs_already(job: Job, records: Iterable[ContainerRecord]) -> bool:
    """Return whether a container runs for an attempt that is unknown to the store."""
    return any(
        record.job_id == job.id and record.attempt >= job.next_attempt and record.state is ContainerState.RUNNING
        for record in records
    )


def _is_accounted_for(job: Job | None, record: ContainerRecord) -> bool:
    return job is not None and _is_current(job, record)


def _is_current(job: Job, record: ContainerRecord) -> bool:
    attempt = job.attempt
    return job.state.is_active and attempt is not None and not attempt.is_over and attempt.number == record.attempt


def _for_active(job: Job, by_key: Mapping[AttemptKey, ContainerRecord], seen: Listing) -> Iterator[Correction]:
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
            yield _for_absent(job, attempt)
    elif record.state is ContainerState.EXITED:
        yield Finish(job.id, record)
    elif record.state is ContainerState.RUNNING:
        if job.state is JobState.CONFIGURING:
            yield Adopt(job.id, record)
    elif seen.covers(key):
        yield _for_unstarted(job, attempt, record)


def _for_unstarted(job: Job, attempt: Attempt, record: ContainerRecord) -> Correction:
    """Return the correction for a container that never ran, according to the runtime; but we may have seen it run."""
    if job.state is JobState.CONFIGURING:
        return StartAgain(job.id, attempt.number)
    cause = Cause(CauseCode.END_UNKNOWN, "it ran, but its runtime has lost all record of that, so its end is unknown")
    return Finish(job.id, replace(record, state=ContainerState.EXITED, cause=cause))


def _for_absent(job: Job, attempt: Attempt) -> Correction:
    if job.state is JobState.CONFIGURING:
        return GiveBack(job.id, attempt.number)
    return Vanished(job.id, attempt.number)


def _for_leftover(job: Job, record: ContainerRecord, jobs: Mapping[JobId, Job], seen: Listing) -> Iterator[Correction]:
    """Yield the correction for a container that is not the current attempt of its job.

    If the attempt is unknown to the store, and this process did not release its number, it was lost with a part of the
    queue: its container is never killed. While other jobs hold its GPUs it is left alone.
    """
    is_unknown = record.attempt >= job.next_attempt
    is_late = record.attempt == job.next_attempt and bool(seen.last_worked_on((job.id, record.attempt)))
    ran = record.state is not ContainerState.CREATED  # an ended one is adopted too, so that its job does not run twice
    may_adopt = is_unknown and ran and job.state is JobState.PENDING
    if may_adopt and not seen.covers((job.id, record.attempt)):
        return  # this process is removing it: the next listing shows the result
    if may_adopt and not _is_in_the_way(job, record, jobs, is_late=is_late):
        yield Adopt(job.id, record)
    elif record.state is not ContainerState.RUNNING:
        yield Clean(record)
    elif not is_unknown or is_late:
        yield KillStray(record)


def _is_in_the_way(job: Job, record: ContainerRecord, jobs: Mapping[JobId, Job], *, is_late: bool) -> bool:
    """Return whether other jobs hold its GPUs without sharing them with it.

    After a late start, sharing jobs conflict as well: they joined while it was not known to run.
    """
    holders = [other for other in jobs.values() if any(uuid in other.gpus for uuid in record.gpus)]
    if is_late or not job.spec.gpus.promised:
        return bool(holders)
    return any(not other.spec.gpus.promised for other in holders)
