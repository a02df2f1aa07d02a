"""Plan of the scheduler's pass, and the forecast: its decisions simulated over planned runtimes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import cached_property
from heapq import heapify, heappop, heappush, nsmallest
from typing import NamedTuple

from msgspec import Struct, field

from gputui.domain.container import EngineGpus, RuntimeStatus
from gputui.domain.gpu import HealthCode
from gputui.domain.job import Job, Placement
from gputui.domain.job_spec import JobId, runtime_in
from gputui.domain.policy.availability import EngineSupport, engine_support
from gputui.domain.policy.cluster_state import ClusterState, RunningJob
from gputui.domain.policy.decide import Outcome, can_decide, decide, next_settling
from gputui.domain.policy.lanes import LaneKey, Waiting
from gputui.domain.policy.placement import SOON
from gputui.domain.policy.planning_context import PlanningContext
from gputui.domain.policy.queue_order import OrderCache, OrderedQueue, order_queue, queue_lanes
from gputui.domain.policy.reasons import Gated, Reasons, StartDecision
from gputui.domain.policy.retry import FastFailureGuard, pause_end
from gputui.domain.policy.waits import ArrayTally, Dependencies
from gputui.domain.runs import Run as Elements
from gputui.domain.runs import Spans, joined_spans
from gputui.domain.settings import SchedulerSettings, Settings
from gputui.domain.snapshot import Snapshot, WindowView
from gputui.domain.state import NO_HOST_JOBS, NO_SCHEDULER, PendingReason, Reason, utc_moment
from gputui.domain.text import format_duration


class Arrival(NamedTuple):
    """Job that begins to wait at a given time."""

    at: float
    key: LaneKey
    item: Waiting


class Reach(Struct, eq=False):
    """Limits of a simulation, and how far it got."""

    work: float = float("inf")
    """Remaining number of steps; comparing a lane with others is one step."""
    at: float = 0.0
    """Time up to which every start is known."""
    is_short: bool = False
    """True if the simulation stopped early."""


def simulate(
    cluster: ClusterState,
    now: float,
    arrivals: Iterable[Arrival] = (),
    lasts: Callable[[RunningJob], float] = lambda run: run.duration,
    moments: Iterable[float] = (),
    ended: Callable[[RunningJob, float], Iterable[Arrival]] = lambda run, at: (),
    reach: Reach | None = None,
) -> Iterator[RunningJob]:
    """Yield each start from now on, in order, simulated on the cluster state itself, as far as `reach` allows.

    `lasts` returns the actual seconds of a run; `moments` are further times at which to decide; `ended` may answer the
    end of a run with jobs that waited for it. Jobs that can never start are not reported.
    """
    reach = reach or Reach()
    agenda = _Agenda(cluster, now, arrivals, moments)
    at = now
    while True:
        agenda.play(cluster, at, ended)
        settles_at = _NEVER
        if can_decide(cluster) and cluster.lanes:
            outcome = decide(cluster, at)
            reach.work -= _LOOK + outcome.work
            for run in outcome.starts:
                agenda.ends_at(at + lasts(run), run)
                yield run
            settles_at = next_settling(cluster, outcome, at)
        reach.at = at
        following = min(agenda.next_at, settles_at)
        if following == _NEVER:
            return
        if reach.work <= 0:
            reach.is_short = True
            return
        at = max(at, following)


_NEVER = float("inf")


class _Agenda:
    """Events to come in a simulation: ends of runs, arrivals of jobs and other times at which to look."""

    def __init__(
        self, cluster: ClusterState, now: float, arrivals: Iterable[Arrival], moments: Iterable[float]
    ) -> None:
        self._ends = [(max(now, run.ends(now)), run.id) for run in cluster.runs.values()]
        self._coming = [(arrival.at, number, arrival) for number, arrival in enumerate(arrivals)]
        """Arrivals by time; of those at one time the first that was known goes first."""
        self._looks = [moment for moment in moments if moment > now]
        self._count = len(self._coming)
        heapify(self._ends)
        heapify(self._coming)
        heapify(self._looks)

    def ends_at(self, at: float, run: RunningJob) -> None:
        heappush(self._ends, (at, run.id))

    @property
    def next_at(self) -> float:
        """Time of the next event; infinity when there is none."""
        firsts = [queue[0][0] for queue in (self._ends, self._coming) if queue]
        return min([*firsts, *self._looks[:1]], default=_NEVER)

    def play(self, cluster: ClusterState, at: float, ended: Callable[[RunningJob, float], Iterable[Arrival]]) -> None:
        """Apply all events up to that time to the cluster."""
        while self._ends and self._ends[0][0] <= at:
            for arrival in ended(cluster.end(heappop(self._ends)[1], at), at):
                self._count += 1
                heappush(self._coming, (arrival.at, self._count, arrival))
        while self._coming and self._coming[0][0] <= at:
            arrival = heappop(self._coming)[2]
            cluster.add(arrival.key, arrival.item, at)
        while self._looks and self._looks[0] <= at:
            heappop(self._looks)


_LOOK = 1_500
"""Minimum steps that one decision costs."""


SETTLINGS = 16
"""Maximum number of times at which a forecast decides only because jobs accept fewer GPUs."""
WORK, WORK_A_START = 100_000, 1_000
"""Maximum number of steps of a forecast; a lane examined or a job refused is one step of some microseconds."""


def expected_runs(
    context: PlanningContext, gated: OrderedQueue, most: int, reach: Reach | None = None
) -> Iterator[RunningJob]:
    """Yield the first `most` starts after those of now, with their planned GPUs.

    GPUs that are not read, or lost, stay away: other jobs get none of them. `reach` records how far the forecast got.
    """
    reach = reach or Reach()
    reach.work = WORK + WORK_A_START * most
    if most <= 0:
        return
    cluster, now = context.cluster.copy(), context.second
    # GPUs that were just released count as free
    cluster.free = [free | settling for free, settling in zip(cluster.free, cluster.freed, strict=True)]
    known, behind = _coming(context, gated)
    there = context.gpus.known()

    def ended(run: RunningJob, at: float) -> Iterator[Arrival]:
        cluster.free = [free & sound for free, sound in zip(cluster.free, there, strict=True)]
        return behind.ended(run, at)

    moments = [moment for keep in cluster.keeps for moment in (keep.end, keep.start)]
    # the scheduler decides when jobs accept fewer GPUs, and the order may have changed even if none starts by that
    patience = cluster.rules.patience
    ranges = (lane for key, lane in cluster.lanes.items() if patience and key.ask.minimum < key.ask.maximum)
    times = (item.since + patience for lane in ranges for item in lane.waiting)
    moments += nsmallest(SETTLINGS, {at for at in times if at > now})
    runs = simulate(cluster, now, known, moments=moments, ended=ended, reach=reach)
    for number, run in enumerate(runs, 1):
        yield run
        if number == most:
            reach.at, reach.is_short = run.started, True
            return


def _coming(context: PlanningContext, gated: OrderedQueue) -> tuple[list[Arrival], _Dependents]:
    """Return the jobs that will wait for GPUs from a known time on, and those that will once others have ended."""
    known: list[Arrival] = []
    jobs = {job.id: job for job in context.snapshot.jobs} if gated.jobs or context.making_way else {}
    dependencies = Dependencies.of(jobs.values())
    behind = _Dependents(dependencies.arrays)
    for _, key, item in queue_lanes(context, [jobs[victim] for victim in context.making_way]):
        behind.preempted[item.id] = Arrival(context.second, key, item)
    for entry in gated:
        job = entry.job
        unmet = dependencies.awaited(job)
        times = [at.timestamp() for at in (job.not_before, job.spec.begin_at) if at is not None and at > context.now]
        at = max(times, default=context.second)
        arrival = Arrival(at, entry.key, _later(entry.item, at - context.second))
        if unmet:
            behind.add(arrival, unmet)
        elif times:
            known.append(arrival)
    return known, behind


class _Dependents:
    """Jobs that wait for the end of others."""

    def __init__(self, arrays: Mapping[JobId, ArrayTally]) -> None:
        self._elements: dict[JobId, Spans] = {}
        for array, tally in arrays.items():
            if tally.left:
                runs = (run for job in tally.unfinished for run in job.runs or (Elements(job.id, 0, 1),))
                self._elements[array] = joined_spans((run.id, run.end) for run in runs)
        self._left = {array: tally.left for array, tally in arrays.items()}
        self._unmet: dict[JobId, set[JobId]] = {}
        self._waiting: dict[JobId, list[Arrival]] = {}
        self.preempted: dict[JobId, Arrival] = {}
        """Running jobs that wait again once they have ended."""

    def add(self, arrival: Arrival, unmet: set[JobId]) -> None:
        self._unmet[arrival.item.id] = unmet
        for other in unmet:
            self._waiting.setdefault(other, []).append(arrival)

    def ended(self, run: RunningJob, at: float) -> Iterator[Arrival]:
        """Yield the jobs whose last dependency ends with this run."""
        if back := self.preempted.pop(run.id, None):
            yield _put_off(back, at + SOON)
            return
        for over in self._over(run.id):
            for arrival in self._waiting.pop(over, ()):
                unmet = self._unmet[arrival.item.id]
                unmet.discard(over)
                if not unmet:
                    yield _put_off(arrival, max(at, arrival.at))

    def _over(self, job_id: JobId) -> Iterator[JobId]:
        """Yield the id of an ended job, unless it stands for its array, and the ids of arrays that have ended."""
        if job_id not in self._elements:
            yield job_id
        for array, ids in self._elements.items():
            if job_id in ids:
                self._left[array] -= 1
                if not self._left[array]:
                    yield array


def _put_off(arrival: Arrival, at: float) -> Arrival:
    """Return the arrival at a later time; its eligible wait does not grow until then."""
    return Arrival(at, arrival.key, _later(arrival.item, at - arrival.at))


def _later(item: Waiting, seconds: float) -> Waiting:
    return item._replace(since=item.since + seconds) if seconds else item


class GateContext(Struct, dict=True):
    """Facts that the gates check, gathered once for all jobs."""

    now: datetime
    settings: SchedulerSettings
    guard: FastFailureGuard
    snapshot: Snapshot
    runtimes: Mapping[str, RuntimeStatus]

    @cached_property
    def dependencies(self) -> Dependencies:
        return Dependencies.of(self.snapshot.jobs, self.snapshot.unreadable)

    @cached_property
    def support(self) -> EngineSupport:
        present = [view.gpu for view in self.snapshot.gpus if view.health.code is not HealthCode.LOST]
        return engine_support(self._engine, present, self.snapshot.elsewhere)

    @property
    def _engine(self) -> EngineGpus | None:
        status = self.runtimes.get(runtime_in(self.runtimes, is_host=False))
        return status.gpus if status else None

    @cached_property
    def is_open(self) -> bool:
        """Whether neither a pause nor a runtime nor repeated failures can keep any job from starting."""
        up = [name for name, status in self.runtimes.items() if status.up]
        all_up = all(runtime_in(up, is_host=each) for each in (False, True))
        is_free = not (self.snapshot.jobs_machine or self.snapshot.controls.paused or self.guard)
        return is_free and all_up and self.support.is_full

    @cached_property
    def paused(self) -> Reason | None:
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
        runtimes = {status.name: status for node in snapshot.nodes for status in node.runtimes}
        return cls(now, settings, FastFailureGuard.of(snapshot.jobs, settings), snapshot, runtimes)


def first_gate(job: Job, situation: GateContext) -> Reason | None:
    """Return the reason of the first closed gate; None if all are open."""
    spec = job.spec
    has_own = job.held or job.not_before or spec.after or spec.after_any or spec.begin_at
    if has_own and (reason := _own_gate(job, situation)):
        return reason
    if situation.guard and (text := situation.guard.reason(job)):
        return Reason(PendingReason.BACK_OFF, text)
    if reason := situation.paused or situation.down[spec.is_host]:
        return reason
    refused = None if spec.is_host else situation.support.refuses(spec.gpus)
    return Reason(PendingReason.NODE_UNKNOWN, refused.sentence) if refused else None


def _own_gate(job: Job, situation: GateContext) -> Reason | None:
    """Return what the job itself waits for: its release, other jobs, its begin time, or the end of its back-off."""
    spec, now = job.spec, situation.now
    if job.held and job.hold_reason:
        return Reason(PendingReason.JOB_HELD_USER, job.hold_reason)
    if job.held:
        since = f" at {utc_moment(job.held_at, now)}" if job.held_at else ""
        text = f"held by {job.held_by or 'a user'}{since}: release it to let it start"
        return Reason(PendingReason.JOB_HELD_USER, text, (job.held_at,) if job.held_at else ())
    if (spec.after or spec.after_any) and (unmet := situation.dependencies.unmet(job)):
        return Reason(PendingReason.DEPENDENCY, unmet)
    begin_at = spec.begin_at
    if begin_at is not None and begin_at > now:
        text = f"begins at {utc_moment(begin_at, now)}, in {format_duration(begin_at - now)}"
        return Reason(PendingReason.BEGIN_TIME, text, (begin_at,))
    if (at := pause_end(job, now, situation.settings.backoff_cap)) is not None:
        cause = job.end_words or "its last attempt failed"
        text = f"attempt {job.next_attempt} at {utc_moment(at, now)}, in {format_duration(at - now)}: {cause}"
        return Reason(PendingReason.BACK_OFF, text, (at,))
    return None


def _down(situation: GateContext, *, is_host: bool) -> Reason | None:
    status = situation.runtimes.get(runtime_in(situation.runtimes, is_host=is_host))
    if not situation.runtimes and situation.snapshot.leader is None:
        return Reason(PendingReason.NODE_UNKNOWN, NO_SCHEDULER)
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
    if is_host and (machine := situation.snapshot.jobs_machine):
        return Reason(PendingReason.NODE_UNKNOWN, f"{NO_HOST_JOBS.format(machine)}: name an image")
    return None if status.up else Reason(PendingReason.NODE_UNKNOWN, status.text)


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
    preemption = context.victims.promise if context.victims is not None else None
    outcome = decide(context.cluster, context.second, turns, preemption) if lanes else Outcome()
    if (hold := outcome.hold) is not None:
        for job_id in hold.preempts:  # they count as gone at the end of their grace period
            context.cluster.runs[job_id].leaving = hold.at
            context.making_way[job_id] = hold.id
    return StartDecision(context, waiting, gated, outcome)


def _parted(context: PlanningContext, waiting: OrderedQueue, situation: GateContext) -> tuple[Gated, OrderedQueue]:
    """Split the queue into jobs that gates keep from starting, and the others."""
    asked = context.waiting
    if situation.is_open:  # only few may be gated
        asked = [
            job
            for job in asked
            if job.held or job.not_before or (spec := job.spec).after or spec.after_any or spec.begin_at
        ]
    why = {job.id: reason for job in asked if (reason := first_gate(job, situation)) is not None}
    if not why:
        return Gated(why, OrderedQueue([], [], [])), waiting
    closed = {is_host: bool(situation.paused or situation.down[is_host]) for is_host in (False, True)}
    gated = waiting.at(
        place for place, job in enumerate(waiting.jobs) if job.id in why and not (job.held or closed[job.spec.is_host])
    )
    return Gated(why, gated), waiting.at(place for place, job in enumerate(waiting.jobs) if job.id not in why)


def plan(snapshot: Snapshot, settings: Settings, now: datetime, known: OrderCache | None = None) -> Plan:
    """Return the jobs that start now, and reason and expected start of the others.

    `known` caches facts of an earlier plan; it only saves work.
    """
    decided = decide_starts(snapshot, settings, now, known)
    context, waiting, gated, outcome = decided
    reach, hold = Reach(), outcome.hold
    may_start = (
        context.cluster.lanes
        or context.making_way
        or any(job.not_before or (spec := job.spec).begin_at or spec.after or spec.after_any for job in gated.line.jobs)
    )  # as all others wait for nothing that comes by itself
    runs = expected_runs(context, gated.line, settings.policy.forecast_jobs, reach) if may_start else ()
    foreseen = {run.id: run.started for run in runs}
    return Plan(
        starts=tuple(Placement(run.id, context.gpus.uuids(run.grant), run.gpu_share) for run in outcome.starts),
        order=waiting.ids(),
        reasons=Reasons(decided, foreseen),
        reservations=(Placement(hold.id, context.gpus.uuids(hold.grant)),) if hold else (),
        preemptions=tuple(Preemption(victim, hold.id) for victim in hold.preempts) if hold else (),
        forecast={job_id: context.when(start) for job_id, start in foreseen.items()},
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
