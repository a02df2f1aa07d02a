"""The clock on the wall was set while jobs run: what was written down by the old time goes along with it."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

from gputui.domain.job import Job
from gputui.engine.ground import Ground

LEAST = timedelta(seconds=5)
"""By less a clock is taken to be slewed, not set."""
_BEGUN = ("claimed_at", "started_at", "warned_at", "preempted_at")


def set_by(shown: timedelta, passed: timedelta | None) -> timedelta:
    """By how much the clock was set, of which so much time is to be seen while so much passed; none if not known."""
    by = shown - passed if passed is not None else timedelta()
    return by if abs(by) >= LEAST else timedelta()


def move_along(ground: Ground, by: timedelta) -> None:
    """Let attempts under way have run for as long as before, or every time limit would be over at once.

    One that was moved ahead is moved back when the clock is; none is moved to before it really began.
    """
    moved = {job.id: _moved(job, by) for job in ground.queue.active}
    if not any(job.attempt and job.attempt != moved[job.id].attempt for job in ground.queue.active):
        return
    with ground.store.transaction() as transaction:
        for job_id in moved:
            job = transaction.get(job_id)
            if job.state.is_active:
                transaction.put(_moved(job, by))
    ground.observe()


def _moved(job: Job, by: timedelta) -> Job:
    attempt = job.attempt
    if attempt is None:
        return job
    by = max(by, -attempt.clock_moved)
    times = {name: at + by for name in _BEGUN if (at := getattr(attempt, name)) is not None}
    job = job.with_attempt(**times, clock_moved=attempt.clock_moved + by)
    if job.started_at is not None:
        job = job.evolve(started_at=job.started_at + by)
    if job.stopping is not None:
        killed_at = job.stopping.killed_at
        stopping = dataclasses.replace(job.stopping, at=job.stopping.at + by, killed_at=killed_at and killed_at + by)
        job = job.evolve(stopping=stopping)
    return job
