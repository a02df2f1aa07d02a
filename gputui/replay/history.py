"""The finished jobs of a server as a trace, with their real schedule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gputui.domain.errors import CauseCode
from gputui.domain.job import Attempt, Job, JobState
from gputui.domain.job_spec import JobId
from gputui.domain.policy.planning_context import run_kind
from gputui.replay.trace import Ran, TraceJob, rebased


@dataclass(frozen=True)
class JobHistory:
    """Finished jobs that held GPUs, with facts on how reliable their replay is."""

    jobs: tuple[TraceJob, ...]
    """Jobs in the order of the times at which they could have started, the first at 0."""
    starts: tuple[float, ...]
    """Seconds at which each of them really started."""
    lost: tuple[tuple[int, float], ...]
    """Preemptions of each, and the GPU-seconds lost by them."""
    since: datetime
    until: datetime
    """First possible start, and last end."""
    failed: int
    """Number of jobs that held GPUs and did not complete."""
    left_out: int
    """Number of jobs that never held GPUs."""
    shared: int
    """Number of jobs that shared their GPUs."""
    gpus: int
    """Number of different GPUs that they held."""

    @property
    def span(self) -> timedelta:
        """Time from the first submission to the last."""
        return timedelta(seconds=self.jobs[-1].submit)

    def as_it_was(self, jobs: Sequence[TraceJob]) -> list[Ran]:
        """Return the real schedule of these jobs, with the limits they are replayed with."""
        each = zip(jobs, self.starts, self.lost, strict=True)
        return [Ran(job, at, at + job.duration, job.gpus, *lost) for job, at, lost in each]


def job_history(jobs: Iterable[Job]) -> JobHistory | None:
    """Return the history of these finished jobs; None if none of them ever held a GPU."""
    finished = [job for job in jobs if job.state.is_terminal]
    ends = {job.id: job.ended_at for job in finished if job.ended_at is not None}
    held = [job for job in finished if _held(job)]
    if not held:
        return None
    rows = sorted((could_start(job, ends), job.id, job) for job in held)
    first = rows[0][0]
    trace = rebased(_trace_job(job, (at - first).total_seconds()) for at, _, job in rows)
    starts = [((_kept(job)[0].started_at or at) - first).total_seconds() for at, _, job in rows]
    return JobHistory(
        jobs=tuple(trace),
        starts=tuple(starts),
        lost=tuple(_lost(job) for _, _, job in rows),
        since=first,
        until=max(attempt.ended_at or first for job in held for attempt in _held(job)),
        failed=sum(job.state is not JobState.COMPLETED for job in held),
        left_out=sum(job.count for job in finished) - len(held),
        shared=sum(job.spec.gpus.share for job in held),
        gpus=len({uuid for job in held for attempt in _held(job) for uuid in attempt.gpus}),
    )


def could_start(job: Job, ends: Mapping[JobId, datetime]) -> datetime:
    """Return when the job lacked only GPUs: submitted, begin time reached, dependencies ended; at most its start."""
    moments = [job.submitted_at, *([job.spec.begin_at] if job.spec.begin_at else [])]
    moments += [ends[other] for other in (*job.spec.after, *job.spec.after_any) if other in ends]
    started = _held(job)[0].started_at
    return min(max(moments), started) if started else max(moments)


def _held(job: Job) -> list[Attempt]:
    """Return its ended attempts that held GPUs."""
    return [attempt for attempt in job.attempts if attempt.gpu_count and attempt.started_at and attempt.ended_at]


def _kept(job: Job) -> list[Attempt]:
    """Return those that were not preempted; all if there are no others.

    A replay decides for itself which jobs are preempted, and then runs the work again.
    """
    held = _held(job)
    kept = [each for each in held if each.cause is None or each.cause.code is not CauseCode.PREEMPTED]
    return kept or held


def _lost(job: Job) -> tuple[int, float]:
    """Return how often it was preempted before it ran to its end, and the GPU-seconds lost."""
    kept = _kept(job)
    lost = [attempt for attempt in _held(job) if attempt not in kept]
    return len(lost), sum(attempt.gpu_count * _seconds(attempt) for attempt in lost)


def _trace_job(job: Job, submit: float) -> TraceJob:
    """Return the job with the width of its last run, and the duration of all its attempts except preempted ones."""
    attempts = _kept(job)
    gpus = attempts[-1].gpu_count
    work = sum(attempt.gpu_count * _seconds(attempt) for attempt in attempts)
    limit = job.spec.time_limit
    return TraceJob(
        number=0,
        submit=submit,
        duration=max(1.0, work / gpus),
        gpus=gpus,
        tenant=job.spec.tenant,
        priority=job.priority,
        nice=job.spec.nice,
        stated=limit.total_seconds() if limit else None,
        name=run_kind(job)[1],
        preemptible=job.spec.preemptible,
        ended_well=job.state is JobState.COMPLETED,
    )


def _seconds(attempt: Attempt) -> float:
    if attempt.started_at is None or attempt.ended_at is None:
        return 0.0
    return max(0.0, (attempt.ended_at - attempt.started_at).total_seconds())
