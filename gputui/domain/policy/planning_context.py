"""Planning context: a snapshot converted to the cluster state for decisions.

A job is planned to run until its limit; a job without a limit, for the longest time allowed, so never shorter than one
with a limit: omitting the limit brings no advantage. Order and backfill use only the planned runtime. The last runs of
the same kind only predict when a running job without a limit will end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from functools import cache, cached_property
from typing import NamedTuple, TypeAlias

from msgspec import Struct, field

from gputui.domain.arrays import Entries
from gputui.domain.gpu import GpuState
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.policy.cluster_state import ClusterState, PolicyRules, RunningJob, UsageLedger
from gputui.domain.policy.lanes import LaneKey, LanePlace
from gputui.domain.policy.placement import GpuIndex, SharedGpus, gpu_bits, gpu_masks, recently_freed
from gputui.domain.policy.preemption import Victims, find_victims, is_making_way, leaves_at
from gputui.domain.policy.reservations import Scene, judge_reservations, reservation_views
from gputui.domain.policy.waits import Dependencies, counted_wait, eligible_since
from gputui.domain.settings import PolicySettings, Settings
from gputui.domain.snapshot import Snapshot, WindowView, effective_settings
from gputui.domain.state import JobState

LONGEST = timedelta(hours=72)
"""Longest time allowed if the site sets none and no job has a longer limit."""
_LAST = 2
"""Tsafrir et al. (TPDS 2007): the mean of the user's last two runs predicts better than users do."""
RunKind: TypeAlias = tuple[str, str]
"""Tenant, and name or image."""


class DurationSource(Enum):
    LIMIT = "by its limit"
    PREDICTION = "if it runs as long as the last ones did"
    DEFAULT = "by the longest time allowed"


class Planned(NamedTuple):
    """Planned runtime and its source."""

    seconds: float
    source: DurationSource


class Durations:
    """Planned and expected durations, from the jobs of a queue and the rules of the site."""

    def __init__(self, jobs: Iterable[Job], settings: PolicySettings, max_time: timedelta | None = None) -> None:
        """`max_time` is the longest limit that users may set; `settings` may override it for planning."""
        known = list(jobs)
        allowed = settings.max_time or max_time
        limits = (
            limit
            for job in known
            if (limit := job.spec.time_limit) and limit > LONGEST and not job.state.is_terminal and not job.held
        )
        self.longest = (allowed or max(limits, default=LONGEST)).total_seconds()
        """Seconds that a job without a limit is planned to run.

        If the site sets none, the longest limit of a live job that is not held.
        """
        self._most = self.longest if settings.max_time else float("inf")
        """Maximum seconds of any job: the site's, or more if an operator extended a running job."""
        if allowed and not settings.max_time:
            live = (job.spec.time_limit for job in known if job.limit_changed_at is not None and job.state.is_active)
            extended = (limit for limit in live if limit and limit > allowed)
            self._most = max(allowed, *extended, timedelta()).total_seconds()
        self.basis: object = (self._most, self.longest)
        """Values that the planned durations depend on, apart from the jobs; if they are equal, so are the durations."""
        self._jobs = known if settings.predict else ()

    @cached_property
    def predicted(self) -> Mapping[RunKind, float]:
        """Expected seconds of jobs without a limit, by their kind, from the last runs of that kind."""
        done: dict[RunKind, list[tuple[datetime, float]]] = {}
        for job in self._jobs:
            if job.state is JobState.COMPLETED and job.started_at and job.ended_at and run_kind(job)[1]:
                took = (job.ended_at - job.started_at).total_seconds()
                done.setdefault(run_kind(job), []).append((job.ended_at, took))
        found = {which: predict_seconds([took for _, took in sorted(runs)]) for which, runs in done.items()}
        return {which: seconds for which, seconds in found.items() if seconds is not None}

    def seconds(self, job: Job) -> float:
        """Return the planned seconds, used for order and backfill."""
        return self.planned(job.spec.time_limit)

    def planned(self, limit: timedelta | None) -> float:
        if limit is None:
            return self.longest
        seconds = limit.total_seconds()
        return seconds if seconds < self._most else self._most  # noqa: FURB136 - min() costs more

    def planned_for(self, job: Job) -> Planned:
        return Planned(
            self.seconds(job), DurationSource.DEFAULT if job.spec.time_limit is None else DurationSource.LIMIT
        )

    def expected(self, job: Job) -> Planned:
        """Return the expected duration of a job once it has started; no job is ended because of it."""
        predicted = self.predicted.get(run_kind(job)) if job.spec.time_limit is None else None
        if predicted is not None and predicted < self.longest:
            return Planned(predicted, DurationSource.PREDICTION)
        return self.planned_for(job)

    def prediction(self, job: Job) -> float | None:
        """Return the expected seconds if they differ from the planned ones."""
        if not self.predicted or job.spec.time_limit is not None:
            return None
        found = self.expected(job)
        return found.seconds if found.source is DurationSource.PREDICTION else None


def run_kind(job: Job) -> RunKind:
    """Return the kind by which it is predicted: tenant and name, or image if it has no name."""
    return (job.spec.tenant, job.spec.name or job.spec.image or "")


def predict_seconds(took: Sequence[float]) -> float | None:
    """Return the expected seconds of the next run from past runtimes; None if there are too few."""
    last = took[-_LAST:]
    return max(1.0, sum(last) / _LAST) if len(last) == _LAST else None


