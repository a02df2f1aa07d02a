"""Cancellations: requests to cancel and to requeue, and jobs whose dependencies can never be met."""

from __future__ import annotations

import logging
from datetime import datetime

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.job import Job
from gputui.domain.policy.dependency import Dependencies
from gputui.domain.policy.retry import cancel_cause, requeued
from gputui.domain.state import JobState
from gputui.engine.tick.context import TickContext
from gputui.engine.tick.snapshot_builder import QueueView
from gputui.engine.tick.stops import begin_stops
from gputui.ports import JobStore

log = logging.getLogger(__name__)


def carry_out_requests(context: TickContext, now: datetime) -> None:
    """Begin to stop the running jobs that a user cancelled or requeued, and change the others at once."""
    requested = context.queue.requested
    if not requested:
        return
    begin_stops(context, {job.id: _stop_cause(job) for job in requested if job.state is JobState.RUNNING}, now)
    at_once = [job for job in requested if _changed_at_once(job, now)]
    if not at_once:
        return
    with context.store.transaction() as transaction:
        for job in transaction.chosen(job_id for stale in at_once for job_id in stale.ids):
            if after := _changed_at_once(job, now):
                transaction.put(after)
    context.refresh()


def _stop_cause(job: Job) -> Cause:
    if job.cancel_requested:
        return cancel_cause(job)
    return Cause(CauseCode.REQUEUED, "requeued by a user")


def _changed_at_once(job: Job, now: datetime) -> Job | None:
    """Return the job after a request that needs no container to end; None when it has to wait for one."""
    has_container = job.attempt is not None and not job.attempt.is_over
    if job.state is JobState.PENDING or (job.state is JobState.CONFIGURING and not has_container):
        if job.cancel_requested:
            return job.to(JobState.CANCELLED, cancel_requested=False, cause=_stop_cause(job), ended_at=now)
        return job.evolve(requeue_requested=False) if job.requeue_requested else None
    if job.state.is_terminal:
        return requeued(job, now) if job.requeue_requested else job.evolve(cancel_requested=False)
    return None


def has_unsatisfiable(queue: QueueView) -> bool:
    """Return whether any job waits for a dependency that can never be met."""
    return bool(_unsatisfiable(queue))


def cancel_unsatisfiable(store: JobStore, queue: QueueView, now: datetime) -> None:
    """Cancel the jobs whose dependencies can never be met, and those that wait for them, as the store is now."""
    with store.transaction() as transaction:
        while hopeless := _unsatisfiable(QueueView(transaction.jobs(), in_history=queue.in_history)):
            for job, why in hopeless:
                transaction.put(_cancelled(job, why, now))


def _unsatisfiable(queue: QueueView) -> list[tuple[Job, str]]:
    waiting = [job for job in queue.jobs.values() if job.spec.after and job.state is JobState.PENDING]
    if not waiting:
        return []
    dependencies = Dependencies.of(queue.all_jobs)
    return [(job, why) for job in waiting if (why := dependencies.never_met(job))]


def _cancelled(job: Job, why: str, now: datetime) -> Job:
    log.info("job %s is cancelled: %s", job.shown_id, why)
    cause = Cause(CauseCode.DEPENDENCY_NEVER_MET, why)
    return job.to(JobState.CANCELLED, cause=cause, ended_at=now, cancel_requested=False)
