"""The current plan: made from a snapshot, and again when any of its inputs has changed."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from gputui.domain.gpu import GpuState, GpuView
from gputui.domain.idle_gpus import IdleTracker
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.policy.plan import Plan, plan
from gputui.domain.policy.queue_order import OrderCache
from gputui.domain.policy.reservations import with_claims
from gputui.domain.snapshot import Leader, Notice, Snapshot, WindowView
from gputui.domain.state import JobState
from gputui.engine.tick import starts
from gputui.engine.tick.context import TickContext
from gputui.engine.tick.past_usage import PastUsage
from gputui.engine.tick.snapshot_builder import Observations, leader_snapshot, with_plan

log = logging.getLogger(__name__)

_REASONS_KEEP = timedelta(seconds=5)


class Planner:
    """Takes snapshots and plans, no more often than necessary."""

    def __init__(self, context: TickContext, leader: Leader, past_usage: PastUsage) -> None:
        self._context = context
        self._leader = leader
        self._past_usage = past_usage
        self.plan = Plan()
        self._order_cache = OrderCache()
        self._snapshot = Snapshot()
        self._planned_for: object = None
        self._next_at = datetime.min.replace(tzinfo=UTC)
        self._idle = IdleTracker(context.settings)

    @property
    def next_at(self) -> datetime:
        """Time of the next plan, if nothing changes before."""
        return self._next_at

    def replan_by(self, now: datetime) -> None:
        """Plan again at this time at the latest."""
        self._next_at = now

    def update(self, now: datetime, freed_at: Mapping[str, datetime], trouble: tuple[Notice, ...]) -> None:
        """Take a snapshot and decide which jobs start."""
        self._take_snapshot(now, freed_at, trouble)
        inputs = _plan_inputs(self._context.version, self._snapshot)
        if inputs != self._planned_for or now >= self._next_at:
            begun = time.perf_counter()
            self.plan = plan(self._snapshot, self._context.settings, now, self._order_cache)
            self._context.monitor.took("plan", time.perf_counter() - begun)
            self._planned_for, self._next_at = inputs, _next_plan_at(self._snapshot, self.plan, now)

    def carried_out(self, claims: Iterable[Job], now: datetime, freed_at: Mapping[str, datetime]) -> None:
        """Count these starts as done; their other effects are planned at the next tick."""
        entries = {job.id: job for job in self._snapshot.jobs if job.runs}
        self._take_snapshot(now, freed_at, ())
        self.plan, self._planned_for = _without(self.plan, claims, entries), None

    @property
    def gpus(self) -> tuple[GpuView, ...]:
        """GPUs of the last snapshot."""
        return self._snapshot.gpus

    def snapshot(self, now: datetime) -> Snapshot:
        """Return the last snapshot with its plan."""
        return with_plan(replace(self._snapshot, taken_at=now), self.plan)

    def _take_snapshot(self, now: datetime, freed_at: Mapping[str, datetime], trouble: tuple[Notice, ...]) -> None:
        """Build the snapshot of the present state."""
        context = self._context
        observed = Observations(
            reading=context.reading,
            runtimes=tuple(observer.latest for observer in context.observers.values()),
            freed_at=freed_at,
            progress={**starts.held_up(context, now), **context.workers.pulls.progress},
            notices=(*trouble, *context.damage),
            usage=self._past_usage.at(now),
            idle_since=context.idle_since,
        )
        seen = leader_snapshot(context.store.store_id, context.queue, observed, self._leader, context.settings, now)
        active = {job.id: job for job in context.queue.active}
        self._snapshot = replace(seen, nodes=self._idle.marked(seen.nodes, active, now))


def _plan_inputs(version: object, snapshot: Snapshot) -> object:
    """Return the inputs of a plan apart from the time: the plan stays the same as long as they do."""
    node = snapshot.nodes[0]
    gpus = tuple((view.gpu.uuid, view.state, _reason_input(view), view.sharers, view.closed) for view in node.gpus)
    return (version, gpus, node.runtimes, node.probe, snapshot.usage.at)


def _reason_input(view: GpuView) -> str:
    """Return the part of a GPU's reason that plans depend on: other parts contain figures that always change."""
    return view.why if view.state is GpuState.UNKNOWN else ""


def _without(decided: Plan, claims: Iterable[Job], entries: Mapping[JobId, Job]) -> Plan:
    """Return the plan without these starts, which it already counted when it judged the other jobs.

    `entries` are the array entries that it was made for: the rest of one has another id.
    """
    done = {job.id for job in claims}

    def left(job_id: JobId) -> JobId | None:
        entry = entries.get(job_id)
        rest = entry.without(done) if entry else None
        if entry is None:
            return None if job_id in done else job_id
        return rest.id if rest else None

    return replace(
        decided,
        starts=tuple(start for start in decided.starts if start.job_id not in done),
        order=tuple(job_id for job_id in map(left, decided.order) if job_id is not None),
        forecast={job_id: at for job_id, at in decided.forecast.items() if job_id not in done},
    )


def _next_plan_at(snapshot: Snapshot, decided: Plan, now: datetime) -> datetime:
    """Return when time alone changes the plan: a back-off or a reservation ends, a begin time comes, reasons age."""
    timed = [job for job in snapshot.jobs if job.not_before or job.spec.begin_at]
    gates = (gate for job in timed if job.state is JobState.PENDING for gate in (job.not_before, job.spec.begin_at))
    turns = (at for view in decided.windows for at in (view.window.start, view.lapses_at, view.window.end))
    return min((now + _REASONS_KEEP, *(at for at in (*gates, *turns) if at is not None and at > now)))


def record_reservations(context: TickContext, windows: tuple[WindowView, ...]) -> None:
    """Record the reservations that the plan found claimed, or not claimed in time: each is decided once."""
    if with_claims(context.queue.controls, windows) is context.queue.controls:
        return
    with context.store.transaction() as transaction:
        before = transaction.controls()
        after = with_claims(before, windows)
        if after is not before:
            transaction.set_controls(after)
    for view in windows:
        if view.window.key in after.released.keys() - before.released.keys():
            log.info("reservation %s is released: unused", view.window.name)
        elif view.window.key in after.claimed.keys() - before.claimed.keys():
            log.info("reservation %s is claimed", view.window.name)
    context.refresh()
