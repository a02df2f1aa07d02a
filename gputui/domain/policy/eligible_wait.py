"""Eligible wait of a job: the time for which it waited while it could run.

Time does not count while the job is held, before `--begin`, during a back-off, while it waits for another job, or while
it runs. A wait counts for the job's priority at that time and for lower ones: so nothing is gained by waiting at
priority 0 and being raised at the end, and nothing is lost when a priority is raised and lowered again.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from gputui.domain.job import Job, Waited
from gputui.domain.job_spec import JobSpec
from gputui.domain.state import JobState


def eligible_since(job: Job, dependencies_ended_at: datetime | None, now: datetime) -> float:
    """Return the start, in seconds since the epoch, of an uninterrupted wait of the same length.

    `dependencies_ended_at` is the result of `Dependencies.ended_at`.
    """
    spec = job.spec
    if not (job.waited or job.held or job.not_before or spec.begin_at or dependencies_ended_at):
        return min(now, job.waiting_since or job.submitted_at).timestamp()
    return (now - eligible_wait(job, dependencies_ended_at, now)).timestamp()


def eligible_wait(job: Job, dependencies_ended_at: datetime | None, now: datetime) -> timedelta:
    """Return the eligible wait of a waiting job."""
    return counted_wait(job) + _under_way(job, dependencies_ended_at, now)


def counted_wait(job: Job) -> timedelta:
    """Return the past waits that count for the job's priority."""
    return sum((each.time for each in job.waited if each.priority >= job.priority), timedelta())


def end_wait(job: Job, dependencies_ended_at: datetime | None, now: datetime) -> Job:
    """Return the job with its current wait ended; a new one begins now."""
    waited = {each.priority: each.time for each in job.waited}
    waited[job.priority] = waited.get(job.priority, timedelta()) + _under_way(job, dependencies_ended_at, now)
    kept = tuple(Waited(priority, time) for priority, time in sorted(waited.items()) if time)
    return job.evolve(waited=kept, waiting_since=now)


def keep_wait(before: Job, after: Job, dependencies_ended_at: datetime | None, now: datetime) -> Job:
    """Return the changed job with the wait that it keeps; none if it asks for more than before."""
    if before.state is not JobState.PENDING or after.state is not JobState.PENDING:
        return after
    if asks_for_more(before.spec, after.spec):
        return after.evolve(waited=(), waiting_since=now)
    counts_by, then = (  # what decides whether its time counts, and for which priority
        (job.held, job.priority, job.not_before, job.spec.begin_at, job.spec.after, job.spec.after_any)
        for job in (before, after)
    )
    if counts_by == then:
        return after
    kept = end_wait(before, dependencies_ended_at, now)
    return after.evolve(waited=kept.waited, waiting_since=now)


def asks_for_more(before: JobSpec, after: JobSpec) -> bool:
    """Return whether a job asks for more GPUs, more of a GPU, more time or less `nice` than before."""
    demands: list[tuple[float, ...]] = []
    for spec in (before, after):
        gpus, everything = spec.gpus, math.inf if spec.gpus.everything else 0
        time = spec.time_limit.total_seconds() if spec.time_limit else math.inf
        memory = (gpus.memory or 0, gpus.free_memory or 0, not gpus.share)
        demands.append((max(gpus.minimum, everything), max(gpus.maximum, everything), *memory, time, -spec.nice))
    return any(now_asked > asked for asked, now_asked in zip(*demands, strict=True))


def _under_way(job: Job, dependencies_ended_at: datetime | None, now: datetime) -> timedelta:
    """Return the length of the current wait; zero before it begins."""
    if job.held:
        return timedelta()
    began = job.waiting_since or job.submitted_at
    for gate in (job.not_before, job.spec.begin_at, dependencies_ended_at):
        if gate is not None and gate > began:
            began = gate
    return max(timedelta(), now - began)
