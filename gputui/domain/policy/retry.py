"""Retries: whether a job whose attempt has ended is finished, retried after a pause, or held."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from msgspec.structs import replace

from gputui.domain.attempt import Attempt
from gputui.domain.cause import Blame, Cause, CauseCode
from gputui.domain.job import Job, Stopping
from gputui.domain.job_spec import DEFAULT_BACKOFF
from gputui.domain.policy.fast_failures import repeated_failures
from gputui.domain.settings import SchedulerSettings
from gputui.domain.state import JobState
from gputui.domain.units import plural

JITTER = 0.1
"""Maximum random part added to a pause, so that jobs that failed together do not all return together."""

_BROKE_ITS_GPUS = frozenset({CauseCode.GPU_LOST, CauseCode.GPU_SETUP_FAILED})


def backoff(first: timedelta, failures: int, cap: timedelta, seed: str) -> timedelta:
    """Return the pause after that many failures in a row: first x 2^(failures - 1), capped, and up to a tenth more.

    The jitter comes from a hash of `seed`, so that the same failure always gives the same pause.
    """
    import hashlib  # loads OpenSSL, which few commands need

    pause = min(cap.total_seconds(), first.total_seconds() * 2.0 ** min(failures - 1, 40))
    share = int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=4).digest()) / 2**32
    return timedelta(seconds=pause * (1 + JITTER * share))


def cancel_cause(job: Job) -> Cause:
    """Return the cause of the end of a job that a user cancelled."""
    return Cause(CauseCode.CANCELLED, f"cancelled by {job.cancelled_by or 'a user'}")


def conclude(job: Job, cause: Cause | None, exit_code: int | None, at: datetime, settings: SchedulerSettings) -> Job:
    """Return the job after its last attempt ended at `at`, because of `cause` (None: it succeeded)."""
    if job.stopping is not None and _may_be_our_doing(cause) and not _stands(job, job.stopping, cause):
        cause = job.stopping.cause  # its exit follows from our own stop request
    free = cause is not None and cause.blame in {Blame.INFRASTRUCTURE, Blame.OPERATOR} and not is_asked_for(job, cause)
    ended = job.with_attempt(ended_at=at, exit_code=exit_code, cause=cause, charged=not free)
    ended = ended.evolve(
        exit_code=exit_code, cause=cause, ended_at=at, stopping=None, placed=None, signals=(), suspended=False
    )
    if job.requeue_requested:
        return requeued(ended, at)
    if job.cancel_requested:
        if cause is not None and cause.code is CauseCode.PREEMPTED:
            ended = ended.evolve(cause=cancel_cause(job))
        return ended.to(JobState.CANCELLED, cancel_requested=False)
    if cause is None:
        return ended.to(JobState.COMPLETED)
    return _failed(ended, cause, at, settings)


def _may_be_our_doing(cause: Cause | None) -> bool:
    """Return whether the end of a job that was told to stop may result from that; lost containers count as well."""
    return cause is None or cause.blame is Blame.JOB or cause.code is CauseCode.CONTAINER_LOST


def _stands(job: Job, stopping: Stopping, cause: Cause | None) -> bool:
    """Return whether its own end stands: no user asked for the stop, and it completed or may have completed.

    Who submits a job as preemptible has agreed that it is run again.
    """
    if stopping.cause.blame is not Blame.INFRASTRUCTURE or job.cancel_requested:
        return False
    is_unknown = cause is not None and cause.code is CauseCode.END_UNKNOWN
    return cause is None or (is_unknown and stopping.cause.code is not CauseCode.PREEMPTED)


def requeued(job: Job, at: datetime) -> Job:
    """Return the job, put back in the queue by a user; its retries and the GPUs to avoid are reset.

    It keeps its eligible wait, unless it ran until its time limit: then it had its turn.
    """
    return again(
        job.evolve(
            attempts=tuple(replace(attempt, charged=False) for attempt in job.attempts),
            requeue_requested=False,
            avoid_gpus=(),
            waited=() if job.state is JobState.TIMEOUT else job.waited,
        ),
        None,
        at,
    )


def again(job: Job, not_before: datetime | None, since: datetime | None) -> Job:
    """Return the job, back in the queue since then with the waits it had before."""
    back = job.to(JobState.PENDING, not_before=not_before, ended_at=None, stopping=None, cancel_requested=False)
    return back.evolve(waiting_since=since)


def _failed(job: Job, cause: Cause, at: datetime, settings: SchedulerSettings) -> Job:
    if cause.code is CauseCode.PREEMPTED:
        return again(job.to(JobState.PREEMPTED), None, at)
    if cause.blame is Blame.INFRASTRUCTURE:
        return _free_retry(job, cause, at, settings)
    if is_retried(job, cause) and job.charged_attempts <= job.spec.retries:
        seed = f"{job.id}:{len(job.attempts)}"
        pause = backoff(job.spec.backoff, job.charged_attempts, settings.backoff_cap, seed)
        return again(job.evolve(waited=()), at + pause, at)  # it had its turn
    if note := repeated_failures(job, settings):
        job = job.evolve(cause=replace(cause, text=f"{cause.text}; {note}"))
    return job.to(_END.get(cause.code, JobState.FAILED))


def is_retried(job: Job, cause: Cause) -> bool:
    """Return whether the job wants a retry after this, as long as retries are left."""
    if not job.spec.retry_on:
        return cause.blame is Blame.JOB
    return is_asked_for(job, cause) or (cause.blame is Blame.JOB and str(job.exit_code) in job.spec.retry_on)


def is_asked_for(job: Job, cause: Cause) -> bool:
    """Return whether a word of its `retry_on` matches this cause."""
    return any(cause.code in RETRY_WORDS.get(word, ()) for word in job.spec.retry_on)


RETRY_WORDS: Mapping[str, frozenset[CauseCode]] = {
    "EXIT": frozenset({CauseCode.NON_ZERO_EXIT}),
    "SIGNAL": frozenset({CauseCode.SIGNALLED}),
    "OOM": frozenset({CauseCode.OUT_OF_MEMORY, CauseCode.GPU_OUT_OF_MEMORY}),
    "GPU_OOM": frozenset({CauseCode.GPU_OUT_OF_MEMORY}),
    "TIMEOUT": frozenset({CauseCode.TIME_LIMIT}),
}
"""Words allowed in `retry_on` besides exit codes."""

_END = {
    CauseCode.OUT_OF_MEMORY: JobState.OUT_OF_MEMORY,
    CauseCode.GPU_OUT_OF_MEMORY: JobState.OUT_OF_MEMORY,
    CauseCode.TIME_LIMIT: JobState.TIMEOUT,
    CauseCode.CANCELLED: JobState.CANCELLED,
}


def _free_retry(job: Job, cause: Cause, at: datetime, settings: SchedulerSettings) -> Job:
    attempt = job.attempts[-1]
    if cause.code in _BROKE_ITS_GPUS:
        job = job.evolve(avoid_gpus=tuple(dict.fromkeys((*job.avoid_gpus, *_at_fault(cause, attempt)))))
    failures = _infrastructure_failures(job)
    pause = backoff(DEFAULT_BACKOFF, failures, settings.backoff_cap, f"{job.id}:{len(job.attempts)}")
    waiting = again(job, at + pause, at)
    if failures < settings.infrastructure_retries:
        return waiting
    reason = f"held after {plural(failures, 'start')} that the machine failed; the last: {cause.text}"
    return waiting.evolve(held=True, hold_reason=reason)


def _at_fault(cause: Cause, attempt: Attempt) -> tuple[str, ...]:
    """Return the attempt's GPUs that the cause names, or its only GPU; empty if no single GPU can be blamed."""
    named = tuple(uuid for uuid in attempt.gpus if uuid in cause.gpus or uuid in cause.text)
    return named or (attempt.gpus if len(attempt.gpus) == 1 else ())


def _infrastructure_failures(job: Job) -> int:
    """Return the number of latest consecutive attempts that failed because of the infrastructure."""
    count = 0
    for attempt in reversed(job.attempts):
        cause = attempt.cause
        if cause is None or cause.blame is not Blame.INFRASTRUCTURE or cause.code is CauseCode.PREEMPTED:
            break
        count += 1
    return count
