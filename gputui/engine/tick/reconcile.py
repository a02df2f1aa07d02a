"""Reconciliation of store and runtime: the corrections that make them agree. The containers are authoritative.

A scheduler may have died between any two steps of the start protocol (`start_protocol`). Every resulting combination is
handled here.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.access import AuditEntry
from gputui.domain.container import ContainerRecord, ContainerState, Launch
from gputui.domain.errors import Cause, CauseCode, NotFoundError, StoreFormatError
from gputui.domain.job import Job, Placement, Stopping
from gputui.domain.job_spec import CLASSES, JobId, whole_class
from gputui.domain.policy import retry
from gputui.domain.policy.availability import cdi_names, present_gpus
from gputui.domain.policy.plan import Preemption
from gputui.domain.policy.preemption import is_candidate
from gputui.domain.policy.waits import Dependencies
from gputui.domain.state import JobState
from gputui.domain.telemetry import efficiency_of
from gputui.domain.text import listed
from gputui.engine.tick.context import TickContext
from gputui.engine.tick.start_protocol import (
    adopted,
    claimed,
    finished,
    given_back,
    is_worth_reading,
    launch_of,
    under_way,
    vanished,
)
from gputui.engine.tick.stops import drive_stops
from gputui.ports import Runtime, Transaction
from gputui.ports.monitor import about

if TYPE_CHECKING:
    from gputui.engine.telemetry_files import AttemptKey

log = logging.getLogger(__name__)

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
    jobs: Mapping[JobId, Job], mine: Iterable[Job], listing: Listing, past: Mapping[JobId, Job] = _NO_JOBS
) -> list[Correction]:
    """Return the corrections for the active jobs of one runtime (`mine`) and all its containers.

    `past` are jobs in history whose containers are still there, because their clean-up failed.
    """
    by_key = {(record.job_id, record.attempt): record for record in listing.records}
    corrections = [correction for job in mine for correction in _for_active(job, by_key, listing)]
    for key, record in by_key.items():
        job = jobs.get(record.job_id) or past.get(record.job_id)
        if job is not None and not listing.is_busy(key) and not _is_current(job, record):
            corrections += _for_leftover(job, record, jobs, listing)
    return corrections


def find_strays(jobs: Mapping[JobId, Job], records: Iterable[ContainerRecord]) -> tuple[ContainerRecord, ...]:
    """Return running containers of this store that belong to no current attempt; their GPUs count as taken.

    A container of an unknown job or attempt (after a restore from a backup, or a repair) is left alone; one whose
    attempt has ended is being killed.
    """
    running = [record for record in records if record.state is ContainerState.RUNNING]
    return tuple(r for r in running if (job := jobs.get(r.job_id)) is None or not _is_current(job, r))


def _is_current(job: Job, record: ContainerRecord) -> bool:
    attempt = job.attempt
    return job.state.is_active and attempt is not None and not attempt.is_over and attempt.number == record.attempt


def _for_active(job: Job, by_key: Mapping[AttemptKey, ContainerRecord], listing: Listing) -> Iterator[Correction]:
    attempt = job.attempt
    if attempt is None or attempt.is_over:
        if job.state is JobState.CONFIGURING and not listing.is_busy((job.id, 0)):
            yield GiveBack(job.id, 0)
        return
    key = (job.id, attempt.number)
    if listing.is_busy(key):
        return
    record = by_key.get(key)
    if record is None:
        if listing.covers(key):
            is_starting = job.state is JobState.CONFIGURING
            yield GiveBack(job.id, attempt.number) if is_starting else Vanished(job.id, attempt.number)
    elif record.state is ContainerState.EXITED:
        yield Finish(job.id, record)
    elif record.state is ContainerState.RUNNING:
        if job.state is JobState.CONFIGURING:
            yield Adopt(job.id, record)
    elif listing.covers(key):  # it never ran, according to the runtime; but we may have seen it run
        if job.state is JobState.CONFIGURING:
            yield StartAgain(job.id, attempt.number)
        else:
            text = "it ran, but its runtime has lost all record of that, so its end is unknown"
            cause = Cause(CauseCode.END_UNKNOWN, text)
            yield Finish(job.id, replace(record, state=ContainerState.EXITED, cause=cause))


def _for_leftover(
    job: Job, record: ContainerRecord, jobs: Mapping[JobId, Job], listing: Listing
) -> Iterator[Correction]:
    """Yield the correction for a container that is not the current attempt of its job.

    If the attempt is unknown to the store, and this process did not release its number, it was lost with a part of the
    queue: its container is never killed. While other jobs hold its GPUs it is left alone.
    """
    is_unknown = record.attempt >= job.next_attempt
    is_late = record.attempt == job.next_attempt and bool(listing.last_worked_on((job.id, record.attempt)))
    ran = record.state is not ContainerState.CREATED  # an ended one is adopted too, so that its job does not run twice
    may_adopt = is_unknown and ran and job.state is JobState.PENDING
    if may_adopt and not listing.covers((job.id, record.attempt)):
        return  # this process is removing it: the next listing shows the result
    # after a late start, sharing jobs conflict as well: they joined while it was not known to run
    may_share = not is_late and bool(job.spec.gpus.promised)
    holders = (other for other in jobs.values() if any(uuid in other.gpus for uuid in record.gpus))
    if may_adopt and all(may_share and other.spec.gpus.promised for other in holders):
        yield Adopt(job.id, record)
    elif record.state is not ContainerState.RUNNING:
        yield Clean(record)
    elif not is_unknown or is_late:
        yield KillStray(record)


_SLOW = timedelta(seconds=5)
"""Time after which a start is so slow that lists say so."""


def begin_starts(context: TickContext, planned: Iterable[Placement], now: datetime) -> list[Job]:
    """Claim GPUs for the planned starts whose image is present, and start them; return the claimed jobs."""
    starts = [start for start in planned if has_image(context, start.job_id)]
    if not starts:
        return []
    claims: list[Job] = []
    dependencies = Dependencies.of(context.queue.all_jobs)
    with context.store.transaction() as transaction:
        for start in starts:
            job = transaction.get(start.job_id)
            records = context.observers[job.spec.runtime_in(context.observers)].latest.records or ()
            runs = (each for each in records if each.job_id == job.id and each.state is ContainerState.RUNNING)
            if any(record.attempt >= job.next_attempt for record in runs):  # the store does not know that attempt
                continue
            if job.state is JobState.PENDING and not job.held and not job.cancel_requested:
                claims.append(claimed(job, start, now, dependencies.ended_at(job, now)))
                transaction.put(claims[-1])
    for job in claims:
        runtime = context.observers[job.spec.runtime_in(context.observers)].runtime
        context.workers.start(runtime, latest_launch(context, job))
    if claims:
        context.refresh()
    return claims


def held_up(context: TickContext, now: datetime) -> dict[JobId, str]:
    found: dict[JobId, str] = {}
    for job in context.queue.active:
        attempt, observer = job.attempt, context.observer_of(job)
        if job.state is not JobState.CONFIGURING or attempt is None or attempt.is_over or observer is None:
            continue
        status = observer.latest.status
        if status.asked and not status.up:
            found[job.id] = f"starting: {status.text}"
        elif attempt.claimed_at is not None and now - attempt.claimed_at > _SLOW:
            found[job.id] = f"starting: {status.name} has not confirmed it yet"
    return found


def latest_launch(context: TickContext, job: Job) -> Launch:
    attempt, engine = job.attempts[-1], context.observers[job.spec.runtime_in(context.observers)].latest.status.gpus
    names = cdi_names(engine, present_gpus(context.probe.latest()), attempt.gpus) if engine else ()
    return launch_of(context.store.store_id, job, attempt, names)


def has_image(context: TickContext, job_id: JobId) -> bool:
    job = context.queue.jobs[job_id]
    pull = job.spec.options.pull
    if pull == "never":  # an engine without the image says so when the container is created
        return True
    always = job.next_attempt if pull == "always" else None
    runtime = context.observers[job.spec.runtime_in(context.observers)].runtime
    return context.workers.pulls.is_here(runtime, job.id, job.spec.image, always)


def begin_preemptions(context: TickContext, planned: Iterable[Preemption], now: datetime) -> bool:
    """Stop the victims of each preemptor whose image is present; return whether there were any.

    They are recorded and audited first, all or none, then signalled. The preemptor is put at the head of the queue, so
    that neither a later job with a higher score nor a victim with a longer wait takes the GPUs before it. From then on
    a victim ends like any stopped job, with its grace period, even under the next scheduler.
    """
    by_whom: dict[JobId, list[JobId]] = {}
    for preemption in planned:
        by_whom.setdefault(preemption.by, []).append(preemption.victim)
    begun = [by for by, victims in by_whom.items() if has_image(context, by) and _write(context, by, victims, now)]
    if not begun:
        return False
    context.refresh()
    drive_stops(context, now)
    return True


def _write(context: TickContext, by: JobId, ids: list[JobId], now: datetime) -> bool:
    """Record that all these jobs are to end, if each may still be preempted by that job; else nothing."""
    policy = context.settings.policy
    with context.store.transaction() as transaction:
        preemptor, victims = transaction.get(by), [transaction.get(job_id) for job_id in ids]
        if preemptor.state is not JobState.PENDING or preemptor.held or preemptor.cancel_requested:
            return False
        rank = whole_class(preemptor.priority)
        if not policy.preemption or not all(
            rank > whole_class(victim.priority) and is_candidate(victim, policy, now) for victim in victims
        ):
            return False
        whose = f"{preemptor.shown_id} of {preemptor.spec.tenant}"
        text = f"preempted for job {whose} (class {CLASSES[rank]}, priority {preemptor.priority})"
        cause = Cause(CauseCode.PREEMPTED, text)
        for victim in victims:
            stopped = victim.with_attempt(preempted_by=preemptor.id, preempted_at=now)
            transaction.put(stopped.to(JobState.COMPLETING, stopping=Stopping(cause, now)))
            _audit(transaction, victim, text, now)
        transaction.put(preemptor.evolve(topped_at=now))
        _audit(transaction, preemptor, f"put first: others are preempted for it: {listed(ids)}", now)
    log.info("preempted for job %d: %s", by, ", ".join(map(str, ids)))
    return True


def _audit(transaction: Transaction, job: Job, words: str, now: datetime) -> None:
    transaction.audit(AuditEntry(now, os.getuid(), "scheduler", "preempt", f"job {job.id}", str(job.state), words))


_KILL_STRAYS_EVERY = 10.0


class Reaper(Struct, eq=False):
    """Applies the corrections that `find_corrections` finds, and records when GPUs were freed."""

    _context: TickContext
    freed_at: dict[str, datetime] = field(default_factory=dict)
    _past: dict[JobId, Job | None] = field(default_factory=dict)
    """Jobs of listed containers that are not in the queue, from history; None: not there either."""

    def reap(self, now: datetime) -> None:
        """Compare the store with each runtime's last listing, and act on the differences."""
        context, workers = self._context, self._context.workers
        known, self._past = self._past, {}
        for observer in context.observers.values():
            for job_id in {record.job_id for record in observer.latest.records or ()} - context.queue.jobs.keys():
                self._past[job_id] = known.get(job_id)
                if job_id not in known:
                    with suppress(NotFoundError, StoreFormatError):
                        self._past[job_id] = context.store.get(job_id)
        past = {job_id: job for job_id, job in self._past.items() if job is not None}
        for name, observer in context.observers.items():
            latest, runtime = observer.latest, observer.runtime
            if latest.records is None:
                continue
            mine = [job for job in context.queue.active if job.spec.runtime_in(context.observers) == name]
            listing = Listing(latest.records, latest.begun, workers.is_busy, workers.last_worked_on)
            found = find_corrections(context.queue.jobs, mine, listing, past)
            corrections = [correction for correction in found if not self._is_being_read(correction, runtime)]
            self._write(corrections, now)
            for correction in corrections:
                if isinstance(correction, Clean):
                    workers.clean(runtime, correction.record, now)
                elif isinstance(correction, StartAgain):
                    workers.start(runtime, latest_launch(context, context.queue.jobs[correction.job_id]))
                elif isinstance(correction, KillStray):
                    record, again = correction.record, now.timestamp() // _KILL_STRAYS_EVERY
                    key = (record.job_id, record.attempt)
                    workers.signal_end(runtime, key, record.id, f"kill the stray, {again}")

    def _is_being_read(self, correction: Correction, runtime: Runtime) -> bool:
        """Return whether a worker is still reading the end of the output to find why the attempt failed."""
        if not isinstance(correction, Finish):
            return False
        job = self._context.queue.jobs[correction.job_id]
        if not is_worth_reading(job, correction.record.cause):
            return False
        return self._context.workers.failure_signs(runtime, correction.record, job) is None

    def _write(self, corrections: list[Correction], now: datetime) -> None:
        changes = [correction for correction in corrections if isinstance(correction, StoreCorrection)]
        if not changes:
            return
        made: list[tuple[Job, Job, str]] = []
        with self._context.store.transaction() as transaction:
            for change in changes:
                before = transaction.get(change.job_id)
                after = self._after(transaction, before, change, now)
                if after is not None:
                    transaction.put(after)
                    made.append((before, after, type(change).__name__))
        for before, after, how in made:  # only now: a full disk may refuse them
            number = after.attempt.number if after.attempt else None
            fields = about(after.id, number, before.gpus or after.gpus)
            log.info("job %d: %s to %s by %s", after.id, before.state, after.state, how, extra=fields)
        self._context.workers.forget_failure_signs(each.record for each in changes if isinstance(each, Finish))
        freed = {uuid for before, after, _ in made for uuid in before.gpus if uuid not in after.gpus}
        if freed:  # older readings show the previous job
            self.freed_at |= dict.fromkeys(freed, now)
            self._context.probe.refresh()
        self._context.refresh()

    def _after(self, transaction: Transaction, job: Job, change: StoreCorrection, now: datetime) -> Job | None:
        settings = self._context.settings.scheduler
        match change:
            case Finish(_, record):
                current = under_way(transaction, job.id, record.attempt)
                if current is None:
                    return None
                signs = self._context.workers.known_failure_signs(record)
                gpus = self._context.probe.latest().gpus
                totals = {gpu.uuid: gpu.memory_total for gpu in gpus if gpu.memory_total}
                measured = self._measured(current, now, record)
                return retry.ask_for_more(finished(measured, record, now, settings, signs), totals)
            case Vanished(_, number):
                current = under_way(transaction, job.id, number)
                if current is None:
                    return None
                measured = self._measured(current, now)
                return vanished(measured, now, settings)
            case Adopt(_, record):
                adoptable = job.state in {JobState.PENDING, JobState.CONFIGURING}
                return adopted(job, record, now) if adoptable else None
            case GiveBack(_, number):
                self._context.workers.note_given_back((job.id, number))
                return given_back(job) if job.state is JobState.CONFIGURING else None

    def _measured(self, job: Job, now: datetime, record: ContainerRecord | None = None) -> Job:
        found = self._context.telemetry.result(job, now, record)
        return job.with_attempt(telemetry=found, efficiency=efficiency_of(found))
