"""Time limits: warns jobs before their limit, and ends those that are over it or have lost a GPU."""

from __future__ import annotations

from datetime import datetime

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.gpu import HealthCode
from gputui.domain.job import Job, JobId
from gputui.domain.state import JobState
from gputui.domain.units import format_duration
from gputui.engine.tick.context import TickContext
from gputui.engine.tick.stops import begin_stops

_LOST = frozenset({HealthCode.LOST, HealthCode.XID, HealthCode.NEEDS_RESET})
"""Health of a GPU that no job can use any more."""


def enforce_limits(context: TickContext, now: datetime) -> None:
    """Warn jobs before their time limit, and end those that are over it or whose GPU is lost."""
    samples = context.reading.samples
    sick = {uuid: sample.health for uuid, sample in samples.items() if sample.health.code in _LOST}
    stops: dict[JobId, Cause] = {}
    for job in context.queue.active:
        lost = tuple(uuid for uuid in job.gpus if uuid in sick)
        if job.state is JobState.RUNNING and lost:
            text = "; ".join(f"{uuid}: {sick[uuid].text}" for uuid in lost)
            stops[job.id] = Cause(CauseCode.GPU_LOST, text, lost)
        elif job.state is JobState.RUNNING and (cause := overdue(job, now)):
            stops[job.id] = cause
    begin_stops(context, stops, now, lambda job, cause: cause.code is CauseCode.GPU_LOST or bool(overdue(job, now)))
    _warn(context, [job for job in context.queue.active if is_to_be_warned(job, now)], now)


def _warn(context: TickContext, jobs: list[Job], now: datetime) -> None:
    """Send the warning signals. Recorded first: a repeated signal would end many a job, a missing one ends none."""
    if not jobs:
        return
    with context.store.transaction() as transaction:
        warned = [job for job in (transaction.get(stale.id) for stale in jobs) if is_to_be_warned(job, now)]
        for job in warned:
            transaction.put(job.with_attempt(warned_at=now))
    for job in warned:
        attempt, warning = job.attempts[-1], job.spec.warning
        observer = context.observer_of(job)
        if observer is not None and attempt.container_id is not None and warning is not None:
            context.workers.warn(observer.runtime, (job.id, attempt.number), attempt.container_id, warning.number)
    context.refresh()


def is_to_be_warned(job: Job, now: datetime) -> bool:
    """Return whether the job's warning is due and has not been sent."""
    at, limit_at = job.warning_at, job.limit_at
    if job.state is not JobState.RUNNING or at is None or limit_at is None or job.suspended or job.is_suspended:
        return False
    return at <= now < limit_at and job.attempts[-1].warned_at is None


def overdue(job: Job, now: datetime) -> Cause | None:
    """Return the cause for ending the job if it is over its time limit; else None."""
    limit, limit_at = job.spec.time_limit, job.limit_at
    if limit is None or limit_at is None or now < limit_at:
        return None
    return Cause(CauseCode.TIME_LIMIT, f"over its time limit of {format_duration(limit)}")
