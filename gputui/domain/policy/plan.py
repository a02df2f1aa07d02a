"""Plan for one moment: which jobs start now, and why each other job waits. Used by the scheduler and all forecasts.

Gates keep a job from starting even on free GPUs: holds, times, dependencies, pauses, runtimes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cached_property
from typing import NamedTuple, TypeAlias

from msgspec import Struct, field

from gputui.domain.container import RuntimeStatus
from gputui.domain.gpu import HealthCode
from gputui.domain.job import Job, PendingReason, Placement, Reason, utc_moment
from gputui.domain.job_spec import JobId, runtime_in
from gputui.domain.policy.decide import Outcome, decide
from gputui.domain.policy.forecast import Reach, expected_runs
from gputui.domain.policy.gpus.engine import EngineSupport, engine_support
from gputui.domain.policy.lanes import LaneKey, Waiting
from gputui.domain.policy.planning_context import PlanningContext
from gputui.domain.policy.queue_order import OrderCache, OrderedQueue, order_queue
from gputui.domain.policy.reasons import Gated, Reasons
from gputui.domain.policy.retry import JITTER, FastFailureGuard
from gputui.domain.policy.waits import Dependencies
from gputui.domain.settings import SchedulerSettings, Settings
from gputui.domain.snapshot import Snapshot, WindowView
from gputui.domain.text import format_duration


class GateContext(Struct, dict=True):
    """Facts that the gates check, gathered once for all jobs."""

    now: datetime
    settings: SchedulerSettings
    guard: FastFailureGuard
    snapshot: Snapshot
    runtimes: Mapping[str, RuntimeStatus]

    @cached_property
    def dependencies(self) -> Dependencies:
        """Jobs that waiting ones depend on."""
        return Dependencies.of(self.snapshot.jobs, self.snapshot.unreadable)

    @cached_property
    def support(self) -> EngineSupport:
        """Ability of the container engine to give GPUs to containers."""
        engine = self.runtimes.get(runtime_in(self.runtimes, is_host=False))
        present = [view.gpu for view in self.snapshot.gpus if view.health.code is not HealthCode.LOST]
        return engine_support(engine.gpus if engine else None, present)

    @cached_property
    def gates(self) -> tuple[Gate, ...]:
        """Gates that can refuse any job now."""
        up = [name for name, status in self.runtimes.items() if status.up]
        all_up = all(runtime_in(up, is_host=each) for each in (False, True))
        runs_all = all_up and self.support.is_full
        idle = {
            gate for gate, is_idle in ((_paused, not self.snapshot.controls.paused), (_runtime, runs_all)) if is_idle
        }
        return tuple(gate for gate in _GATES if gate not in idle)

    @cached_property
    def paused(self) -> Reason | None:
        """Reason why nothing starts while the scheduler is paused."""
        controls = self.snapshot.controls
        if not controls.paused:
            return None
        why = f": {controls.pause_reason}" if controls.pause_reason else ""
        at = controls.paused_at
        since = f" at {utc_moment(at, self.now)}" if at else ""
        by = f" by {controls.paused_by}" if controls.paused_by else ""
        text = f"the scheduler was paused{by}{since}{why}"
        return Reason(PendingReason.SCHEDULER_PAUSED, text, (at,) if at else ())

    @cached_property
    def down(self) -> Mapping[bool, Reason | None]:
        """Reasons why no host job (True) or no container (False) can start; None while its runtime is up."""
        return {is_host: _down(self, is_host=is_host) for is_host in (False, True)}

    @classmethod
    def of(cls, snapshot: Snapshot, settings: SchedulerSettings, now: datetime) -> GateContext:
        """Return the facts that a snapshot shows."""
        runtimes = {status.name: status for node in snapshot.nodes for status in node.runtimes}
        guard = FastFailureGuard.of(snapshot.jobs, settings)
        return cls(now, settings, guard, snapshot, runtimes)


Gate: TypeAlias = Callable[[Job, GateContext], Reason | None]


def first_gate(job: Job, situation: GateContext) -> Reason | None:
    """Return the reason of the first closed gate; None if all are open."""
    spec = job.spec
    has_gates = job.held or job.not_before or spec.after or spec.after_any or spec.begin_at
    if not (has_gates or situation.guard):
        return situation.paused or _runtime(job, situation)  # reasons common to all jobs
    for check in situation.gates:
        if reason := check(job, situation):
            return reason
    return None


def _held(job: Job, situation: GateContext) -> Reason | None:
    if not job.held:
        return None
    if job.hold_reason:
        return Reason(PendingReason.JOB_HELD_USER, job.hold_reason)
    since = f" at {utc_moment(job.held_at, situation.now)}" if job.held_at else ""
    text = f"held by {job.held_by or 'a user'}{since}: release it to let it start"
    return Reason(PendingReason.JOB_HELD_USER, text, (job.held_at,) if job.held_at else ())


def _dependency(job: Job, situation: GateContext) -> Reason | None:
    if not job.spec.after and not job.spec.after_any:
        return None
    unmet = situation.dependencies.unmet(job)
    return Reason(PendingReason.DEPENDENCY, unmet) if unmet else None


def _guard(job: Job, situation: GateContext) -> Reason | None:
    if not situation.guard:
        return None
    text = situation.guard.reason(job)
    return Reason(PendingReason.BACK_OFF, text) if text else None


def _begin(job: Job, situation: GateContext) -> Reason | None:
    begin_at = job.spec.begin_at
    if begin_at is None or begin_at <= situation.now:
        return None
    left = format_duration(begin_at - situation.now)
    return Reason(PendingReason.BEGIN_TIME, f"begins at {utc_moment(begin_at, situation.now)}, in {left}", (begin_at,))


def _back_off(job: Job, situation: GateContext) -> Reason | None:
    if job.not_before is None or job.not_before <= situation.now:
        return None
    if job.not_before - situation.now > situation.settings.backoff_cap * (1 + JITTER):
        return None  # no pause is that long: the clock was set back
    cause = job.end_words or "its last attempt failed"
    left = format_duration(job.not_before - situation.now)
    again = f"attempt {job.next_attempt} at {utc_moment(job.not_before, situation.now)}, in {left}: {cause}"
    return Reason(PendingReason.BACK_OFF, again, (job.not_before,))


def _paused(_: Job, situation: GateContext) -> Reason | None:
    return situation.paused


def _runtime(job: Job, situation: GateContext) -> Reason | None:
    return situation.down[job.spec.is_host] or _refused(job, situation)


def _refused(job: Job, situation: GateContext) -> Reason | None:
    """Return the reason why the engine cannot give it the GPUs it asks for."""
    found = None if job.spec.is_host else situation.support.refuses(job.spec.gpus)
    return Reason(PendingReason.NODE_UNKNOWN, found.sentence) if found else None


def _down(situation: GateContext, *, is_host: bool) -> Reason | None:
    status = situation.runtimes.get(runtime_in(situation.runtimes, is_host=is_host))
    if not situation.runtimes and situation.snapshot.leader is None:
        return Reason(PendingReason.NODE_UNKNOWN, "no scheduler is running: start `gputui` or `gputui serve`")
    if (leader := situation.snapshot.leader) is not None and leader.silent_for:
        silence = format_duration(leader.silent_for)
        return Reason(PendingReason.NODE_UNKNOWN, f"the scheduler has not responded for {silence}")
    halted = next((notice for notice in situation.snapshot.notices if notice.halts), None)
    if halted is not None and not situation.snapshot.leads_here:
        return Reason(PendingReason.NODE_UNKNOWN, f"the scheduler starts nothing: {halted.text}")
    if not situation.runtimes:
        return Reason(PendingReason.NODE_UNKNOWN, "the scheduler does not answer")
    if status is None:
        what = "host jobs are switched off" if is_host else "this scheduler runs no containers"
        return Reason(PendingReason.NODE_UNKNOWN, what)
    return None if status.up else Reason(PendingReason.NODE_UNKNOWN, status.text)


_GATES: tuple[Gate, ...] = (_held, _dependency, _begin, _back_off, _guard, _paused, _runtime)


class Preemption(Struct, frozen=True):
    """Decision to preempt a running job for a waiting one, not carried out yet."""

    victim: JobId
    by: JobId


class Plan(Struct, frozen=True):
    """Plan made from one snapshot."""

    starts: tuple[Placement, ...] = ()
    order: tuple[JobId, ...] = ()
    """Ids of all waiting jobs, first to start first."""
    reasons: Mapping[JobId, Reason] = field(default_factory=dict)
    """Reasons of the jobs that do not start now."""
    reservations: tuple[Placement, ...] = ()
    """GPUs kept for the first job that cannot start yet."""
    preemptions: tuple[Preemption, ...] = ()
    """Running jobs that are to be preempted for it."""
    forecast: Mapping[JobId, datetime] = field(default_factory=dict)
    """Expected starts, where they are known."""
    forecast_until: datetime | None = None
    """End of the forecast; None: it covers every foreseeable start."""
    promised_at: datetime | None = None
    """Time at which the reserved GPUs become available to it."""
    fragmentation: int = 0
    """Number of free GPUs that no waiting job can use, although jobs wait for GPUs."""
    windows: tuple[WindowView, ...] = ()
    """Reservations that have not ended."""


class StartDecision(NamedTuple):
    """Decision of one plan, as masks; reasons and forecast are computed from it."""

    context: PlanningContext
    waiting: OrderedQueue
    gated: Gated
    """Jobs that may not start even on free GPUs."""
    outcome: Outcome


def decide_starts(
    snapshot: Snapshot, settings: Settings, now: datetime, known: OrderCache | None = None
) -> StartDecision:
    """Start the jobs that may start, in order, and reserve GPUs for the first job that does not fit."""
    context = PlanningContext.at(snapshot, settings, now)
    situation = GateContext.of(snapshot, settings.scheduler, now)
    waiting = order_queue(context, known)
    gated, able = _parted(context, waiting, situation)
    context.cluster.tenants = frozenset(job.spec.tenant for job in context.waiting)
    lanes: defaultdict[LaneKey, list[Waiting]] = defaultdict(list)
    for key, item in zip(able.keys, able.items, strict=True):
        lanes[key].append(item)
    for key, items in lanes.items():
        context.cluster.fill(key, items, context.second)
    turns = zip(able.keys, able.items, strict=True)
    outcome = decide(context.cluster, context.second, turns, context.victims) if lanes else Outcome()
    if (hold := outcome.hold) is not None:
        for job_id in hold.preempts:  # they count as gone at the end of their grace period
            context.cluster.runs[job_id].leaving = hold.at
            context.making_way[job_id] = hold.id
    return StartDecision(context, waiting, gated, outcome)


def _parted(context: PlanningContext, waiting: OrderedQueue, situation: GateContext) -> tuple[Gated, OrderedQueue]:
    """Split the queue into jobs that gates keep from starting, and the others."""
    asked = context.waiting
    if not (_paused in situation.gates or _runtime in situation.gates or situation.guard):  # only few may be gated
        asked = [
            job
            for job in asked
            if job.held or job.not_before or (spec := job.spec).after or spec.after_any or spec.begin_at
        ]
    why = {job.id: reason for job in asked if (reason := first_gate(job, situation)) is not None}
    gated = (
        waiting.at(place for place, job in enumerate(waiting.jobs) if job.id in why)
        if why
        else OrderedQueue([], [], [])
    )
    able = waiting.at(place for place, job in enumerate(waiting.jobs) if job.id not in why) if why else waiting
    return Gated(why, gated), able


def plan(snapshot: Snapshot, settings: Settings, now: datetime, known: OrderCache | None = None) -> Plan:
    """Return the jobs that start now, and reason and expected start of the others.

    `known` caches facts of an earlier plan; it only saves work.
    """
    context, waiting, gated, outcome = decide_starts(snapshot, settings, now, known)
    reach, hold = Reach(), outcome.hold
    may_start = (
        context.cluster.lanes
        or context.making_way
        or any(
            not job.held and (job.not_before or (spec := job.spec).begin_at or spec.after or spec.after_any)
            for job in gated.line.jobs
        )
    )  # as all others wait for nothing that comes by itself
    runs = expected_runs(context, gated.line, settings.policy.forecast_jobs, reach) if may_start else ()
    return Plan(
        starts=tuple(Placement(run.id, context.gpus.uuids(run.grant), run.gpu_share) for run in outcome.starts),
        order=waiting.ids(),
        reasons=Reasons(context, outcome, waiting, gated),
        reservations=(Placement(hold.id, context.gpus.uuids(hold.grant)),) if hold else (),
        preemptions=tuple(Preemption(victim, hold.id) for victim in hold.preempts) if hold else (),
        forecast={run.id: context.when(run.started) for run in runs},
        forecast_until=context.when(reach.at) if reach.is_short else None,
        promised_at=context.when(hold.at) if hold else None,
        fragmentation=fragmentation(context) if context.cluster.lanes else 0,
        windows=context.windows,
    )


def fragmentation(context: PlanningContext) -> int:
    """Return the number of free GPUs that no waiting job can use, although some want GPUs."""
    asks = {key.ask for key in context.cluster.lanes if key.ask.maximum}
    stranded = 0
    for node, free in enumerate(context.cluster.free):
        usable = 0
        for ask in asks:
            able = free & ask.eligible[node]
            usable |= able if able.bit_count() >= ask.minimum else 0
        stranded += (free & ~usable).bit_count()
    return stranded if asks else 0
