"""The wishes to cancel and to requeue, carried out."""

from __future__ import annotations

from datetime import datetime

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.job import Job
from gputui.domain.policy.retry import requeued
from gputui.domain.state import JobState
from gputui.engine.ground import Ground
from gputui.engine.stops import begin_stops


def carry_out(ground: Ground, now: datetime) -> None:
    """Begin to stop what runs, and settle at once what does not."""
    wished = ground.queue.wished
    if not wished:
        return
    begin_stops(ground, {job.id: _wish(job) for job in wished if job.state is JobState.RUNNING}, now)
    at_once = [job for job in wished if _at_once(job, now)]
    if not at_once:
        return
    with ground.store.transaction() as transaction:
        for stale in at_once:
            if after := _at_once(transaction.get(stale.id), now):
                transaction.put(after)
    ground.observe()


def _wish(job: Job) -> Cause:
    if job.cancel_requested:
        return Cause(CauseCode.CANCELLED, "cancelled by a user")
    return Cause(CauseCode.REQUEUED, "requeued by a user")


def _at_once(job: Job, now: datetime) -> Job | None:
    """The job after a wish that needs no container to end; None when it has to wait for one."""
    has_container = job.attempt is not None and not job.attempt.is_over
    if job.state is JobState.PENDING or (job.state is JobState.CONFIGURING and not has_container):
        if job.cancel_requested:
            return job.to(JobState.CANCELLED, cancel_requested=False, cause=_wish(job), ended_at=now)
        return job.evolve(requeue_requested=False) if job.requeue_requested else None
    if job.state.is_terminal:
        return requeued(job) if job.requeue_requested else job.evolve(cancel_requested=False)
    return None
