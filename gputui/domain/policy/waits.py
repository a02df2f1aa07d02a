"""Why a job may not start yet whoever else waits: wishes, times, other jobs, runtimes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TypeAlias

from gputui.domain.container import RuntimeStatus
from gputui.domain.gpu import Gpu, HealthCode
from gputui.domain.job import Job, JobId
from gputui.domain.policy.dependency import Dependencies
from gputui.domain.policy.engine_gpus import Support, support
from gputui.domain.policy.guard import Guard
from gputui.domain.policy.retry import JITTER
from gputui.domain.settings import SchedulerSettings
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import PendingReason, Reason, moment
from gputui.domain.units import format_duration


@dataclass
class Situation:
    """What the gates look at, gathered once for all jobs."""

    now: datetime
    settings: SchedulerSettings
    dependencies: Dependencies
    guard: Guard
    snapshot: Snapshot
    runtimes: Mapping[str, RuntimeStatus]
    support: Support
    """How far the container engine can give GPUs to containers."""
    gates: tuple[Gate, ...]
    gates_all: bool
    """Whether one of them may refuse a job whatever it asked for."""

    @cached_property
    def jobs(self) -> Mapping[JobId, Job]:
        """All of the snapshot, by id."""
        return {job.id: job for job in self.snapshot.jobs}

    @cached_property
    def paused(self) -> Reason | None:
        """Why nothing starts, when the scheduler is paused."""
        controls = self.snapshot.controls
        if not controls.paused:
            return None
        why = f": {controls.pause_reason}" if controls.pause_reason else ""
        return Reason(PendingReason.SCHEDULER_PAUSED, f"the scheduler was paused by {controls.paused_by}{why}")

    @cached_property
    def down(self) -> Mapping[bool, Reason | None]:
        """Why no host job (True) or no container (False) can start where its runtime is."""
        return {is_host: _down(self, is_host=is_host) for is_host in (False, True)}

    @classmethod
    def of(cls, snapshot: Snapshot, settings: SchedulerSettings, now: datetime) -> Situation:
        """The situation a snapshot shows."""
        runtimes = {status.name: status for node in snapshot.nodes for status in node.runtimes}
        docker = runtimes.get("docker")
        gives = support(docker.gpus if docker else None, _present(snapshot))
        gates, guard = _gates(snapshot, runtimes, gives), Guard.of(snapshot.jobs, settings)
        return cls(
            now=now,
            settings=settings,
            dependencies=Dependencies.of(snapshot.jobs, snapshot.unreadable),
            guard=guard,
            snapshot=snapshot,
            runtimes=runtimes,
            support=gives,
            gates=gates,
            gates_all=bool(guard) or _paused in gates or _runtime in gates,
        )


Gate: TypeAlias = Callable[[Job, Situation], Reason | None]


def suspects(jobs: Sequence[Job], situation: Situation) -> Sequence[Job]:
    """The jobs that `gate` may forbid to start: mostly few, so that only these have to be asked."""
    if situation.gates_all:
        return jobs
    return [
        job for job in jobs if job.held or job.not_before or (spec := job.spec).after or spec.after_any or spec.begin_at
    ]


def gate(job: Job, situation: Situation) -> Reason | None:
    """The first thing that forbids it to start whatever GPUs are free; None when nothing does."""
    spec = job.spec
    has_gates = job.held or job.not_before or spec.after or spec.after_any or spec.begin_at
    if not (has_gates or situation.guard):
        return situation.paused or _runtime(job, situation)  # what all have in common
    for check in situation.gates:
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
    return Reason(PendingReason.BEGIN_TIME, f"begins at {moment(begin_at, situation.now)}, in {left}", (begin_at,))


def _back_off(job: Job, situation: Situation) -> Reason | None:
    if job.not_before is None or job.not_before <= situation.now:
        return None
    if job.not_before - situation.now > situation.settings.backoff_cap * (1 + JITTER):
        return None  # no pause is that long: the clock went back
    cause = job.cause.text if job.cause else "its last attempt failed"
    left = format_duration(job.not_before - situation.now)
    again = f"attempt {job.next_attempt} at {moment(job.not_before, situation.now)}, in {left}: {cause}"
    return Reason(PendingReason.BACK_OFF, again, (job.not_before,))


def _paused(_: Job, situation: Situation) -> Reason | None:
    return situation.paused


def _runtime(job: Job, situation: Situation) -> Reason | None:
    return situation.down[job.spec.is_host] or _refused(job, situation)


def _refused(job: Job, situation: Situation) -> Reason | None:
    """Why the engine cannot give it the GPUs it asks for."""
    found = None if job.spec.is_host else situation.support.refuses(job.spec.gpus)
    return Reason(PendingReason.NODE_UNKNOWN, found.sentence) if found else None


def _present(snapshot: Snapshot) -> list[Gpu]:
    """Return all GPUs but for those that are lost, which the engine does not know either."""
    return [view.gpu for view in snapshot.gpus if view.health.code is not HealthCode.LOST]


def _down(situation: Situation, *, is_host: bool) -> Reason | None:
    status = situation.runtimes.get("process" if is_host else "docker")
    if not situation.runtimes and situation.snapshot.leader is None:
        return Reason(PendingReason.NODE_UNKNOWN, "no scheduler is running: start `gputui` or `gputui serve`")
    if (leader := situation.snapshot.leader) is not None and leader.silent_for:
        silence = format_duration(leader.silent_for)
        return Reason(PendingReason.NODE_UNKNOWN, f"the scheduler has not responded for {silence}")
    if status is None:
        what = "host jobs are switched off" if is_host else "this scheduler runs no containers"
        return Reason(PendingReason.NODE_UNKNOWN, what)
    return None if status.up else Reason(PendingReason.NODE_UNKNOWN, status.text)


_GATES: tuple[Gate, ...] = (_held, _dependency, _begin, _back_off, _guard, _paused, _runtime)


def _gates(snapshot: Snapshot, runtimes: Mapping[str, RuntimeStatus], gives: Support) -> tuple[Gate, ...]:
    """Those that can refuse anybody now."""
    all_up = gives.is_full and all(name in runtimes and runtimes[name].up for name in ("docker", "process"))
    idle = {gate for gate, is_idle in ((_paused, not snapshot.controls.paused), (_runtime, all_up)) if is_idle}
    return tuple(gate for gate in _GATES if gate not in idle)
