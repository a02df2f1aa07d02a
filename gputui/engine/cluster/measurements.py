"""Telemetry of the jobs of a cluster: one process measures, all show what was measured."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from datetime import datetime, timedelta
from operator import is_
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.action import Cancel
from gputui.domain.errors import Cause, CauseCode, GputuiError
from gputui.domain.idle_gpus import IdleSpells, idle_by_gpu, idle_sentence, idle_times
from gputui.domain.snapshot import Notice
from gputui.domain.state import JobState
from gputui.domain.telemetry import efficiency_of
from gputui.domain.telemetry_series import Tally
from gputui.engine import telemetry_files
from gputui.engine.telemetry_files import AttemptKey, AttemptTallies, attempt_key

if TYPE_CHECKING:
    from gputui.domain.gpu import GpuView
    from gputui.domain.job import Attempt, Job
    from gputui.domain.job_spec import JobId
    from gputui.domain.settings import SchedulerSettings
    from gputui.domain.snapshot import Snapshot
    from gputui.domain.telemetry import AttemptTelemetry, Consumption
    from gputui.domain.telemetry_series import Measured
    from gputui.ports import Clock, Cluster, SteadyClock

log = logging.getLogger(__name__)

DIRECTORY = "telemetry"
"""Directory for the readings over time, beside the records."""
AGAIN = timedelta(minutes=1)
"""Time after which a job that could not be ended is tried again."""
_SAME_READING = 1.0
"""Seconds by which the time of one reading may differ from sweep to sweep."""


class TelemetryLedger(Protocol):
    """Record of what was measured, and of the GPUs that are idle now."""

    @property
    def is_empty(self) -> bool:
        """Return whether there is neither a record nor a mark."""

    def refresh(self) -> None:
        """Read what other processes have added."""

    def of(self, job_id: JobId, started_at: datetime) -> tuple[AttemptTelemetry, tuple[str, ...]] | None:
        """Return what was measured in this run, with its GPUs; None if nothing was, or it has not ended."""

    def add(self, job_id: JobId, started_at: datetime, found: AttemptTelemetry, gpus: tuple[str, ...]) -> None:
        """Record durably what was measured in a run that has ended; raises OSError."""

    def note_end(self, job_id: JobId, started_at: datetime, words: str) -> None:
        """Record durably why a run of a job is ended from here; raises OSError."""

    def end_of(self, job_id: JobId, started_at: datetime) -> str:
        """Return why this run was ended from here; empty if it was not."""

    def idle(self, now: datetime) -> Mapping[str, datetime]:
        """Return the idle GPUs, by the time since which they are."""

    def mark(self, gpus: Mapping[str, datetime], now: datetime) -> None:
        """Mark these GPUs as idle, and no others; raises OSError."""


class MeasuredJobs(Struct, eq=False):
    """Adds to jobs what was measured, and to GPUs since when they are idle."""

    _ledger: TelemetryLedger
    _ends_idle_after: timedelta | None = None
    """Time after which jobs of this `_user` are ended that leave all their GPUs idle."""
    _user: Callable[[], str] = lambda: ""
    _joined: dict[JobId, tuple[Job, Job]] = field(default_factory=dict)
    """Jobs that have telemetry, as the engine tells them and with it."""
    _last: tuple[Job, ...] = ()

    def joined(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with telemetry of ended jobs, and with idle GPUs marked."""
        self._ledger.refresh()
        if self._ledger.is_empty:  # nodes are not read
            return snapshot
        jobs = self._jobs_of(snapshot)
        self._joined = {job.id: self._joined[job.id] for job in jobs if job.id in self._joined}
        idle = self._ledger.idle(snapshot.taken_at)
        if not idle:
            return replace(snapshot, jobs=jobs)
        notices, nodes = list(snapshot.notices), []
        for job in jobs:
            since = [idle[uuid] for uuid in job.gpus if uuid in idle]
            if since and job.state is JobState.RUNNING:
                is_ended = len(since) == len(job.gpus) and job.submitted_by == self._user()
                words = idle_sentence(job, len(since), self._ends_idle_after if is_ended else None)
                notices.append(Notice("information", words, since=max(since)))
        for node in snapshot.nodes:
            if any(view.gpu.uuid in idle for view in node.gpus):
                views = (replace(view, idle_since=idle.get(view.gpu.uuid)) for view in node.gpus)
                node = replace(node, gpus=tuple(views))
            nodes.append(node)
        return replace(snapshot, jobs=jobs, nodes=tuple(nodes), notices=tuple(notices))

    def _jobs_of(self, snapshot: Snapshot) -> tuple[Job, ...]:
        """Return the jobs with telemetry; the same tuple as before if none has changed, since others compare it."""
        found = []
        for job in snapshot.jobs:
            earlier = self._joined.get(job.id)
            joined = earlier[1] if earlier is not None and earlier[0] is job else self._with_telemetry(job)
            if joined is not job and joined.attempts[-1].telemetry is not None:
                self._joined[job.id] = (job, joined)
            found.append(joined)
        jobs = tuple(found)
        for known in (snapshot.jobs, self._last):
            if len(known) == len(jobs) and all(map(is_, known, jobs)):
                jobs = known
        self._last = jobs
        return jobs

    def jobs(self, jobs: Iterable[Job]) -> Iterator[Job]:
        self._ledger.refresh()
        yield from map(self._with_telemetry, jobs)

    def _with_telemetry(self, job: Job) -> Job:
        attempt = job.attempts[-1] if job.attempts else None
        if attempt is None or attempt.started_at is None or not attempt.is_over:
            return job
        found, end = self._ledger.of(job.id, attempt.started_at), self._ledger.end_of(job.id, attempt.started_at)
        if found is not None:
            telemetry, gpus = found
            attempt = replace(
                attempt, gpus=attempt.gpus or gpus, telemetry=telemetry, efficiency=efficiency_of(telemetry)
            )
            job = job.evolve(attempts=(*job.attempts[:-1], attempt))
        if end and job.state is JobState.CANCELLED:
            cause = Cause(CauseCode.TIME_LIMIT, end)
            job = job.evolve(cause=cause, attempts=(*job.attempts[:-1], replace(attempt, cause=cause)))
        return job


