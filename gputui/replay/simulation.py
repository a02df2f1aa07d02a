"""Replays a trace through the scheduler's own decision, with true durations, predictions and preemption."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from heapq import heappop, heappush
from typing import TypeAlias

from gputui.domain.job_spec import CLASSES, JobId, whole_class
from gputui.domain.policy.cluster_state import ClusterState, PolicyRules, RunningJob, UsageLedger
from gputui.domain.policy.decide import Outcome, can_decide, decide
from gputui.domain.policy.lanes import LaneKey, Waiting
from gputui.domain.policy.placement import SETTLING, Ask, NodeLayout
from gputui.domain.policy.planning_context import predict_seconds
from gputui.domain.policy.preemption import Candidate, Victims
from gputui.domain.settings import PolicySettings
from gputui.replay.trace import Ran, Site, TraceJob

_HOUR = 3600.0


class ReplayPreemption:
    """The rules of preemption, and their results so far."""

    def __init__(self, jobs: Mapping[JobId, TraceJob], settings: PolicySettings) -> None:
        self.grace = settings.preemption_grace.total_seconds()
        self._jobs = jobs
        self._min_run = settings.preemption_min_run.total_seconds()
        self._per_job = settings.preemptions_per_job
        self._per_hour = settings.preemptions_per_hour
        self._preempted_at: deque[float] = deque()
        self._counts: Counter[JobId] = Counter()
        self._making_way: dict[JobId, JobId] = {}
        """Victims that have not ended yet, each with its preemptor."""
        self._gone_at: dict[JobId, float] = {}
        """Time at which the last victim of each preemptor ended."""

    def victims(self, cluster: ClusterState, now: float) -> Victims:
        while self._preempted_at and self._preempted_at[0] <= now - _HOUR:
            self._preempted_at.popleft()
        served = {job_id for job_id, at in self._gone_at.items() if now - at < SETTLING.total_seconds()}
        candidates = []
        for run in cluster.runs.values():
            job = self._jobs[run.id]
            if not job.preemptible or run.leaving is not None or now - run.started < self._min_run:
                continue
            if self._counts[run.id] < self._per_job:
                candidates.append(Candidate(-run.id, whole_class(job.priority), int(run.width * (now - run.started))))
        return Victims(
            grace=self.grace,
            allowed=max(0, self._per_hour - len(self._preempted_at)),
            candidates=tuple(candidates),
            sound=tuple(layout.everything for layout in cluster.layouts),
            served=frozenset(served.union(self._making_way.values())),
        )

    def count_preemption(self, victim: JobId, preemptor: JobId, now: float) -> None:
        self._preempted_at.append(now)
        self._counts[victim] += 1
        self._making_way[victim] = preemptor

    def ended(self, job_id: JobId, at: float) -> None:
        preemptor = self._making_way.pop(job_id, None)
        if preemptor is not None:
            self._gone_at[preemptor] = at

    def started(self, run: RunningJob) -> float | None:
        """Record a start; return when that job may be preempted, if ever."""
        self._gone_at.pop(run.id, None)
        return run.started + self._min_run if self._jobs[run.id].preemptible else None


TraceKind: TypeAlias = tuple[str, str]
"""Tenant and name of a job."""
_SHORTEST = 1.0
"""Minimum seconds of a job; a job of a trace may have taken none."""


class Predictions:
    """Planned and expected durations, from the limits and from the jobs that have ended so far."""

    def __init__(self, jobs: Iterable[TraceJob], settings: PolicySettings) -> None:
        self._most = settings.max_time.total_seconds() if settings.max_time else None
        self._longest_stated = max((job.limit for job in jobs if job.is_limited), default=0.0)
        self._predicts = settings.predict
        self._last: dict[TraceKind, tuple[float, ...]] = {}

    def planned(self, job: TraceJob) -> float:
        """Return the planned seconds, which determine its turn; without a limit the longest allowed."""
        limit = job.limit if job.is_limited else max(job.limit, self._longest_stated)
        if self._most is not None:
            limit = min(self._most, limit) if job.is_limited else self._most
        return max(_SHORTEST, limit)

    def kind(self, job: TraceJob) -> TraceKind | None:
        """Return the kind by which a running job is predicted; None if only its limit counts."""
        return (job.tenant, job.name) if self._predicts and job.name and not job.is_limited else None

    def expected(self, job: TraceJob) -> float | None:
        """Return the expected seconds of a job once it has started; None: as planned."""
        kind = self.kind(job)
        found = None if kind is None else predict_seconds(self._last.get(kind, ()))
        return found if found is not None and found < self.planned(job) else None

    def ended(self, job: TraceJob) -> TraceKind | None:
        """Record the end of a job; return the kind that this predicts, if any."""
        if not (self._predicts and job.name and job.ended_well):
            return None
        kind = (job.tenant, job.name)
        self._last[kind] = (*self._last.get(kind, ())[-1:], job.duration)
        return kind


_AT_ITS_END, _PREEMPTED = 0, 1
"""Kinds of ends; of two ends at the same time the regular one comes first."""


class TraceReplay:
    """A running replay: the cluster state, the jobs to come and the ends of running jobs."""

    def __init__(self, jobs: Sequence[TraceJob], site: Site, settings: PolicySettings) -> None:
        self.now = 0.0
        self._jobs = {job.number: job for job in jobs}
        self._coming = deque(sorted(jobs, key=lambda job: (job.submit, job.number)))
        self._site = site
        self._predictions = Predictions(jobs, settings)
        is_on = settings.preemption and any(job.preemptible for job in jobs)
        self._preemption = ReplayPreemption(self._jobs, settings) if is_on else None
        self._victims: Victims | None = None
        # no job runs without GPUs: where none could, a look that finds no GPU free is over at once, but who preempts
        # needs no free one
        self.cluster = empty_cluster(site, settings, cpu_jobs=int(is_on))
        self.cluster.expects = self._expected
        self._waiting: dict[JobId, tuple[LaneKey, Waiting]] = {}
        self._of_kind: dict[TraceKind, set[JobId]] = {}
        """Running jobs whose expected end is a prediction."""
        self._ends: list[tuple[float, int, JobId, int]] = []
        """Ends as a heap: time, kind, job and number of its run."""
        self._looks: list[float] = []
        self._runs: dict[JobId, int] = {}
        """Number of the current run of each running job."""
        self._waits: dict[JobId, float] = {}
        """Seconds that jobs had waited when they started."""
        self._lost: dict[JobId, tuple[int, float]] = {}
        """Preemptions and lost GPU-seconds of preempted jobs."""
        self._ran: list[tuple[int, Ran]] = []
        self._count = 0

    def run(self) -> list[Ran]:
        """Replay the trace to its end; return the completed runs, in the order of their starts."""
        while True:
            ends = self._ends[0][0] if self._ends else math.inf
            coming = self._coming[0].submit if self._coming else math.inf
            looks = self._looks[0] if self._looks and self.cluster.lanes else math.inf
            at = min(ends, coming, looks)
            if at == math.inf:
                self._ran.sort()
                return [ran for _, ran in self._ran]
            self.now = at
            while self._ends and self._ends[0][0] <= at:
                self._end(*heappop(self._ends))
            while self._coming and self._coming[0].submit <= at:
                job = self._coming.popleft()
                self._wait(job, job.submit)
            while self._looks and self._looks[0] <= at:
                heappop(self._looks)
            if self.cluster.lanes:
                self._look()

    def _look(self) -> None:
        if self._preemption is not None:
            self._victims = self._preemption.victims(self.cluster, self.now)
        elif not can_decide(self.cluster):
            return
        outcome = self.decided()
        for run in outcome.starts:
            self._start(run)
        if self._preemption is not None and outcome.hold is not None and outcome.hold.preempts:
            self._preempt(self._preemption, outcome.hold.id, outcome.hold.preempts)

    def decided(self) -> Outcome:
        """Return the present decision; the cluster state already contains the starts."""
        return decide(self.cluster, self.now, preemption=self._victims.promise if self._victims else None)

    def _wait(self, job: TraceJob, since: float) -> None:
        """Add a job to the queue as one that has waited without interruption since then."""
        planned = self._predictions.planned(job)
        key = LaneKey(job.tenant, ask_of(self._site, job.gpus), job.priority, planned, max(0, job.nice))
        self._put(key, Waiting(since, job.number))

    def _put(self, key: LaneKey, item: Waiting) -> None:
        self._waiting[item.id] = (key, item)
        self.cluster.add(key, item, self.now)

    def _start(self, run: RunningJob) -> None:
        _, item = self._waiting.pop(run.id)
        self._count += 1
        self._runs[run.id] = self._count
        self._waits[run.id] = self.now - item.since
        job = self._jobs[run.id]
        heappush(self._ends, (self.now + job.duration, _AT_ITS_END, run.id, self._count))
        kind = self._predictions.kind(job)
        if kind is not None:
            self._of_kind.setdefault(kind, set()).add(run.id)
        if self._preemption is not None and (at := self._preemption.started(run)) is not None:
            heappush(self._looks, at)

    def _end(self, at: float, how: int, job_id: JobId, number: int) -> None:
        if self._runs.get(job_id) != number:
            return  # it ended earlier in another way
        del self._runs[job_id]
        run, job, waited = self.cluster.end(job_id, at), self._jobs[job_id], self._waits.pop(job_id)
        if self._preemption is not None:
            self._preemption.ended(job_id, at)
        kind = self._predictions.kind(job)
        if kind is not None:
            self._of_kind[kind].discard(job_id)
        times, lost = self._lost.get(job_id, (0, 0.0))
        if how == _PREEMPTED:
            self._lost[job_id] = (times + 1, lost + run.width * (at - run.started))
            self._wait(job, at - waited)
            return
        self._ran.append((number, Ran(job, run.started, at, job.gpus, times, lost)))
        kind = self._predictions.ended(job)
        for other in self._of_kind.get(kind, ()) if kind is not None else ():
            self.cluster.runs[other].expected = self._expected(other)

    def _expected(self, job_id: JobId) -> float | None:
        return self._predictions.expected(self._jobs[job_id])

    def _preempt(self, preemption: ReplayPreemption, head: JobId, victims: Sequence[JobId]) -> None:
        """Stop these for the head, which is put first as if by hand."""
        for victim in victims:
            gone = self.now + preemption.grace
            self.cluster.runs[victim].leaving = gone
            heappush(self._ends, (gone, _PREEMPTED, victim, self._runs[victim]))
            preemption.count_preemption(victim, head, self.now)
        # when further jobs may be preempted
        heappush(self._looks, self.now + preemption.grace + SETTLING.total_seconds())
        heappush(self._looks, self.now + _HOUR)
        key, item = self._waiting[head]
        self.cluster.withdraw(key, item, self.now)
        self._put(key._replace(topped=self.now + 1.0), item)


@cache
def ask_of(site: Site, gpus: int) -> Ask:
    """Return the ask of a job of that width, always the same object; one wider than a node takes whole nodes."""
    nodes = 0 if gpus <= max(site.nodes) else min(-(-gpus // site.per_node), len(site.nodes))
    return Ask(gpus, gpus, tuple((1 << count) - 1 for count in site.nodes), nodes)


def empty_cluster(site: Site, settings: PolicySettings, cpu_jobs: int = 0) -> ClusterState:
    masks = [(1 << count) - 1 for count in site.nodes]
    ledger = UsageLedger(settings.half_life.total_seconds(), 0.0)
    return ClusterState(PolicyRules.of(settings, cpu_jobs), [NodeLayout(mask) for mask in masks], masks, ledger)


TAU = 60.0
"""Minimum seconds of a job in a slowdown (Feitelson's bounded slowdown)."""
WIDE = 4


@dataclass(frozen=True)
class Figures:
    """The figures of one schedule; times are seconds."""

    allocation_ratio: float
    wait_mean: float
    wait_p95: float
    wait_max: float
    bounded_slowdown_mean: float
    makespan: float
    wide_wait_p95: float | None
    """95th percentile of the wait of jobs with 4 GPUs and more; None: there are none."""
    starvation: float
    """The longest wait in multiples of the job's own limit."""
    fairness: float
    """Jain's index over the inverses of the tenants' mean bounded slowdowns: 1 if all are equal."""
    worst_tenant_wait_mean: float
    """The mean wait of the tenant with the longest one."""
    wait_mean_high: float | None
    """Mean wait of jobs of priority 75 to 100; None: there are none."""
    wait_mean_normal: float | None
    """Mean wait of jobs of priority 26 to 74."""
    wait_mean_low: float | None
    """Mean wait of jobs of priority 0 to 25."""
    preemptions: float
    """Number of preemptions; the mean over several schedules."""
    gpu_seconds_lost: float
    """GPU-seconds of preempted runs, which had to be repeated."""


def figures(ran: Sequence[Ran], gpus: int) -> Figures:
    """Return all figures of a schedule on that many GPUs; the schedule must not be empty."""
    waits = sorted(map(wait, ran))
    wide = sorted(wait(each) for each in ran if each.job.gpus >= WIDE)
    of_class: list[float | None] = []
    for grade in range(len(CLASSES)):
        own = [wait(each) for each in ran if whole_class(each.job.priority) == grade]
        of_class.append(math.fsum(own) / len(own) if own else None)
    low, normal, high = of_class
    return Figures(
        allocation_ratio=allocation_ratio(ran, gpus),
        wait_mean=math.fsum(waits) / len(waits),
        wait_p95=percentile(waits, 0.95),
        wait_max=waits[-1],
        bounded_slowdown_mean=math.fsum(bounded_slowdown(each) for each in ran) / len(ran),
        makespan=max(each.end for each in ran) - min(each.job.submit for each in ran),
        wide_wait_p95=percentile(wide, 0.95) if wide else None,
        starvation=max(wait(each) / max(each.job.limit, TAU) for each in ran),
        fairness=fairness(ran),
        worst_tenant_wait_mean=worst_tenant_wait_mean(ran),
        wait_mean_high=high,
        wait_mean_normal=normal,
        wait_mean_low=low,
        preemptions=sum(each.preemptions for each in ran),
        gpu_seconds_lost=math.fsum(each.lost for each in ran),
    )


def wait(ran: Ran) -> float:
    """Return the seconds from submission to the start of the completed run; preempted runs are part of the wait."""
    return ran.start - ran.job.submit


def worst_tenant_wait_mean(ran: Sequence[Ran]) -> float:
    by_tenant: dict[str, list[float]] = defaultdict(list)
    for each in ran:
        by_tenant[each.job.tenant].append(wait(each))
    return max(math.fsum(waits) / len(waits) for waits in by_tenant.values())


def allocation_ratio(ran: Sequence[Ran], gpus: int) -> float:
    """Return A: GPU-seconds given to jobs up to the last submission, over all available ones; without lost work."""
    last = max(each.job.submit for each in ran)
    given = math.fsum(each.gpus * max(0.0, min(each.end, last) - each.start) for each in ran if each.start < last)
    return given / (gpus * last) if last else 0.0


def mean_figures(several: Sequence[Figures]) -> Figures:
    """Return the mean of each figure over the schedules that have it."""

    def mean(name: str) -> float | None:
        values = [getattr(each, name) for each in several if getattr(each, name) is not None]
        return math.fsum(values) / len(values) if values else None

    return Figures(**{field.name: mean(field.name) for field in fields(Figures)})  # type: ignore[arg-type]


def bounded_slowdown(ran: Ran) -> float:
    """Return the time from submission to end over the run time, both of at least a minute."""
    return max(1.0, (ran.end - ran.job.submit) / max(ran.end - ran.start, TAU))


def fairness(ran: Sequence[Ran]) -> float:
    """Return Jain's index (sum x)^2 / (n sum x^2) over tenants' x = 1 / mean bounded slowdown."""
    by_tenant: dict[str, list[float]] = defaultdict(list)
    for each in ran:
        by_tenant[each.job.tenant].append(bounded_slowdown(each))
    shares = [len(slowdowns) / math.fsum(slowdowns) for slowdowns in by_tenant.values()]
    return math.fsum(shares) ** 2 / (len(shares) * math.fsum(share**2 for share in shares))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that is not exceeded by this share of them."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
