"""Stops of attempts: recorded first, then SIGTERM, then SIGKILL after the grace period. And the requests of users:
cancel, requeue, suspend and signal, and dependencies that can never be met.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from msgspec.structs import replace

from gputui.domain.errors import Cause, CauseCode
from gputui.domain.job import Job, JobState, Stopping
from gputui.domain.job_spec import JobId
from gputui.domain.policy.preemption import grace_of
from gputui.domain.policy.retry import cancel_cause, conclude, requeued
from gputui.domain.policy.waits import Dependencies
from gputui.engine.tick.context import TickContext
from gputui.engine.tick.snapshot_builder import QueueView
from gputui.engine.tick.start_protocol import under_way
from gputui.ports import JobStore
from gputui.ports.monitor import about

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
        current = under_way(transaction, job.id, number)
        if current is not None:
            transaction.put(conclude(current, cause, None, now, context.settings.scheduler))
    context.refresh()


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
    """Return the job after a request that needs no container to end; None if it has to wait for one."""
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
                log.info("job %s is cancelled: %s", job.shown_id, why, extra=about(job.id))
                cause = Cause(CauseCode.DEPENDENCY_NEVER_MET, why)
                after = job.to(JobState.CANCELLED, cause=cause, ended_at=now, cancel_requested=False)
                transaction.put(after)


def _unsatisfiable(queue: QueueView) -> list[tuple[Job, str]]:
    waiting = [job for job in queue.jobs.values() if job.spec.after and job.state is JobState.PENDING]
    if not waiting:
        return []
    dependencies = Dependencies.of(queue.all_jobs)
    return [(job, why) for job in waiting if (why := dependencies.never_met(job))]


def carry_out_suspensions(context: TickContext, now: datetime) -> None:
    """Suspend or continue the processes of each running job as requested.

    The store records a suspension before the processes are stopped, so that no scheduler forgets to continue them.
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
        with context.store.transaction() as transaction:
            current = under_way(transaction, job.id, job.attempts[-1].number)
            if current is not None and current.suspended == job.suspended:
                transaction.put(current.with_attempt(suspended_at=now) if job.suspended else _woken(current, now))
        context.refresh()
    if job.suspended != record.is_suspended:
        context.workers.set_suspended(observer.runtime, key, record.id, is_suspended=job.suspended)


def _woken(job: Job, now: datetime) -> Job:
    """Return the continued job, with the time of its suspension added."""
    attempt = job.attempts[-1]
    if attempt.suspended_at is None:
        return job
    stood_still = (attempt.suspended_at, max(now, attempt.suspended_at))
    return job.with_attempt(suspended_at=None, suspensions=(*attempt.suspensions, stood_still))


def send_signals(context: TickContext) -> None:
    """Send the requested signals. A scheduler that is killed meanwhile loses them rather than sending them twice."""
    asked = [job.id for job in context.queue.active if _is_due(job) and context.is_answered(job)]
    if not asked:
        return
    with context.store.transaction() as transaction:
        due = [job for job_id in asked if _is_due(job := transaction.get(job_id))]
        for job in due:
            transaction.put(job.evolve(signals=()))
    for job in due:
        attempt, observer = job.attempts[-1], context.observer_of(job)
        if observer is not None and attempt.container_id is not None:
            key = (job.id, attempt.number)
            context.workers.send_signals(observer.runtime, key, attempt.container_id, job.signals)
    context.refresh()


def _is_due(job: Job) -> bool:
    attempt = job.attempt
    if job.suspended or job.is_suspended:  # it gets them once it runs again
        return False
    return bool(job.signals and job.state is JobState.RUNNING and attempt is not None and attempt.container_id)
