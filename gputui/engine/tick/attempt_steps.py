"""Jobs after each step of an attempt: running, adopted, returned to the queue, finished, vanished."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from gputui.domain.attempt import Attempt, BootTime
from gputui.domain.cause import Cause, CauseCode
from gputui.domain.container import ContainerRecord
from gputui.domain.errors import NotFoundError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.policy.eligible_wait import end_wait
from gputui.domain.policy.gpus import out_of_memory
from gputui.domain.policy.retry import again, conclude
from gputui.domain.settings import SchedulerSettings
from gputui.domain.state import JobState
from gputui.engine.files.logs import log_path
from gputui.engine.tick.failure_signs import NO_SIGNS, FailureSigns
from gputui.ports import Transaction

log = logging.getLogger(__name__)


def running(
    job: Job,
    container_id: str,
    started_at: datetime,
    notes: tuple[str, ...] = (),
    began: BootTime | None = None,
) -> Job:
    """Return the job after its attempt's container was started."""
    started = job.with_attempt(
        container_id=container_id, started_at=started_at, notes=notes, clock_moved=timedelta(), began=began
    )
    return started.to(JobState.RUNNING, started_at=started_at, not_before=None, exit_code=None, cause=None)


def adopted(job: Job, record: ContainerRecord, now: datetime) -> Job:
    """Return the job with the container that was found running for it."""
    started_at = record.started_at or now
    if job.state is JobState.PENDING:  # its start outlived the scheduler that began it
        attempt = Attempt(record.attempt, record.gpus, claimed_at=started_at)
        job = with_wait_ended(job, started_at).to(JobState.CONFIGURING, attempts=(*job.attempts, attempt))
    return running(job.with_attempt(gpus=record.gpus, ports=record.ports), record.id, started_at)


def with_wait_ended(job: Job, at: datetime) -> Job:
    """Return the job with its wait ended now; waits for other jobs do not count, since their ends are unknown here."""
    depends = job.spec.after or job.spec.after_any
    return end_wait(job, at if depends else None, at)


def given_back(job: Job) -> Job:
    """Return the job to the queue as if its interrupted start had never happened; frees the attempt's number."""
    attempt = job.attempt
    is_dropped = attempt is not None and not attempt.is_over
    kept = job.attempts[:-1] if is_dropped else job.attempts
    since = (attempt.claimed_at if attempt and is_dropped else None) or job.waiting_since
    back = again(job.evolve(attempts=kept), job.not_before, since)
    return back.evolve(cancel_requested=job.cancel_requested)


def finished(
    job: Job, record: ContainerRecord, now: datetime, settings: SchedulerSettings, signs: FailureSigns = NO_SIGNS
) -> Job:
    """Return the job after its container ended; `signs` are the output lines that say why it failed."""
    at = record.ended_at or now
    attempt = job.attempts[-1]
    # use the runtime's time: ours is from the answer to the start, when a short job may already have ended
    started_at = record.started_at + attempt.clock_moved if record.started_at else attempt.started_at
    job = job.with_attempt(
        container_id=record.id,
        started_at=started_at,
        log_path=log_path(job.id, attempt.number),
        error=signs.error,
        notes=(*attempt.notes, *record.notes),
    ).evolve(started_at=started_at)
    cause = record.cause
    if signs.memory:
        cause = out_of_memory.out_of_memory_cause(signs.memory, record.exit_code)
    return conclude(job, cause, record.exit_code, at, settings)


def vanished(job: Job, now: datetime, settings: SchedulerSettings) -> Job:
    """Return the job after its container was found gone: whether it had finished its work is unknown."""
    if job.spec.is_host:  # it may still run, without its directory
        words = "its directory in attempts/ is gone, so its end is unknown"
    else:
        words = "its container was removed or lost by the engine before its end was seen, so its end is unknown"
    return conclude(job, Cause(CauseCode.END_UNKNOWN, words), None, now, settings)


def under_way(transaction: Transaction, job_id: JobId, number: int) -> Job | None:
    """Return the job if that attempt is still active in the store; else None."""
    try:
        job = transaction.get(job_id)
    except NotFoundError:
        return None
    attempt = job.attempt
    current = attempt is not None and not attempt.is_over and attempt.number == number
    return job if current and job.state.is_active else None
