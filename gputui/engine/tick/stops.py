"""Stops of attempts: recorded first, then SIGTERM, then SIGKILL after the grace period."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from msgspec.structs import replace

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.job import Job, Stopping
from gputui.domain.job_spec import JobId
from gputui.domain.policy.preemption import grace_of
from gputui.domain.policy.retry import conclude
from gputui.domain.state import JobState
from gputui.engine.tick import attempt_steps
from gputui.engine.tick.context import TickContext

_UNKILLABLE = timedelta(minutes=1)
"""Time after which an attempt on a lost GPU is ended: a process blocked in the driver ignores even SIGKILL."""


def begin_stops(
    context: TickContext,
    stops: Mapping[JobId, Cause],
    now: datetime,
    is_due: Callable[[Job, Cause], bool] = lambda job, cause: True,
) -> None:
    """Record that these running jobs are to end, and why; `drive_stops` does the rest.

    `is_due` is called for each job as the store has it now: a user may have changed it since the queue was read.
    """
    if not stops:
        return
    with context.store.transaction() as transaction:
        for job_id, cause in stops.items():
            job = transaction.get(job_id)
            if job.state is JobState.RUNNING and is_due(job, cause):
                transaction.put(job.to(JobState.COMPLETING, stopping=Stopping(cause, now)))
    context.refresh()


def drive_stops(context: TickContext, now: datetime) -> None:
    """Signal the attempts that are to end, as far as their grace periods have passed."""
    _restart_future_graces(context, now)
    for job in context.queue.active:
        if job.state is JobState.COMPLETING:
            _drive_stop(context, job, now)


def _restart_future_graces(context: TickContext, now: datetime) -> None:
    """After the clock went back, restart grace periods that begin in the future, which would last too long."""
    ahead = [job for job in context.queue.active if job.stopping is not None and job.stopping.at > now]
    if not ahead:
        return
    with context.store.transaction() as transaction:
        for stale in ahead:
            job = transaction.get(stale.id)
            if job.stopping is not None:
                transaction.put(job.evolve(stopping=replace(job.stopping, at=now)))
    context.refresh()


def _drive_stop(context: TickContext, job: Job, now: datetime) -> None:
    """Send SIGTERM first, and SIGKILL after each further grace period."""
    attempt, stopping = job.attempt, job.stopping
    observer = context.observer_of(job)
    if attempt is None or attempt.container_id is None or stopping is None or observer is None:
        return
    grace = max(grace_of(job, stopping.cause, context.settings), timedelta(milliseconds=100))
    if stopping.cause.code is CauseCode.GPU_LOST and now - stopping.at > _UNKILLABLE:
        _give_up(context, job, attempt.number, stopping.cause, now)
        return
    graces = (now - stopping.at) // grace
    how = "terminate" if graces < 1 else f"kill for the {graces}. time"
    context.workers.signal_end(observer.runtime, (job.id, attempt.number), attempt.container_id, how)


def _give_up(context: TickContext, job: Job, number: int, cause: Cause, now: datetime) -> None:
    """End the attempt although a faulty driver keeps its processes alive, so that the job can run elsewhere.

    Its container stays a stray: killed again and again, its GPUs counted as taken.
    """
    with context.store.transaction() as transaction:
        current = attempt_steps.under_way(transaction, job.id, number)
        if current is not None:
            transaction.put(conclude(current, cause, None, now, context.settings.scheduler))
    context.refresh()
