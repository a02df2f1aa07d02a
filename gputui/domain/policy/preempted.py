"""What the jobs' own records say about preemption: how often, how lately, for whom; and who may be preempted now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.gpu import GpuState, GpuView
from gputui.domain.job import CLASSES, Attempt, Job, JobId, whole_class
from gputui.domain.policy.place import Places
from gputui.domain.policy.preempt import Candidate, Victims
from gputui.domain.policy.settling import SETTLING, masks
from gputui.domain.settings import PolicySettings, Settings
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState, moment

HOUR = timedelta(hours=1)


def victims(snapshot: Snapshot, settings: PolicySettings, places: Places, now: datetime) -> Victims | None:
    """Who may be preempted now; None while the site wants no preemption."""
    if not settings.preemption:
        return None
    up = {status.name for node in snapshot.nodes for status in node.runtimes if status.up}
    candidates: list[Candidate] = []
    lately = 0
    holders: Counter[str] = Counter()
    for job in snapshot.jobs:
        if not job.attempts:
            continue
        holders.update(job.gpus)
        attempt = job.attempts[-1]
        lately += sum(each.preempted_at is not None and each.preempted_at > now - HOUR for each in job.attempts)
        if ("process" if job.spec.is_host else "docker") in up and is_candidate(job, settings, now):
            candidates.append(Candidate(-job.id, whole_class(job.priority), lost_work(attempt, now)))
    return Victims(
        grace=settings.preemption_grace.total_seconds(),
        allowed=max(0, settings.preemptions_per_hour - lately),
        candidates=tuple(candidates),
        sound=masks(places, lambda row: _is_sound(row) and holders[row.gpu.uuid] == 1),
        served=served(snapshot.jobs, now),
    )


def is_candidate(job: Job, settings: PolicySettings, now: datetime) -> bool:
    """Whether a job may be preempted by one of a higher class."""
    attempt = job.attempt
    if job.state is not JobState.RUNNING or not job.spec.preemptible or attempt is None or attempt.started_at is None:
        return False
    if job.cancel_requested or job.requeue_requested or now - attempt.started_at < settings.preemption_min_run:
        return False
    return sum(each.preempted_at is not None for each in job.attempts) < settings.preemptions_per_job


def lost_work(attempt: Attempt, now: datetime) -> int:
    """GPU-seconds since it began."""
    began = attempt.started_at or attempt.claimed_at or now
    return max(0, int(len(attempt.gpus) * attempt.gpu_share * (now - began).total_seconds()))


def _is_sound(row: GpuView) -> bool:
    """Whether it will be free once the job that holds it has ended."""
    if row.state is not GpuState.ALLOCATED or row.drain is not None or row.stale:
        return False
    return row.health.is_schedulable and all(holder.kind == "job" for holder in row.holders)


def grace_of(job: Job, cause: Cause, settings: Settings) -> timedelta:
    """Return how long an attempt told to end for that cause has before it is killed: its own --stop-timeout, if any."""
    if cause.code is CauseCode.PREEMPTED:
        return settings.policy.preemption_grace
    own = job.spec.options.stop_timeout
    return settings.scheduler.stop_grace if own is None else timedelta(seconds=own)


def leaves_at(job: Job, settings: Settings) -> float | None:
    """The second by which an attempt that was told to end has; None when it was not."""
    stopping = job.stopping
    return (stopping.at + grace_of(job, stopping.cause, settings)).timestamp() if stopping else None


def cause_for(preemptor: Job) -> Cause:
    """Why a job that makes way for this one ends."""
    name = CLASSES[whole_class(preemptor.priority)]
    text = f"preempted for job {preemptor.id} of {preemptor.spec.tenant} (class {name}, priority {preemptor.priority})"
    return Cause(CauseCode.PREEMPTED, text)


def is_making_way(job: Job) -> bool:
    """Whether it was told to end for another, and has not yet."""
    return job.state.is_active and job.stopping is not None and job.stopping.cause.code is CauseCode.PREEMPTED


def served(jobs: Iterable[Job], now: datetime) -> frozenset[JobId]:
    """Jobs that others make way for, or did a moment ago."""
    latest = (job.attempts[-1] for job in jobs if job.attempts)
    ways = (attempt for attempt in latest if attempt.preempted_by is not None)
    return frozenset(
        attempt.preempted_by
        for attempt in ways
        if attempt.preempted_by is not None and (attempt.ended_at is None or now - attempt.ended_at < SETTLING)
    )


def was_preempted(job: Job) -> bool:
    """Whether it waits because its last attempt was preempted."""
    attempt = job.attempt
    return (
        attempt is not None
        and attempt.is_over
        and attempt.cause is not None
        and (attempt.cause.code is CauseCode.PREEMPTED)
    )


def story(job: Job, now: datetime) -> tuple[str, datetime]:
    """`preempted at 12:00 UTC for job 12`, of a job whose last attempt was; and that time."""
    attempt = job.attempts[-1]
    at = attempt.preempted_at or attempt.ended_at or now
    return f"preempted at {moment(at, now)} for job {attempt.preempted_by}", at
