"""A server's own finished jobs as a trace: what came when, and how it was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gputui.domain.job import Attempt, Job, JobId
from gputui.domain.state import JobState
from gputui.replay.policies import Ran
from gputui.replay.trace import TraceJob, rebased


@dataclass(frozen=True)
class History:
    """The finished jobs that held GPUs, and what to know about them before their replay is believed."""

    jobs: tuple[TraceJob, ...]
    """By the time they could have started, the first at 0."""
    starts: tuple[float, ...]
    """When each of them really started."""
    since: datetime
    until: datetime
    """The first could have started then, and the last ended."""
    failed: int
    """Those that held GPUs and did not end well."""
    left_out: int
    """Those that never held any."""
    shared: int
    """Those that shared theirs."""
    gpus: int
    """How many different GPUs they had."""

    @property
    def span(self) -> timedelta:
        """From the first submission to the last."""
        return timedelta(seconds=self.jobs[-1].submit)

    def as_it_was(self, jobs: Sequence[TraceJob]) -> list[Ran]:
        """The schedule that really was, of these very jobs with the limits they are replayed with."""
        pairs = zip(jobs, self.starts, strict=True)
        return [Ran(job, at, at + job.duration, job.gpus) for job, at in pairs]


def of(jobs: Iterable[Job]) -> History | None:
    """The history that these finished jobs make; None when none of them ever held a GPU."""
    finished = [job for job in jobs if job.state.is_terminal]
    ends = {job.id: job.ended_at for job in finished if job.ended_at is not None}
    held = [job for job in finished if _held(job)]
    if not held:
        return None
    rows = sorted((could_start(job, ends), job.id, job) for job in held)
    first = rows[0][0]
    trace = rebased(_trace_job(job, (at - first).total_seconds()) for at, _, job in rows)
    starts = [((_held(job)[0].started_at or at) - first).total_seconds() for at, _, job in rows]
    return History(
        jobs=tuple(trace),
        starts=tuple(starts),
        since=first,
        until=max(attempt.ended_at or first for job in held for attempt in _held(job)),
        failed=sum(job.state is not JobState.COMPLETED for job in held),
        left_out=len(finished) - len(held),
        shared=sum(job.spec.gpus.share for job in held),
        gpus=len({uuid for job in held for attempt in _held(job) for uuid in attempt.gpus}),
    )


def could_start(job: Job, ends: Mapping[JobId, datetime]) -> datetime:
    """When nothing but GPUs was missing: submitted, its time come, what it depends on ended. Never after its start."""
    moments = [job.submitted_at, *([job.spec.begin_at] if job.spec.begin_at else [])]
    moments += [ends[other] for other in (*job.spec.after, *job.spec.after_any) if other in ends]
    started = _held(job)[0].started_at
    return min(max(moments), started) if started else max(moments)


def _held(job: Job) -> list[Attempt]:
    """Its attempts that held GPUs and are over."""
    return [attempt for attempt in job.attempts if attempt.gpus and attempt.started_at and attempt.ended_at]


def _trace_job(job: Job, submit: float) -> TraceJob:
    """As wide as it ran last, for as long as all its attempts together."""
    attempts = _held(job)
    gpus = len(attempts[-1].gpus)
    work = sum(len(attempt.gpus) * _seconds(attempt) for attempt in attempts)
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
    )


def _seconds(attempt: Attempt) -> float:
    if attempt.started_at is None or attempt.ended_at is None:
        return 0.0
    return max(0.0, (attempt.ended_at - attempt.started_at).total_seconds())
