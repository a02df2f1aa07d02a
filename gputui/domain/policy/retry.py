"""Retries: whether a job whose attempt has ended is finished, retried after a pause, or held.

Attempts that fail within seconds are fast failures; many in a row mean that something is broken. A user's retries are
never withheld: the guard pauses the other jobs of an image or a tenant. It reads only stored jobs; jobs from before the
last release of the image or tenant do not count.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.errors import Blame, Cause, CauseCode
from gputui.domain.job import Attempt, Job, Stopping
from gputui.domain.job_spec import DEFAULT_BACKOFF
from gputui.domain.settings import SchedulerSettings
from gputui.domain.state import JobState
from gputui.domain.text import format_limit, format_size, plain, plural


def is_fast_failure(attempt: Attempt, settings: SchedulerSettings) -> bool:
    """Return whether the job itself failed, within seconds of its start."""
    if attempt.cause is None or attempt.cause.blame is not Blame.JOB:
        return False
    if attempt.cause.code is CauseCode.END_UNKNOWN:  # nobody knows whether it failed, or how long it ran
        return False
    if attempt.started_at is None or attempt.ended_at is None:
        return False
    return attempt.ended_at - attempt.started_at < settings.fast_failure


def repeated_failures(job: Job, settings: SchedulerSettings) -> str:
    """Return a sentence for a job whose latest attempts all failed fast; empty when fewer than `fast_failures` did."""
    row = 0
    for attempt in reversed(job.attempts):
        if not attempt.charged or not is_fast_failure(attempt, settings):
            break
        row += 1
    if not settings.fast_failures or row < settings.fast_failures:
        return ""
    return f"failed {row} times in a row, each within {format_limit(settings.fast_failure)}"


class _Outcome(Struct, frozen=True):
    at: datetime
    job: Job
    is_fast: bool


_Key = tuple[str, int | None, str]
"""`image` or `tenant`, submitter, and its name: nobody can pause another user's jobs by failing, or is told how they
failed."""


class FastFailureGuard(Struct, frozen=True):
    """Images and tenants of a user whose latest jobs all failed fast, each with a sentence."""

    paused: Mapping[_Key, str] = field(default_factory=dict)

    @classmethod
    def of(cls, jobs: Iterable[Job], settings: SchedulerSettings) -> FastFailureGuard:
        if not settings.fast_failing_jobs:
            return cls()
        groups: dict[_Key, list[_Outcome]] = defaultdict(list)
        released: dict[_Key, datetime] = {}
        for job in jobs:
            outcome = _outcome(job, settings) if job.attempts else None
            for key in _keys(job):
                if job.released_at is not None:
                    released[key] = max(job.released_at, released.get(key, job.released_at))
                if outcome is not None:
                    groups[key].append(outcome)
        return cls(_paused(groups, released, settings))

    def __bool__(self) -> bool:
        return bool(self.paused)

    def reason(self, job: Job) -> str | None:
        """Return why the job waits with its image or its tenant; None when it does not."""
        return next((self.paused[key] for key in _keys(job) if key in self.paused), None)


def _keys(job: Job) -> tuple[_Key, ...]:
    tenant = ("tenant", job.submitted_uid, job.spec.tenant)
    if not job.spec.image:  # a host job
        return (tenant,)
    return ("image", job.submitted_uid, job.spec.image), tenant


def _outcome(job: Job, settings: SchedulerSettings) -> _Outcome | None:
    """Return how the job ended; None while it has retries left, or where the machine or a user ended it."""
    attempt = job.attempts[-1]
    if not job.state.is_terminal or attempt.ended_at is None:
        return None
    if attempt.cause is not None and attempt.cause.blame is not Blame.JOB:
        return None
    return _Outcome(attempt.ended_at, job, is_fast_failure(attempt, settings))


def _paused(
    groups: Mapping[_Key, list[_Outcome]], released: Mapping[_Key, datetime], settings: SchedulerSettings
) -> dict[_Key, str]:
    many = settings.fast_failing_jobs
    paused = {}
    for key, outcomes in groups.items():
        if len(outcomes) < many:
            continue
        latest = heapq.nlargest(many, outcomes, key=lambda outcome: (outcome.at, outcome.job.id))
        since = released.get(key)
        if all(outcome.is_fast and (since is None or outcome.at > since) for outcome in latest):
            last = latest[0]
            cause = next((each.cause.text for each in reversed(last.job.attempts) if each.cause), "")
            paused[key] = (
                f"{key[0]} {key[2]} is paused, since its last {settings.fast_failing_jobs} jobs failed within "
                f"{format_limit(settings.fast_failure)} (job {last.job.shown_id}: {cause}); release one to continue"
            )
    return paused


JITTER = 0.1
"""Maximum random part added to a pause, so that jobs that failed together do not all return together."""

_CLOCKS_DIFFER = timedelta(minutes=1)
"""How far ahead of this clock an end may be that the engine's clock has told."""
_BROKE_ITS_GPUS = frozenset({CauseCode.GPU_LOST, CauseCode.GPU_SETUP_FAILED})


