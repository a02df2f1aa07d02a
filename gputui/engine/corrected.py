"""Correct the times of running attempts after the clock was set, so that time limits count what really passed.

Each attempt keeps `began`, its start by a clock that nobody sets. A wall clock that is `LEAST` off from it was set,
ahead or back, be it while nothing scheduled: the attempt's times are moved along.
"""

from __future__ import annotations

import dataclasses
import logging
from datetime import datetime, timedelta

from gputui.domain.job import BootTime, Job
from gputui.engine.ground import Ground

log = logging.getLogger(__name__)

LEAST = timedelta(seconds=5)
"""By less a clock is taken to be slewed, not set."""
_BEGUN = ("claimed_at", "started_at", "warned_at", "preempted_at")


def move_along(ground: Ground, now: datetime, boot: BootTime) -> None:
    """Move the times of started attempts by as much as the clock was set since."""
    stale = [job.id for job in ground.queue.active if _corrected(job, now, boot) is not job]
    if not stale:
        return
    with ground.store.transaction() as transaction:
        for job_id in stale:
            before = transaction.get(job_id)
            after = _corrected(before, now, boot)
            if before.state.is_active and after is not before:
                transaction.put(after)
                _tell(before, after)
    ground.observe()


def _tell(before: Job, after: Job) -> None:
    by = after.attempts[-1].clock_moved - before.attempts[-1].clock_moved
    if by:
        log.warning("job %d: the clock was set by %.0f s, its time limit goes on", after.id, by.total_seconds())


def _corrected(job: Job, now: datetime, boot: BootTime) -> Job:
    """Return the job, itself where its times are right."""
    attempt = job.attempt
    if attempt is None or attempt.is_over or attempt.started_at is None:
        return job
    if attempt.began is None or attempt.began.boot != boot.boot:  # adopted, or started by an older gputui
        ran = max(now - attempt.started_at, timedelta())
        return job.with_attempt(began=BootTime(boot.boot, boot.seconds - ran.total_seconds()))
    ran = timedelta(seconds=boot.seconds - attempt.began.seconds)
    by = now - ran - attempt.started_at
    return _moved(job, by) if abs(by) >= LEAST else job


def _moved(job: Job, by: timedelta) -> Job:
    attempt = job.attempts[-1]
    times = {name: at + by for name in _BEGUN if (at := getattr(attempt, name)) is not None}
    job = job.with_attempt(**times, clock_moved=attempt.clock_moved + by)
    if job.started_at is not None:
        job = job.evolve(started_at=job.started_at + by)
    if job.stopping is not None:
        killed_at = job.stopping.killed_at
        stopping = dataclasses.replace(job.stopping, at=job.stopping.at + by, killed_at=killed_at and killed_at + by)
        job = job.evolve(stopping=stopping)
    return job
