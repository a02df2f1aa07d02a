"""Makes the due runs of recurring jobs: submits the job and sets the next run in one transaction.

So a scheduler killed at any moment neither loses a run nor makes it twice. What former users have left starts nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.access import Actor, AuditEntry
from gputui.domain.container import ContainerState
from gputui.domain.errors import GputuiError, InputError, StoreError
from gputui.domain.job import Job, JobState
from gputui.domain.job_spec import JobId
from gputui.domain.recurring import Overlap, RecurringJob, Skipped, live_jobs
from gputui.engine.actions.actions import Actions
from gputui.engine.actions.recurring import find_zone
from gputui.engine.tick.context import TickContext
from gputui.ports import Transaction

log = logging.getLogger(__name__)


class _FrozenClock(Struct, frozen=True):
    """Fixed clock, so that a whole tick happens at one time."""

    at: datetime

    def now(self) -> datetime:
        return self.at


def next_run_at(entries: Iterable[RecurringJob], now: datetime) -> datetime | None:
    """Return when the next recurring job is due; None if none is."""
    return min((entry.next_at for entry in entries if entry.next_at > now and not entry.paused), default=None)


def make_due_runs(context: TickContext, now: datetime, is_former: Callable[[int], bool] = lambda uid: False) -> None:
    """Make the due runs, as the store is now; those of former users are paused instead."""
    found = (entry for entry in context.queue.recurring.values() if entry.is_due(now) and _is_clear(context, entry))
    due = {entry.id: is_former(entry.uid) for entry in found}
    if not due:
        return
    with context.store.transaction() as transaction:
        for entry in transaction.recurring().values():
            if entry.id in due and entry.is_due(now):
                if due[entry.id]:
                    why = f"paused: {no_user(entry.added_by)}"
                    after = _skipped(transaction, replace(entry, paused=True), entry.next_at, why, now)
                else:
                    after = _after(context, transaction, entry, now)
                transaction.put_recurring(after)
    context.refresh()


def no_user(name: str) -> str:
    return f"{name or 'its submitter'} may not use this queue any more (access.users)"


def hold_jobs_of_former_users(context: TickContext, now: datetime, is_former: Callable[[int], bool]) -> None:
    """Hold the waiting jobs of those who may not use the queue any more; what runs, goes on."""
    former = {uid for uid in {job.submitted_uid for job in _waiting(context.queue.jobs)} if uid and is_former(uid)}
    if not former:
        return
    with context.store.transaction() as transaction:
        for job in _waiting(transaction.jobs()):
            if job.submitted_uid in former:
                why = no_user(job.submitted_by)
                transaction.put(job.evolve(held=True, held_at=now, hold_reason=why))
                entry = AuditEntry(now, os.getuid(), "scheduler", "hold", job.target, str(job.state), f"held: {why}")
                transaction.audit(entry)
    context.refresh()


def _waiting(jobs: Mapping[JobId, Job]) -> list[Job]:
    return [job for job in jobs.values() if job.state is JobState.PENDING and not job.held]


def _is_clear(context: TickContext, entry: RecurringJob) -> bool:
    """Return whether the state of its live jobs is known, if its overlap rule depends on that.

    After a time without a scheduler, a job that is running in the store may have ended: the run waits for a listing.
    """
    if entry.overlap is Overlap.ALLOW:
        return True
    return all(_is_seen(context, job) for job in live_jobs(context.queue.jobs.values(), entry.id))


def _is_seen(context: TickContext, job: Job) -> bool:
    """Return whether a job that is running in the store is also running in the last listing."""
    observer = context.observer_of(job)
    if observer is None or job.state not in {JobState.RUNNING, JobState.COMPLETING}:
        return True
    records = observer.latest.records or ()
    return any(record.job_id == job.id and record.state is ContainerState.RUNNING for record in records)


def _after(context: TickContext, transaction: Transaction, entry: RecurringJob, now: datetime) -> RecurringJob:
    """Return the recurring job after its run was made, or skipped for a reason."""
    try:
        own_zone = find_zone(entry.zone)
    except InputError as error:  # this host lost time zones
        return _skipped(transaction, replace(entry, paused=True), entry.next_at, f"paused: {error}", now)
    run = entry.run_at(own_zone, now)
    waiting = entry.awaiting(own_zone, now)
    if run is None:
        log.warning("the clock was put back: recurring job %d runs at %s next", entry.id, waiting.next_at)
        return waiting
    why_not = entry.why_not(run, live_jobs(transaction.jobs().values(), entry.id), now)
    if why_not:
        return _skipped(transaction, waiting, run, why_not, now)
    actor = Actor(entry.uid, entry.added_by)
    actions = Actions(context.store, _FrozenClock(now), actor, context.settings.scheduler, context.settings.policy)
    try:
        ids = actions.submit_run(entry.id, entry.submission)
    except StoreError:
        raise
    except GputuiError as error:  # it was allowed when it was added, and no longer is
        return _skipped(transaction, waiting, run, str(error), now)
    log.info("recurring job %d submits job %d for %s", waiting.id, ids[0], run)
    _audit(transaction, waiting, "fire", run, f"job {ids[0]}", now)
    return replace(waiting, last_at=run, last_job_id=ids[0])


def _skipped(transaction: Transaction, entry: RecurringJob, run: datetime, why: str, now: datetime) -> RecurringJob:
    log.info("recurring job %d leaves out the run of %s: %s", entry.id, run, why)
    _audit(transaction, entry, "skip", run, why, now)
    return replace(entry, skipped=Skipped(run, why))


def _audit(transaction: Transaction, entry: RecurringJob, verb: str, run: datetime, after: str, now: datetime) -> None:
    before = f"due {run.isoformat()}"
    transaction.audit(AuditEntry(now, entry.uid, entry.added_by, verb, f"recurring {entry.id}", before, after))
