"""Forecast of starts: simulates the scheduler's decisions over planned runtimes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush, nsmallest
from typing import NamedTuple

from msgspec import Struct

from gputui.domain.job_spec import JobId
from gputui.domain.policy.cluster_state import ClusterState, RunningJob
from gputui.domain.policy.decide import can_decide, decide, next_settling
from gputui.domain.policy.gpus.placement import SOON
from gputui.domain.policy.lanes import LaneKey, Waiting
from gputui.domain.policy.planning_context import PlanningContext
from gputui.domain.policy.queue_order import QueuedJob, queue_lanes
from gputui.domain.policy.waits import ArrayTally, Dependencies
from gputui.domain.runs import Run as Elements
from gputui.domain.runs import Spans, joined_spans


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
    context: PlanningContext, gated: Iterable[QueuedJob], most: int, reach: Reach | None = None
) -> Iterator[RunningJob]:
    """Yield the first `most` starts after those of now, with their planned GPUs.

    `reach` records how far the forecast got.
    """
    reach = reach or Reach()
    reach.work = WORK + WORK_A_START * most
    for number, run in enumerate(_runs(context, gated, reach) if most > 0 else (), 1):
        yield run
        if number == most:
            reach.at, reach.is_short = run.started, True
            return


def _runs(context: PlanningContext, gated: Iterable[QueuedJob], reach: Reach) -> Iterator[RunningJob]:
    cluster = context.cluster.copy()
    # GPUs that were just released count as free
    cluster.free = [free | settling for free, settling in zip(cluster.free, cluster.freed, strict=True)]
    later = list(gated)
    known, behind = _coming(context, later)
    moments = [*(keep.end for keep in cluster.keeps), *(keep.start for keep in cluster.keeps)]
    moments += _settling(cluster, context.second)
    return simulate(cluster, context.second, known, moments=moments, ended=behind.ended, reach=reach)


def _settling(cluster: ClusterState, now: float) -> list[float]:
    """Return the first few times at which jobs accept fewer GPUs, in seconds.

    The scheduler decides at these times, and the order may have changed even if no job starts because of it.
    """
    patience = cluster.rules.patience
    ranges = (lane for key, lane in cluster.lanes.items() if patience and key.ask.minimum < key.ask.maximum)
    times = (item.since + patience for lane in ranges for item in lane.waiting)
    return nsmallest(SETTLINGS, {at for at in times if at > now})


def _coming(context: PlanningContext, gated: Iterable[QueuedJob]) -> tuple[list[Arrival], _Dependents]:
    """Return the jobs that will wait for GPUs from a known time on, and those that will once others have ended."""
    known: list[Arrival] = []
    open_ones = [] if context.snapshot.controls.paused else [entry for entry in gated if not entry.job.held]
    jobs = {job.id: job for job in context.snapshot.jobs} if open_ones or context.making_way else {}
    dependencies = Dependencies.of(jobs.values())
    behind = _Dependents(dependencies.arrays)
    for _, key, item in queue_lanes(context, [jobs[victim] for victim in context.making_way]):
        behind.comes_back(Arrival(context.second, key, item))
    for entry in open_ones:
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
        """`arrays` are those that some of the jobs wait for."""
        self._elements = {array: _ids_of(tally) for array, tally in arrays.items() if tally.left}
        self._left = {array: tally.left for array, tally in arrays.items()}
        self._unmet: dict[JobId, set[JobId]] = {}
        self._waiting: dict[JobId, list[Arrival]] = {}
        self._preempted: dict[JobId, Arrival] = {}

    def add(self, arrival: Arrival, unmet: set[JobId]) -> None:
        """Record that a job waits for all of these."""
        self._unmet[arrival.item.id] = unmet
        for other in unmet:
            self._waiting.setdefault(other, []).append(arrival)

    def comes_back(self, arrival: Arrival) -> None:
        """Record that a running job is preempted and waits again once the other has started."""
        self._preempted[arrival.item.id] = arrival

    def ended(self, run: RunningJob, at: float) -> Iterator[Arrival]:
        """Yield the jobs whose last dependency ends with this run."""
        if back := self._preempted.pop(run.id, None):
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


def _ids_of(tally: ArrayTally) -> Spans:
    return joined_spans((run.id, run.end) for job in tally.unfinished for run in job.runs or (Elements(job.id, 0, 1),))


def _put_off(arrival: Arrival, at: float) -> Arrival:
    """Return the arrival at a later time; its eligible wait does not grow until then."""
    return Arrival(at, arrival.key, _later(arrival.item, at - arrival.at))


def _later(item: Waiting, seconds: float) -> Waiting:
    return item._replace(since=item.since + seconds) if seconds else item
