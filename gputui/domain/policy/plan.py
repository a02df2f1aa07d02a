"""Plan for one moment: which jobs start now, and why each other job waits. Used by the scheduler and all forecasts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from msgspec import Struct, field

from gputui.domain.job import Placement
from gputui.domain.job_spec import JobId
from gputui.domain.policy.decide import Outcome, decide
from gputui.domain.policy.forecast import Reach, expected_starts
from gputui.domain.policy.gates import GateContext, first_gate, may_be_gated
from gputui.domain.policy.planning_context import PlanningContext
from gputui.domain.policy.queue_order import OrderCache, OrderedQueue, order_queue
from gputui.domain.policy.reasons import Gated, Reasons
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot, WindowView
from gputui.domain.state import Reason


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
    situation = GateContext.of(
        snapshot, settings.scheduler, now, as_submitter=settings.runtime.run_as_submitter is not False
    )
    waiting = order_queue(context, known)
    gated, able = _parted(context, waiting, situation)
    context.cluster.tenants = frozenset(job.spec.tenant for job in context.waiting)
    for key, items in able.by_lane():
        context.cluster.fill(key, items, context.second)
    outcome = decide(context.cluster, context.second, able.turns(), context.victims)
    context.make_way(outcome.hold)
    return StartDecision(context, waiting, gated, outcome)


def _parted(context: PlanningContext, waiting: OrderedQueue, situation: GateContext) -> tuple[Gated, OrderedQueue]:
    """Split the queue into jobs that gates keep from starting, and the others."""
    asked = ((job.id, first_gate(job, situation)) for job in may_be_gated(context.waiting, situation))
    why = {job_id: reason for job_id, reason in asked if reason is not None}
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
    reach = Reach()
    forecast = expected_starts(context, gated.line, settings.policy.forecast_jobs, reach)
    return Plan(
        starts=tuple(Placement(run.id, context.gpus.uuids(run.grant), run.gpu_share) for run in outcome.starts),
        order=waiting.ids(),
        reasons=Reasons(context, outcome, waiting, gated),
        reservations=_reservations(context, outcome),
        preemptions=_preemptions(outcome),
        forecast=forecast,
        forecast_until=context.when(reach.at) if reach.is_short else None,
        promised_at=context.when(outcome.hold.at) if outcome.hold else None,
        fragmentation=fragmentation(context),
        windows=context.windows,
    )


def _reservations(context: PlanningContext, outcome: Outcome) -> tuple[Placement, ...]:
    hold = outcome.hold
    return (Placement(hold.id, context.gpus.uuids(hold.grant)),) if hold else ()


def _preemptions(outcome: Outcome) -> tuple[Preemption, ...]:
    hold = outcome.hold
    return tuple(Preemption(victim, hold.id) for victim in hold.preempts) if hold else ()


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