def measured(directory: Path, job: Job) -> dict[int, Measured]:
    """Return the telemetry of each attempt of a job, by number; `directory` has the records. Reads files."""
    named = (replace(attempt, container_id=run_name(attempt)) for attempt in job.attempts)
    return {attempt.number: telemetry_files.measured(directory / DIRECTORY, job, attempt) for attempt in named}


def run_name(attempt: Attempt) -> str:
    """Return what tells a run from others of the same number, which a new cluster may give again."""
    return f"@{attempt.started_at.timestamp():.0f}" if attempt.started_at else ""


class IdleEnds:
    """Ends own jobs of a cluster that leave all their GPUs idle, as `scheduler.idle_gpus_end` asks for.

    The engine knows no such rule, so a process of the user cancels the job, and records why before it does. That comes
    some time after the job was reported; a new process reports again.
    """

    def __init__(
        self, cluster: Cluster, notes: TelemetryLedger, ends_after: timedelta, clock: SteadyClock, worker: Executor
    ) -> None:
        self._cluster = cluster
        self._notes = notes
        self._clock = clock
        self._worker = worker
        self._spells = IdleSpells(ends_after, lambda job: job.submitted_by == cluster.user)
        self._tried_at: dict[JobId, datetime] = {}
        self._faults: dict[JobId, str] = {}

    def update(self, jobs: Collection[Job], idle: Mapping[JobId, Mapping[str, datetime]], now: datetime) -> None:
        at = self._clock.boot_time()
        self._spells.update(jobs, idle, at)
        causes = self._spells.causes(jobs, at, now)
        self._tried_at = {job_id: tried for job_id, tried in self._tried_at.items() if job_id in causes}
        self._faults = {job_id: fault for job_id, fault in self._faults.items() if job_id in causes}
        for job in jobs:
            if job.id in causes and now - self._tried_at.get(job.id, now - AGAIN) >= AGAIN:
                self._tried_at[job.id] = now
                self._worker.submit(self._end, job, causes[job.id])

    def notices(self) -> tuple[Notice, ...]:
        return tuple(Notice("warning", fault) for fault in tuple(self._faults.values()))

    def close(self) -> None:
        self._worker.shutdown(wait=False)

    def _end(self, job: Job, cause: Cause) -> None:
        started_at = job.attempts[-1].started_at
        try:
            if started_at is not None:
                self._notes.note_end(job.id, started_at, cause.text)
            self._cluster.act(Cancel((job.id,)))
            log.info("job %s is ended: %s", job.shown_id, cause.text)
        except (GputuiError, OSError) as error:
            log.warning("job %s cannot be ended: %s", job.shown_id, error)
            self._faults[job.id] = f"job {job.shown_id} leaves its GPUs idle and cannot be ended: {error}"
        except Exception:  # the border of a worker
            log.exception("ending job %s", job.shown_id)