def backoff(first: timedelta, failures: int, cap: timedelta, seed: str) -> timedelta:
    """Return the pause after that many failures in a row: first x 2^(failures - 1), capped, and up to a tenth more.

    The jitter comes from a hash of `seed`, so that the same failure always gives the same pause.
    """
    import hashlib  # loads OpenSSL, which few commands need

    pause = min(cap.total_seconds(), first.total_seconds() * 2.0 ** min(failures - 1, 40))
    share = int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=4).digest()) / 2**32
    return timedelta(seconds=pause * (1 + JITTER * share))


def pause_end(job: Job, now: datetime, cap: timedelta) -> datetime | None:
    """Return the end of the pause that the job is in; None outside of one.

    A pause over the cap, or after an attempt with its end in the future, is no more: the clock was set back.
    """
    at, last = job.not_before, job.attempt
    if at is None or not now < at <= now + cap * (1 + JITTER):
        return None
    is_past = last is None or last.ended_at is None or last.ended_at <= now + _CLOCKS_DIFFER
    return at if is_past else None


def cancel_cause(job: Job) -> Cause:
    return Cause(CauseCode.CANCELLED, f"cancelled by {job.cancelled_by or 'a user'}")


def conclude(job: Job, cause: Cause | None, exit_code: int | None, at: datetime, settings: SchedulerSettings) -> Job:
    """Return the job after its last attempt ended at `at`, because of `cause` (None: it succeeded)."""
    # the end of a job that was told to stop may result from that; lost containers count as well
    may_be_ours = cause is None or cause.blame is Blame.JOB or cause.code is CauseCode.CONTAINER_LOST
    if job.stopping is not None and may_be_ours and not _stands(job, job.stopping, cause):
        cause = job.stopping.cause
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
    is_retried = cause.blame is Blame.JOB and (not job.spec.retry_on or str(job.exit_code) in job.spec.retry_on)
    if (is_retried or is_asked_for(job, cause)) and job.charged_attempts <= job.spec.retries:
        seed = f"{job.id}:{len(job.attempts)}"
        pause = backoff(job.spec.backoff, job.charged_attempts, settings.backoff_cap, seed)
        return again(job.evolve(waited=()), at + pause, at)  # it had its turn
    if note := repeated_failures(job, settings):
        job = job.evolve(cause=replace(cause, text=f"{cause.text}; {note}"))
    return job.to(_END.get(cause.code, JobState.FAILED))


def is_asked_for(job: Job, cause: Cause) -> bool:
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
        named = tuple(uuid for uuid in attempt.gpus if uuid in cause.gpus or uuid in cause.text)
        at_fault = named or (attempt.gpus if len(attempt.gpus) == 1 else ())  # else no single GPU can be blamed
        job = job.evolve(avoid_gpus=tuple(dict.fromkeys((*job.avoid_gpus, *at_fault))))
    failures = 0
    for each in reversed(job.attempts):
        why = each.cause
        if why is None or why.blame is not Blame.INFRASTRUCTURE or why.code is CauseCode.PREEMPTED:
            break
        failures += 1
    pause = backoff(DEFAULT_BACKOFF, failures, settings.backoff_cap, f"{job.id}:{len(job.attempts)}")
    waiting = again(job, at + pause, at)
    if failures < settings.infrastructure_retries:
        return waiting
    reason = f"held after {plural(failures, 'start')} that the machine failed; the last: {cause.text}"
    return waiting.evolve(held=True, hold_reason=reason)


_TAIL = 50
"""Number of last lines of an attempt's output that are searched."""
_SIGNS = (b"CUDA out of memory", b"torch.OutOfMemoryError", b"OutOfMemoryError: CUDA", b"CUBLAS_STATUS_ALLOC_FAILED")
_SHOWN = 160


def may_have_run_out(job: Job, cause: Cause | None) -> bool:
    """Return whether its ended attempt may have run out of GPU memory: it had GPUs, failed, and was not told to end."""
    if cause is None or cause.blame is not Blame.JOB:
        return False
    if cause.code in {CauseCode.OUT_OF_MEMORY, CauseCode.END_UNKNOWN}:
        return False
    return bool(job.gpus) and job.stopping is None


def find_sign(lines: Iterable[bytes]) -> str:
    """Return the last line that reports it, without control characters; empty if there is none."""
    found = [line for line in deque(lines, _TAIL) if any(sign in line for sign in _SIGNS)]
    return plain(found[-1][:4096].decode(errors="replace").strip(), _SHOWN) if found else ""


def ask_for_more(job: Job, totals: Mapping[str, int]) -> Job:
    """Return the job with its request raised by its step, if it waits again after running out of GPU memory.

    `totals` are the bytes of all known GPUs by UUID; the request never exceeds the largest.
    """
    step, cause = job.spec.gpu_memory_step, job.cause
    if not step or job.state is not JobState.PENDING or cause is None or cause.code is not CauseCode.GPU_OUT_OF_MEMORY:
        return job
    had = [totals[uuid] for uuid in job.attempts[-1].gpus if uuid in totals]
    before = job.spec.gpus.memory or min(had, default=0)
    after = min(before + step, max((before, *totals.values())) if totals else before + step)
    words = f"; the next attempt asks for {format_size(after)} per GPU"
    if after <= before:
        words = f"; no GPU here has more than {format_size(before)}, so the next attempt asks for no more"
    cause = replace(cause, text=cause.text + words)
    spec = replace(job.spec, gpus=replace(job.spec.gpus, memory=after)) if after > before else job.spec
    return job.evolve(spec=spec, cause=cause).with_attempt(cause=cause)
