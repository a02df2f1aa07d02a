"""Attempts that are to end before they end by themselves: why, and how they are made to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.gpu import HealthCode
from gputui.domain.job import Job, JobId, Stopping
from gputui.domain.policy.preempted import grace_of
from gputui.domain.policy.retry import conclude
from gputui.domain.state import JobState
from gputui.engine import work
from gputui.engine.ground import Ground
from gputui.engine.limits import is_to_be_warned, overdue

_UNKILLABLE = timedelta(minutes=1)
"""After so long a job on a lost GPU is given up: a process waiting in the driver ignores even SIGKILL."""
_LOST = frozenset({HealthCode.LOST, HealthCode.XID, HealthCode.NEEDS_RESET})


def enforce_limits(ground: Ground, now: datetime) -> None:
    """End attempts that are over their time, or whose GPU is lost."""
    samples = ground.probe.latest().samples
    sick = {uuid: sample.health for uuid, sample in samples.items() if sample.health.code in _LOST}
    stops: dict[JobId, Cause] = {}
    for job in ground.queue.active:
        lost = tuple(uuid for uuid in job.gpus if uuid in sick)
        if job.state is JobState.RUNNING and lost:
            text = "; ".join(f"{uuid}: {sick[uuid].text}" for uuid in lost)
            stops[job.id] = Cause(CauseCode.GPU_LOST, text, lost)
        elif job.state is JobState.RUNNING and (cause := overdue(job, now)):
            stops[job.id] = cause
    begin_stops(ground, stops, now)
    _warn(ground, [job for job in ground.queue.active if is_to_be_warned(job, now)], now)


def _warn(ground: Ground, jobs: list[Job], now: datetime) -> None:
    """Announce time limits. Written down first: a signal too many would end many a job, one too few ends none."""
    if not jobs:
        return
    with ground.store.transaction() as transaction:
        warned = [job for job in (transaction.get(stale.id) for stale in jobs) if is_to_be_warned(job, now)]
        for job in warned:
            transaction.put(job.with_attempt(warned_at=now))
    for job in warned:
        attempt, warning = job.attempts[-1], job.spec.warning
        observer = ground.observer_of(job)
        if observer is not None and attempt.container_id is not None and warning is not None:
            ground.hands.warn(observer.runtime, (job.id, attempt.number), attempt.container_id, warning.number)
    ground.observe()


def begin_stops(ground: Ground, stops: Mapping[JobId, Cause], now: datetime) -> None:
    """Write down that these running jobs are to end, and why; `see_them_end` does the rest."""
    if not stops:
        return
    with ground.store.transaction() as transaction:
        for job_id, cause in stops.items():
            job = transaction.get(job_id)
            if job.state is JobState.RUNNING:
                transaction.put(job.to(JobState.COMPLETING, stopping=Stopping(cause, now)))
    ground.observe()


def see_them_end(ground: Ground, now: datetime) -> None:
    """See that what is to end does end."""
    _begin_graces_anew(ground, now)
    for job in ground.queue.active:
        if job.state is JobState.COMPLETING:
            _see_it_end(ground, job, now)


def _begin_graces_anew(ground: Ground, now: datetime) -> None:
    """A stop that lies ahead was begun before the clock went back: its grace would last until then."""
    ahead = [job for job in ground.queue.active if job.stopping is not None and job.stopping.at > now]
    if not ahead:
        return
    with ground.store.transaction() as transaction:
        for stale in ahead:
            job = transaction.get(stale.id)
            if job.stopping is not None:
                transaction.put(job.evolve(stopping=replace(job.stopping, at=now)))
    ground.observe()


def _see_it_end(ground: Ground, job: Job, now: datetime) -> None:
    """SIGTERM first; SIGKILL when the grace is over, again after every further grace."""
    attempt, stopping = job.attempt, job.stopping
    observer = ground.observer_of(job)
    if attempt is None or attempt.container_id is None or stopping is None or observer is None:
        return
    grace = max(grace_of(job, stopping.cause, ground.settings), timedelta(milliseconds=100))
    if stopping.cause.code is CauseCode.GPU_LOST and now - stopping.at > _UNKILLABLE:
        _give_up(ground, job, attempt.number, stopping.cause, now)
        return
    graces = (now - stopping.at) // grace
    how = "terminate" if graces < 1 else f"kill for the {graces}. time"
    ground.hands.tell(observer.runtime, (job.id, attempt.number), attempt.container_id, how)


def _give_up(ground: Ground, job: Job, number: int, cause: Cause, now: datetime) -> None:
    """Let the job go on elsewhere though a sick driver keeps its processes from dying.

    Its container stays a stray: told to die again and again, and its GPUs count as taken.
    """
    with ground.store.transaction() as transaction:
        current = work.under_way(transaction, job.id, number)
        if current is not None:
            transaction.put(conclude(current, cause, None, now, ground.settings.scheduler))
    ground.observe()