class PlanningContext(Struct, dict=True):
    """Input of a plan: the state of the cluster, and the mapping back to jobs and times."""

    snapshot: Snapshot
    settings: Settings
    now: datetime
    second: float
    gpus: GpuIndex
    durations: Durations
    cluster: ClusterState
    waiting: list[Job]
    """Waiting jobs, as in the snapshot."""
    job: Callable[[JobId], Job | None]
    """Returns the job of the snapshot with that id, or the array entry that contains it; None if it is gone."""
    sources: dict[JobId, DurationSource] = field(default_factory=dict)
    """Sources of the planned ends of running jobs."""
    making_way: dict[JobId, JobId] = field(default_factory=dict)
    """Running jobs that are preempted, each with the job that preempts it."""
    victims: Victims | None = None
    """Running jobs that may be preempted now; None if the site has preemption off."""
    windows: tuple[WindowView, ...] = ()

    @classmethod
    def at(cls, snapshot: Snapshot, settings: Settings, now: datetime) -> PlanningContext:
        """Return the context of a snapshot, still without queued jobs."""
        windows = reservation_views(settings.policy, snapshot.controls, now)
        settings = effective_settings(settings, snapshot.controls)
        gpus = GpuIndex.of(snapshot.nodes, settings.policy)
        second = now.timestamp()
        ledger = UsageLedger(settings.policy.half_life.total_seconds(), second)
        for tenant, used in snapshot.usage.gpu_seconds.items():
            ledger.credit(tenant, used, snapshot.usage.at.timestamp())
        rules = PolicyRules.of(settings.policy, settings.scheduler.cpu_jobs)
        cluster = ClusterState(rules, gpus.layouts, gpu_masks(gpus, lambda row: row.state is GpuState.FREE), ledger)
        cluster.shares = SharedGpus(gpus.bays(settings))
        durations = Durations(snapshot.jobs, settings.policy, settings.scheduler.max_time)
        waiting = [job for job in snapshot.jobs if job.state is JobState.PENDING]
        jobs = snapshot.jobs
        entries = cache(lambda: Entries({job.id: job for job in jobs}))  # indexed at the first lookup
        context = cls(
            snapshot, settings, now, second, gpus, durations, cluster, waiting, lambda job_id: entries().entry(job_id)
        )

        def expects(job_id: JobId) -> float | None:
            # knows no context: the cluster state keeps it, and a reference cycle would keep a plan for 10,000 jobs with
            # a hundred thousand objects in memory until the next, rare collection of old garbage
            job = entries().entry(job_id) if durations.predicted else None
            return None if job is None else durations.prediction(job)

        cluster.expects = expects
        for job in [job for job in snapshot.jobs if job.attempts]:
            context._count(job)
        cluster.freed = recently_freed(snapshot.jobs, gpus, now)
        context.victims = find_victims(snapshot, settings.policy, gpus, now) if settings.policy.preemption else None
        if windows:
            scene = Scene(snapshot.jobs, gpus, cluster, now)
            context.windows, cluster.keeps = judge_reservations(windows, scene)
        return context

    def _count(self, job: Job) -> None:
        for attempt in job.attempts:
            if attempt.gpus and attempt.started_at and attempt.ended_at:
                gpus = len(attempt.gpus) * attempt.gpu_share
                self.cluster.ledger.begin(job.spec.tenant, gpus, attempt.started_at.timestamp())
                self.cluster.ledger.end(job.spec.tenant, gpus, attempt.ended_at.timestamp())
        if job.state.is_active and not job.attempts[-1].is_over:
            started = job.attempts[-1].started_at or job.attempts[-1].claimed_at or self.now
            self.sources[job.id] = self.durations.expected(job).source
            grant, part = self.gpus.grant(job.gpus), job.attempts[-1].gpu_share
            for place in gpu_bits(grant) if job.spec.gpus.promised else ():
                known = (sharer.memory for sharer in self.gpus.row(place).sharers if sharer.job_id == job.id)
                self.cluster.shares.take(job.id, place, max(next(known, 0), job.spec.gpus.promised))
            leaving, by = leaves_at(job, self.settings), job.attempts[-1].preempted_by
            key, expected = self.key(job, self.durations.seconds(job)), self.durations.prediction(job)
            self.cluster.occupy(
                RunningJob(job.id, key, grant, started.timestamp(), part, leaving, expected, len(job.gpus))
            )
            if by is not None and is_making_way(job):
                self.making_way[job.id] = by

    def key(self, job: Job, planned: float) -> LaneKey:
        """Return the lane of a job with that many planned seconds."""
        ask, array, stands = self.gpus.ask(job), job.array, job.placed if job.state is JobState.PENDING else None
        limit = None if array is None else array.limit
        when = job.topped_at.timestamp() if job.topped_at else 0.0
        nice = max(0, stands.nice if stands else job.spec.nice)
        key = LaneKey(job.spec.tenant, ask, job.priority, planned, nice, when)
        if stands is not None:
            as_planned = self.durations.planned(stands.time_limit)
            key = key._replace(placed=LanePlace(stands.tenant, as_planned, stands.beside, stands.tie))
        return key if array is None or limit is None else key._replace(array=array.id, array_limit=limit)

    @cached_property
    def dependencies(self) -> Dependencies:
        return Dependencies.of(self.snapshot.jobs, self.snapshot.unreadable)

    def since(self, job: Job) -> float:
        """Return the start, in seconds since the epoch, of the job's wait, counting only time in which it could run."""
        if job.placed is not None:
            return job.placed.since
        if job.state is not JobState.PENDING:  # it will wait again
            return self.second - counted_wait(job).total_seconds()
        depends = job.spec.after or job.spec.after_any
        return eligible_since(job, self.dependencies.ended_at(job, self.now) if depends else None, self.now)

    def expected(self, job_id: JobId) -> Planned:
        job = self.job(job_id)
        return Planned(self.durations.longest, DurationSource.DEFAULT) if job is None else self.durations.expected(job)

    def when(self, second: float) -> datetime:
        return self.now + timedelta(seconds=second - self.second)
