"""Planning context: a snapshot converted to the cluster state for decisions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import cached_property, partial

from msgspec import Struct, field

from gputui.domain.entries import Entries
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.policy.backfill import BackfillReservation
from gputui.domain.policy.cluster_state import ClusterState, PolicyRules, RunningJob
from gputui.domain.policy.dependency import Dependencies
from gputui.domain.policy.durations import Durations, DurationSource, Planned
from gputui.domain.policy.effective_settings import effective_settings
from gputui.domain.policy.eligible_wait import counted_wait, eligible_since
from gputui.domain.policy.fairshare import UsageLedger
from gputui.domain.policy.gpus import sharing
from gputui.domain.policy.gpus.index import GpuIndex
from gputui.domain.policy.gpus.recently_freed import recently_freed
from gputui.domain.policy.gpus.sharing import SharedGpus
from gputui.domain.policy.lanes import LaneKey, LanePlace
from gputui.domain.policy.order import topped_at_number
from gputui.domain.policy.preemption import Victims, find_victims, is_making_way, leaves_at
from gputui.domain.policy.reservations import reservation_views
from gputui.domain.policy.reserved_gpus import Scene, judge_reservations
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot, WindowView
from gputui.domain.state import JobState


class JobLookup:
    """Jobs by id, indexed at the first lookup."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = jobs
        self._entries: Entries | None = None

    def job(self, job_id: JobId) -> Job | None:
        """Return the job with that id, or the array entry that contains it; None if it is gone."""
        if self._entries is None:
            self._entries = Entries({job.id: job for job in self._jobs})
        return self._entries.entry(job_id)


def predict_runtime(found: JobLookup, durations: Durations, job_id: JobId) -> float | None:
    """Return the predicted runtime of a job in seconds, from past runs of its kind.

    Not a method of PlanningContext: the cluster state keeps a reference to it, and a reference cycle would keep a plan
    for 10,000 jobs with a hundred thousand objects in memory until the next, rare collection of old garbage.
    """
    job = found.job(job_id)
    return None if job is None else durations.prediction(job)


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
    found: JobLookup
    """Lookup of the snapshot's jobs by id."""
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
        cluster = ClusterState(rules, gpus.layouts, gpus.free(), ledger)
        cluster.shares = SharedGpus(gpus.bays(settings))
        durations = Durations(snapshot.jobs, settings.policy, settings.scheduler.max_time)
        waiting = [job for job in snapshot.jobs if job.state is JobState.PENDING]
        context = cls(snapshot, settings, now, second, gpus, durations, cluster, waiting, JobLookup(snapshot.jobs))
        if durations.predicts:
            cluster.expects = partial(predict_runtime, context.found, durations)
        for job in [job for job in snapshot.jobs if job.attempts]:
            context._count(job)
        cluster.freed = recently_freed(snapshot.jobs, gpus, now)
        context.victims = find_victims(snapshot, settings.policy, gpus, now)
        if windows:
            scene = Scene(snapshot.jobs, gpus, cluster, now)
            context.windows, cluster.keeps = judge_reservations(windows, scene)
        return context

    def _count(self, job: Job) -> None:
        """Account for the job's attempts, past and current."""
        for attempt in job.attempts:
            if attempt.gpus and attempt.started_at and attempt.ended_at:
                gpus = len(attempt.gpus) * attempt.gpu_share
                self.cluster.ledger.begin(job.spec.tenant, gpus, attempt.started_at.timestamp())
                self.cluster.ledger.end(job.spec.tenant, gpus, attempt.ended_at.timestamp())
        if job.state.is_active and not job.attempts[-1].is_over:
            started = job.attempts[-1].started_at or job.attempts[-1].claimed_at or self.now
            self.sources[job.id] = self.durations.expected(job).source
            grant, part = self.gpus.grant(job.gpus), job.attempts[-1].gpu_share
            for place in sharing.gpu_bits(grant) if job.spec.gpus.promised else ():
                self.cluster.shares.take(job.id, place, self.gpus.counts_with(job, place))
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
        when = topped_at_number(job) if job.topped_at else 0.0
        nice = max(0, stands.nice if stands else job.spec.nice)
        key = LaneKey(job.spec.tenant, ask, job.priority, planned, nice, when)
        if stands is not None:
            as_planned = self.durations.planned(stands.time_limit)
            key = key._replace(placed=LanePlace(stands.tenant, as_planned, stands.beside, stands.tie))
        return key if array is None or limit is None else key._replace(array=array.id, array_limit=limit)

    def job(self, job_id: JobId) -> Job | None:
        """Return the job with that id, or the array entry that contains it; None if it is gone."""
        return self.found.job(job_id)

    @cached_property
    def dependencies(self) -> Dependencies:
        """Jobs that waiting ones depend on."""
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
        """Return the expected runtime of a job once it has started."""
        job = self.job(job_id)
        return Planned(self.durations.longest, DurationSource.DEFAULT) if job is None else self.durations.expected(job)

    def make_way(self, hold: BackfillReservation | None) -> None:
        """Treat the victims of the head as gone at the end of their grace period."""
        if hold is None:
            return
        for job_id in hold.preempts:
            self.cluster.runs[job_id].leaving = hold.at
            self.making_way[job_id] = hold.id

    def when(self, second: float) -> datetime:
        """Return the time for a second of the cluster state."""
        return self.now + timedelta(seconds=second - self.second)
