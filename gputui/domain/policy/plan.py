"""What starts now, and why each other job waits: one pure function for the scheduler and for every forecast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from gputui.domain.job import JobId, Placement, Preemption
from gputui.domain.policy.decide import Outcome, decide
from gputui.domain.policy.forecast import expected_starts
from gputui.domain.policy.forward import Reach
from gputui.domain.policy.lineup import Known, Lineup, in_order
from gputui.domain.policy.look import Look
from gputui.domain.policy.reasons import Gated, Reasons
from gputui.domain.policy.waits import Situation, gate, suspects
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import Reason
from gputui.domain.window import WindowView


@dataclass(frozen=True)
class Plan:
    """The outcome of one look at everything."""

    starts: tuple[Placement, ...] = ()
    order: tuple[JobId, ...] = ()
    """All waiting jobs, first to start first."""
    reasons: Mapping[JobId, Reason] = field(default_factory=dict)
    """Why each job waits that does not start now."""
    reservations: tuple[Placement, ...] = ()
    """GPUs kept for the first job that cannot start yet."""
    preemptions: tuple[Preemption, ...] = ()
    """Running jobs that are to make way for it."""
    forecast: Mapping[JobId, datetime] = field(default_factory=dict)
    """When each is expected to start, where that is known."""
    forecast_until: datetime | None = None
    """How far the forecast reaches; None: every start that can be foreseen is in it."""
    promised_at: datetime | None = None
    """When they will be its own."""
    fragmentation: int = 0
    """GPUs that stay free although jobs wait for GPUs, because none of these can use them."""
    windows: tuple[WindowView, ...] = ()
    """The reservations that are not over, as they stand."""


class Decision(NamedTuple):
    """What is decided now, on the board itself; its reasons and its forecast are still to be made."""

    look: Look
    waiting: Lineup
    gated: Gated
    """Jobs that may not start whatever is free."""
    outcome: Outcome


def decision(snapshot: Snapshot, settings: Settings, now: datetime, known: Known | None = None) -> Decision:
    """Start what its turn and the free GPUs allow, and keep GPUs for the first job that does not fit."""
    look = Look.at(snapshot, settings, now)
    situation = Situation.of(snapshot, settings.scheduler, now)
    waiting = in_order(look, known)
    gated, able = _parted(look, waiting, situation)
    look.board.tenants = frozenset(job.spec.tenant for job in look.waiting)
    for key, items in able.by_lane():
        look.board.lane(key).feed(items, look.second)
    outcome = decide(look.board, look.second, thorough=True)
    look.make_way(outcome.hold)
    return Decision(look, waiting, gated, outcome)


def _parted(look: Look, waiting: Lineup, situation: Situation) -> tuple[Gated, Lineup]:
    """Those that may not start whatever is free, and the others."""
    asked = ((job.id, gate(job, situation)) for job in suspects(look.waiting, situation))
    why = {job_id: reason for job_id, reason in asked if reason is not None}
    gated = waiting.at(place for place, job in enumerate(waiting.jobs) if job.id in why) if why else Lineup([], [], [])
    able = waiting.at(place for place, job in enumerate(waiting.jobs) if job.id not in why) if why else waiting
    return Gated(why, gated), able


def plan(snapshot: Snapshot, settings: Settings, now: datetime, known: Known | None = None) -> Plan:
    """The decision of this moment, and of all that do not start now why, and when they are expected to.

    What is `known` from an earlier look only saves work.
    """
    look, waiting, gated, outcome = decision(snapshot, settings, now, known)
    reach = Reach()
    forecast = expected_starts(look, gated.line, settings.policy.forecast_jobs, reach)
    return Plan(
        starts=tuple(Placement(run.id, look.places.uuids(run.grant), run.gpu_share) for run in outcome.starts),
        order=tuple([job.id for job in waiting.jobs]),
        reasons=Reasons(look, outcome, waiting, gated),
        reservations=_reservations(look, outcome),
        preemptions=_preemptions(outcome),
        forecast=forecast,
        forecast_until=look.when(reach.at) if reach.is_short else None,
        promised_at=look.when(outcome.hold.at) if outcome.hold else None,
        fragmentation=fragmentation(look),
        windows=look.windows,
    )


def _reservations(look: Look, outcome: Outcome) -> tuple[Placement, ...]:
    hold = outcome.hold
    return (Placement(hold.id, look.places.uuids(hold.grant)),) if hold else ()


def _preemptions(outcome: Outcome) -> tuple[Preemption, ...]:
    hold = outcome.hold
    return tuple(Preemption(victim, hold.id) for victim in hold.preempts) if hold else ()


def fragmentation(look: Look) -> int:
    """Free GPUs that no waiting job can use, though some want GPUs."""
    asks = {key.ask for key, lane in look.board.lanes.items() if lane.items and key.ask.maximum}
    stranded = 0
    for node, free in enumerate(look.board.free):
        usable = 0
        for ask in asks:
            able = free & ask.eligible[node]
            usable |= able if able.bit_count() >= ask.minimum else 0
        stranded += (free & ~usable).bit_count()
    return stranded if asks else 0