class ClusterTelemetry:
    """Duty of the process that measures: sums up the readings of the nodes for each job that has GPUs."""

    def __init__(
        self,
        ledger: TelemetryLedger,
        directory: Path,
        settings: SchedulerSettings,
        clock: Clock,
        worker: Executor,
        sweep: Callable[[datetime], object] = lambda _: None,
        ends: IdleEnds | None = None,
    ) -> None:
        """`sweep` keeps the readings over time within their limits; called often, it does a little each time.

        `ends` ends jobs that leave their GPUs idle.
        """
        self._ends = ends
        self._sweep = sweep
        self._ledger = ledger
        self._directory = directory / DIRECTORY
        self._settings = settings
        self._clock = clock
        self._worker = worker
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._tallies = AttemptTallies(self._directory, lambda: worker)
        self._running: dict[AttemptKey, Job] = {}
        self._is_first = True

    def update(self, snapshot: Snapshot) -> None:
        """Add the new readings of running jobs, then record what jobs did that have ended.

        What the disk does not take is tried again with the next snapshot: raises OSError at the end.
        """
        if snapshot.leader is None or snapshot.leader.silent_for:
            return
        now = self._clock.now()
        views = {view.gpu.uuid: view for view in snapshot.gpus}
        running = dict(self._measurable(snapshot.jobs, views.values()))
        over = self._tallies.running.keys() - running.keys()
        self._running = {key: job for key, job in self._running.items() if key in over} | running
        for key, job in running.items():
            if job.state is JobState.RUNNING:
                self._count(key, job, views, now)
        jobs = [job for job in running.values() if job.state is JobState.RUNNING]
        after = self._settings.idle_gpus_after
        found = {job.id: idle_times(self._tallies.idle_since(attempt_key(job)), after, now) for job in jobs}
        if self._ends is not None:
            self._ends.update(jobs, found, now)
        self._sweep(now)
        self._ledger.mark(idle_by_gpu(jobs, found), now)
        for key in over:
            self._end(key, snapshot.job(key[0]))
        for job in snapshot.jobs if self._is_first else ():  # some have ended before this process began
            if not _has_begun(job) or not (attempt := job.attempts[-1]).is_over or attempt.telemetry is not None:
                continue
            kept = telemetry_files.read(self._directory, *attempt_key(job), run_name(attempt))
            if kept is not None and kept.tally is not None:
                self._record(job, Tally(kept.tally), attempt.ended_at)
        self._is_first = False

    def notices(self) -> tuple[Notice, ...]:
        return self._ends.notices() if self._ends is not None else ()

    def close(self) -> None:
        self._tallies.save()
        self._worker.shutdown(wait=False)
        if self._ends is not None:
            self._ends.close()

    def _measurable(self, jobs: Iterable[Job], views: Iterable[GpuView]) -> Iterator[tuple[AttemptKey, Job]]:
        """Yield the jobs that hold GPUs; where the engine does not tell which, with those that show that they do."""
        live = [job for job in jobs if _has_begun(job) and not job.attempts[-1].is_over]
        shown: Mapping[JobId, Iterable[str]] = {}
        if any(not job.attempts[-1].gpus for job in live):
            containers = {job.attempts[-1].container_id: job.id for job in live}
            found: dict[JobId, dict[str, None]] = {}
            for view in views:
                processes = (view.sample.processes if view.sample is not None else None) or ()
                inside = (containers.get(each.container_id) for each in processes if each.container_id is not None)
                for job_id in (*view.job_ids, *inside):
                    if job_id is not None:
                        found.setdefault(job_id, {})[view.gpu.uuid] = None
            shown = found
        for job in live:
            key, attempt = attempt_key(job), job.attempts[-1]
            if attempt.gpus:
                yield key, job
                continue
            before = self._running.get(key)  # a pod has its GPUs to its end, whether or not a process uses them
            gpus = tuple(dict.fromkeys((*(before.gpus if before else ()), *shown.get(job.id, ()))))
            if gpus:
                yield key, job.evolve(attempts=(*job.attempts[:-1], replace(attempt, gpus=gpus)))

    def _count(self, key: AttemptKey, job: Job, views: Mapping[str, GpuView], now: datetime) -> None:
        attempt, second = job.attempts[-1], now.timestamp()
        measurement = self._tallies.of(key, attempt, run_name(attempt), second)
        measurement.tally.record.gpus = len(attempt.gpus)
        for uuid in attempt.gpus:
            view = views.get(uuid)
            if view is not None and view.sample is not None:
                measurement.tally.add(view.sample)
        if (used := _use_of_machine(job, views)) is not None:
            known = measurement.tally.record.host
            if known is None or used[1] - known.at > _SAME_READING:  # probes tell it again and again
                measurement.tally.add_host(*used)
        self._tallies.save_if_due(key, second)

    def _end(self, key: AttemptKey, found: Job | None) -> None:
        job, measurement = self._running.get(key), self._tallies.running.get(key)
        if job is not None and measurement is not None:
            attempt = found.attempts[-1] if found is not None and found.attempts else None
            is_same = attempt is not None and attempt.started_at == job.attempts[-1].started_at
            self._record(job, measurement.tally, attempt.ended_at if attempt is not None and is_same else None)
        self._tallies.close(key)

    def _record(self, job: Job, tally: Tally, ended_at: datetime | None) -> None:
        ended = ended_at.timestamp() if ended_at is not None else tally.read_at
        started, found = job.attempts[-1].started_at, tally.summary(ended, job.spec.gpus.promised)
        if found is not None and started is not None:
            self._ledger.add(job.id, started, found, job.attempts[-1].gpus or tuple(tally.record.tracks))


def _has_begun(job: Job) -> bool:
    return bool(job.attempts) and job.attempts[-1].started_at is not None


def _use_of_machine(job: Job, views: Mapping[str, GpuView]) -> tuple[Consumption, float] | None:
    """Return what the job's container, or its group in Slurm, has used, with the time; None if it was not read.

    A job on several nodes has a group on each, and with processes of several containers on its GPUs it is not known
    which of them is its own.
    """
    attempt = job.attempts[-1]
    if "," in attempt.node:
        return None
    found: dict[str | None, tuple[Consumption, float]] = {}
    containers: set[str | None] = set()
    for view in (views[uuid] for uuid in attempt.gpus if uuid in views):
        sample = view.sample
        for process in (sample.processes if sample is not None else None) or ():
            is_inside = process.container_id is not None and process.container_id == attempt.container_id
            if is_inside or view.process_jobs.get(process.pid) == job.id:
                containers.add(process.container_id)
                if process.used is not None and sample is not None and sample.processes_at is not None:
                    found[process.container_id] = (process.used, sample.processes_at.timestamp() - process.used_age)
    return next(iter(found.values()), None) if len(containers) == 1 else None
