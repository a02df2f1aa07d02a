"""Suspends running jobs and lets them continue, as users requested; repeated where a listing shows that it did not."""

from __future__ import annotations

from datetime import datetime

from gputui.domain.container import ContainerRecord
from gputui.domain.job import Job
from gputui.domain.state import JobState
from gputui.engine.tick import attempt_steps
from gputui.engine.tick.context import TickContext


def carry_out_suspensions(context: TickContext, now: datetime) -> None:
    """Make each running job stand still or run as requested.

    That an attempt is suspended is recorded before its processes are stopped, so no scheduler forgets to wake them.
    """
    for job in context.queue.active:
        if job.state is JobState.RUNNING and (job.suspended or job.is_suspended):
            _carry_out(context, job, now)


def _carry_out(context: TickContext, job: Job, now: datetime) -> None:
    observer, attempt = context.observer_of(job), job.attempts[-1]
    if observer is None or observer.latest.records is None:
        return
    key = (job.id, attempt.number)
    record = next((each for each in observer.latest.records if (each.job_id, each.attempt) == key), None)
    if (
        record is None
        or context.workers.is_suspending(key)
        or observer.latest.begun <= context.workers.last_worked_on(key)
    ):
        return
    if job.suspended != job.is_suspended and (job.suspended or not record.is_suspended):
        _record(context, job, now)
    if job.suspended != record.is_suspended:
        _stop_or_wake(context, job, record)


def _stop_or_wake(context: TickContext, job: Job, record: ContainerRecord) -> None:
    observer = context.observer_of(job)
    assert observer is not None
    key = (job.id, job.attempts[-1].number)
    context.workers.set_suspended(observer.runtime, key, record.id, is_suspended=job.suspended)


def _record(context: TickContext, job: Job, now: datetime) -> None:
    """Record that the attempt is suspended from now on, or was until now."""
    with context.store.transaction() as transaction:
        current = attempt_steps.under_way(transaction, job.id, job.attempts[-1].number)
        if current is not None and current.suspended == job.suspended:
            transaction.put(current.with_attempt(suspended_at=now if job.suspended else None))
    context.refresh()
