"""Eligible wait of a job: the time for which it waited while it could run.

Time does not count while the job is held, before `--begin`, during a back-off, while a job that it waits for goes on,
and while it runs. A wait counts for the priority that the job had then, and for lower ones: so nothing is gained by
waiting at priority 0 and being raised at the end, and nothing is lost by a priority that is raised and lowered again.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from gputui.domain.job import Job, JobSpec, Waited
from gputui.domain.state import JobState


def eligible_since(job: Job, dependencies_ended_at: datetime | None, now: datetime) -> float:
    """Return the second since the epoch since which the job would have waited as long, had it waited without a break.

    `dependencies_ended_at` is what `Dependencies.ended_at` returns.
    """
    spec = job.spec
    if not (job.waited or job.held or job.not_before or spec.begin_at or dependencies_ended_at):
        return min(now, job.waiting_since or job.submitted_at).timestamp()
    return (now - eligible_wait(job, dependencies_ended_at, now)).timestamp()


def eligible_wait(job: Job, dependencies_ended_at: datetime | None, now: datetime) -> timedelta:
    """Return the eligible wait of a waiting job."""
    return counted_wait(job) + _under_way(job, dependencies_ended_at, now)


def counted_wait(job: Job) -> timedelta:
    """Return the waits that are over and count for the job's priority."""
    return sum((each.time for each in job.waited if each.priority >= job.priority), timedelta())


def end_wait(job: Job, dependencies_ended_at: datetime | None, now: datetime) -> Job:
    """Return the job, whose wait under way is over: a new one begins now."""
    waited = {each.priority: each.time for each in job.waited}
    waited[job.priority] = waited.get(job.priority, timedelta()) + _under_way(job, dependencies_ended_at, now)
    kept = tuple(Waited(priority, time) for priority, time in sorted(waited.items()) if time)
    return job.evolve(waited=kept, waiting_since=now)


def keep_wait(before: Job, after: Job, dependencies_ended_at: datetime | None, now: datetime) -> Job:
    """Return the changed job with the wait that it keeps: none where it asks for more than before."""
    if before.state is not JobState.PENDING or after.state is not JobState.PENDING:
        return after
    if asks_for_more(before.spec, after.spec):
        return after.evolve(waited=(), waiting_since=now)
    if _counts_by(before) == _counts_by(after):
        return after
    kept = end_wait(before, dependencies_ended_at, now)
    return after.evolve(waited=kept.waited, waiting_since=now)


def asks_for_more(before: JobSpec, after: JobSpec) -> bool:
    """Return whether a job asks for more GPUs, more of a GPU, more time or less `nice` than before."""
    pairs = zip(_demands(after), _demands(before), strict=True)
    return any(now_asked > asked for now_asked, asked in pairs)


def _demands(spec: JobSpec) -> tuple[float, ...]:
    """Return what it asks for in numbers, each more than a smaller one."""
    gpus, everything = spec.gpus, math.inf if spec.gpus.everything else 0
    time = spec.time_limit.total_seconds() if spec.time_limit else math.inf
    memory = (gpus.memory or 0, gpus.free_memory or 0, not gpus.share)
    return (max(gpus.minimum, everything), max(gpus.maximum, everything), *memory, time, -spec.nice)


def _counts_by(job: Job) -> tuple[object, ...]:
    """Return the facts that decide whether its time counts, and for which priority."""
    return job.held, job.priority, job.not_before, job.spec.begin_at, job.spec.after, job.spec.after_any


def _under_way(job: Job, dependencies_ended_at: datetime | None, now: datetime) -> timedelta:
    if job.held:
        return timedelta()
    return max(timedelta(), now - _began(job, dependencies_ended_at))


def _began(job: Job, dependencies_ended_at: datetime | None) -> datetime:
    """Return when the wait under way began, or will."""
    began = job.waiting_since or job.submitted_at
    for gate in (job.not_before, job.spec.begin_at, dependencies_ended_at):
        if gate is not None and gate > began:
            began = gate
    return began
