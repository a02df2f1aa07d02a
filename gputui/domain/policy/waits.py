"""Why a job may not start yet, apart from GPUs: wishes, times, other jobs, runtimes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from gputui.domain.container import RuntimeStatus
from gputui.domain.job import Job, JobId
from gputui.domain.policy.dependency import Dependencies
from gputui.domain.policy.guard import Guard
from gputui.domain.policy.retry import JITTER
from gputui.domain.settings import SchedulerSettings
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import PendingReason, Reason
from gputui.domain.units import format_duration, plural


@dataclass
class Situation:
    """What the gates look at, gathered once for all jobs; `running_*` grow while starts are decided."""

    now: datetime
    settings: SchedulerSettings
    jobs: Mapping[JobId, Job]
    dependencies: Dependencies
    guard: Guard
    snapshot: Snapshot
    runtimes: Mapping[str, RuntimeStatus]
    running_cpu: int
    running_by_array: Counter[JobId]

    @classmethod
    def of(cls, snapshot: Snapshot, settings: SchedulerSettings, now: datetime) -> Situation:
        """The situation a snapshot shows."""
        active = [job for job in snapshot.jobs if job.state.is_active]
        return cls(
            now=now,
            settings=settings,
            jobs={job.id: job for job in snapshot.jobs},
            dependencies=Dependencies.of(snapshot.jobs),
            guard=Guard.of(snapshot.jobs, settings),
            snapshot=snapshot,
            runtimes={status.name: status for node in snapshot.nodes for status in node.runtimes},
            running_cpu=sum(not job.spec.gpus.minimum and not job.spec.gpus.everything for job in active),
            running_by_array=Counter(job.array.id for job in active if job.array),
        )

    def count(self, job: Job) -> None:
        """Take into account that this job is about to start."""
        if job.array:
            self.running_by_array[job.array.id] += 1
        if not job.spec.gpus.minimum and not job.spec.gpus.everything:
            self.running_cpu += 1


def gate(job: Job, situation: Situation) -> Reason | None:
    """The first thing that forbids it to start whatever GPUs are free; None when nothing does."""
    for check in _GATES:
        if reason := check(job, situation):
            return reason
    return None


def _held(job: Job, _: Situation) -> Reason | None:
    if not job.held:
        return None
    return Reason(PendingReason.JOB_HELD_USER, job.hold_reason or "held by a user: release it to let it start")


def _dependency(job: Job, situation: Situation) -> Reason | None:
    if not job.spec.after and not job.spec.after_any:
        return None
    unmet = situation.dependencies.unmet(job)
    return Reason(PendingReason.DEPENDENCY, unmet) if unmet else None


def _guard(job: Job, situation: Situation) -> Reason | None:
    if not situation.guard:
        return None
    text = situation.guard.reason(job)
    return Reason(PendingReason.BACK_OFF, text) if text else None


def _begin(job: Job, situation: Situation) -> Reason | None:
    begin_at = job.spec.begin_at
    if begin_at is None or begin_at <= situation.now:
        return None
    left = format_duration(begin_at - situation.now)
    return Reason(PendingReason.BEGIN_TIME, f"begins at {begin_at:%Y-%m-%d %H:%M} UTC, in {left}")


def _back_off(job: Job, situation: Situation) -> Reason | None:
    if job.not_before is None or job.not_before <= situation.now:
        return None
    if job.not_before - situation.now > situation.settings.backoff_cap * (1 + JITTER):
        return None  # no pause is that long: the clock went back
    cause = job.cause.text if job.cause else "its last attempt failed"
    left = format_duration(job.not_before - situation.now)
    return Reason(PendingReason.BACK_OFF, f"attempt {len(job.attempts) + 1} in {left}: {cause}")


def _paused(_: Job, situation: Situation) -> Reason | None:
    controls = situation.snapshot.controls
    if not controls.paused:
        return None
    why = f": {controls.pause_reason}" if controls.pause_reason else ""
    return Reason(PendingReason.SCHEDULER_PAUSED, f"the scheduler was paused by {controls.paused_by}{why}")


def _runtime(job: Job, situation: Situation) -> Reason | None:
    name = "process" if job.spec.is_host else "docker"
    status = situation.runtimes.get(name)
    if not situation.runtimes and situation.snapshot.leader is None:
        return Reason(PendingReason.NODE_UNKNOWN, "no scheduler is running: start `gputui` or `gputui serve`")
    if status is None:
        what = "host jobs are switched off" if job.spec.is_host else "this scheduler runs no containers"
        return Reason(PendingReason.NODE_UNKNOWN, what)
    return None if status.up else Reason(PendingReason.NODE_UNKNOWN, status.text)


def _array(job: Job, situation: Situation) -> Reason | None:
    if job.array is None or job.array.limit is None:
        return None
    running = situation.running_by_array[job.array.id]
    if running < job.array.limit:
        return None
    text = f"{running} elements of array {job.array.id} are running, and {job.array.limit} may"
    return Reason(PendingReason.QUOTA_EXCEEDED, text)


def _cpu(job: Job, situation: Situation) -> Reason | None:
    if job.spec.gpus.minimum or job.spec.gpus.everything or situation.running_cpu < situation.settings.cpu_jobs:
        return None
    running = plural(situation.running_cpu, "job")
    return Reason(PendingReason.QUOTA_EXCEEDED, f"{running} without GPUs are running, and no more may")


_GATES: tuple[Callable[[Job, Situation], Reason | None], ...] = (
    _held,
    _dependency,
    _begin,
    _back_off,
    _guard,
    _paused,
    _runtime,
    _array,
    _cpu,
)
