"""Compensates for wall-clock jumps by shifting the times of running attempts, so that limits count real time.

Each attempt keeps `began`, its start on the monotonic clock. If the wall clock differs by `SMALLEST_JUMP` or more, it
was set, perhaps while no scheduler ran: the attempt's times are shifted by the difference.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from msgspec.structs import replace

from gputui.domain.attempt import BootTime
from gputui.domain.job import Job
from gputui.domain.log_fields import about
from gputui.engine.tick.context import TickContext

log = logging.getLogger(__name__)

SMALLEST_JUMP = timedelta(seconds=5)
"""Smallest difference that counts as a jump; less is slewing."""
_BEGUN = ("claimed_at", "started_at", "warned_at", "preempted_at", "suspended_at")


def shift_times(context: TickContext, now: datetime, boot: BootTime) -> None:
    """Shift the times of started attempts by the amount that the clock was set."""
    stale = [job.id for job in context.queue.active if _corrected(job, now, boot) is not job]
    if not stale:
        return
    with context.store.transaction() as transaction:
        for job_id in stale:
            before = transaction.get(job_id)
            after = _corrected(before, now, boot)
            if before.state.is_active and after is not before:
                transaction.put(after)
                _tell(before, after)
    context.refresh()


def _tell(before: Job, after: Job) -> None:
    by = after.attempts[-1].clock_moved - before.attempts[-1].clock_moved
    if by:
        text = "job %d: the clock was set by %.0f s, its time limit continues"
        log.warning(text, after.id, by.total_seconds(), extra=about(after.id))


def _corrected(job: Job, now: datetime, boot: BootTime) -> Job:
    """Return the job with corrected times; the same object if they are right."""
    attempt = job.attempt
    if attempt is None or attempt.is_over or attempt.started_at is None:
        return job
    if attempt.began is None or attempt.began.boot != boot.boot:  # adopted, or started by an older gputui
        ran = max(now - attempt.started_at, timedelta())
        return job.with_attempt(began=BootTime(boot.boot, boot.seconds - ran.total_seconds()))
    ran = timedelta(seconds=boot.seconds - attempt.began.seconds)
    by = now - ran - attempt.started_at
    return _moved(job, by) if abs(by) >= SMALLEST_JUMP else job


def _moved(job: Job, by: timedelta) -> Job:
    attempt = job.attempts[-1]
    times = {name: at + by for name in _BEGUN if (at := getattr(attempt, name)) is not None}
    suspensions = tuple((begin + by, end + by) for begin, end in attempt.suspensions)
    job = job.with_attempt(**times, suspensions=suspensions, clock_moved=attempt.clock_moved + by)
    if job.started_at is not None:
        job = job.evolve(started_at=job.started_at + by)
    if job.stopping is not None:
        killed_at = job.stopping.killed_at
        stopping = replace(job.stopping, at=job.stopping.at + by, killed_at=killed_at and killed_at + by)
        job = job.evolve(stopping=stopping)
    return job
