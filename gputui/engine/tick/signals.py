"""Signals that users sent to running jobs: recorded as sent first, so that none is sent twice, then delivered."""

from __future__ import annotations

from gputui.domain.job import Job
from gputui.domain.state import JobState
from gputui.engine.tick.context import TickContext


def send_signals(context: TickContext) -> None:
    """Send the requested signals. A scheduler that is killed in between loses them rather than sends them twice."""
    if not any(_is_due(job) for job in context.queue.active):
        return
    with context.store.transaction() as transaction:
        due = [job for stale in context.queue.active if _is_due(stale) and _is_due(job := transaction.get(stale.id))]
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
