"""Queue of a cluster in the form of a job store: reads come from snapshots of the cluster, writes are refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NoReturn

from gputui.domain.errors import CapabilityError

if TYPE_CHECKING:
    from gputui.domain.audit import Actor, AuditEntry
    from gputui.domain.container import RunAs
    from gputui.domain.entries import Entries
    from gputui.domain.job import Job
    from gputui.domain.job_record import JobRecord
    from gputui.domain.job_spec import JobId, JobSpec
    from gputui.domain.recurring import RecurringJob
    from gputui.domain.snapshot import Controls, Snapshot, Unreadable
    from gputui.engine.cluster.measurements import MeasuredJobs
    from gputui.ports import Cluster, StoreWatch, Transaction

FRESH = 1.0
"""Seconds for which a snapshot is used before the cluster is asked again."""


class ClusterStore:
    """Jobs of a cluster. Controls and recurring jobs are empty: the engine has its own.

    The modules about jobs are imported when they are first read: a submission reads none.
    """

    def __init__(
        self,
        cluster: Cluster,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        directory: Path = Path(),
        measured: Callable[[], MeasuredJobs] | None = None,
    ) -> None:
        """`directory` is for what this user's processes keep about the cluster; `measured` adds telemetry."""
        self.cluster = cluster
        self.directory = directory
        self._measured = measured
        self._monotonic = monotonic
        self._latest: tuple[Snapshot, Entries] | None = None
        self._taken_at = 0.0
        self._lock = Lock()
        self.on_refresh: Callable[[], None] = lambda: None
        """Called after each change of the cluster by this process."""

    def snapshot(self) -> Snapshot:
        """Return a snapshot that is at most a second old."""
        return self._read()[0]

    def _read(self) -> tuple[Snapshot, Entries]:
        with self._lock:
            latest = self._latest
            if latest is None or self._monotonic() - self._taken_at > FRESH:
                latest = self._taken()
                self._latest, self._taken_at = latest, self._monotonic()
            return latest

    def _taken(self) -> tuple[Snapshot, Entries]:
        """Return a snapshot of the cluster now, and its jobs by id."""
        from gputui.domain.entries import Entries

        snapshot = self.cluster.snapshot()
        if self._measured is not None:
            snapshot = self._measured().joined(snapshot)
        return snapshot, Entries({job.id: job for job in sorted(snapshot.jobs, key=lambda job: job.id)})

    def refresh(self) -> None:
        """Ask the cluster again at the next read, as after a change."""
        self._latest = None
        self.on_refresh()

    @property
    def store_id(self) -> str:
        """Name of the cluster."""
        return self.cluster.name

    def jobs(self) -> Entries:
        """Return all jobs that the engine still knows, by id."""
        return self._read()[1]

    def arrays(self) -> Mapping[JobId, Mapping[int, JobId]]:
        """Return the ids of elements by array and index."""
        from gputui.domain.entries import ArrayPlaces
        from gputui.domain.runs import Run

        found: dict[JobId, ArrayPlaces] = {}
        for job in self.jobs().values():
            if job.array is not None:
                runs = job.runs or (Run(job.id, job.array.index, 1),)
                found.setdefault(job.array.id, ArrayPlaces()).add(runs)
        return found

    def get(self, job_id: JobId) -> Job:
        """Return a job; for an array, its first element. Raises NotFoundError."""
        jobs = self.jobs()
        if (job := jobs.get(job_id)) is not None:
            return job
        array = next((job for job in jobs.values() if job.array and job.array.id == job_id), None)
        return jobs[array.id] if array is not None else next(self._with_telemetry((self.cluster.job(job_id),)))

    def history(self, since: datetime | None = None) -> Iterator[Job]:
        """Yield jobs that the engine has forgotten, by month of their end, then by id."""
        return iter(sorted(self._forgotten(since), key=lambda job: (_month(job), job.id)))

    def past(self, since: datetime | None = None) -> Iterator[Job]:
        """Yield the jobs that `history` yields, latest month first."""
        return iter(sorted(self._forgotten(since), key=_month, reverse=True))

    def records(self, since: datetime | None = None) -> Iterator[JobRecord]:
        """Yield the accounting records of all jobs."""
        from gputui.domain.job_record import record_of

        yield from map(record_of, self.jobs().values())
        yield from map(record_of, self._forgotten(since))

    def _forgotten(self, since: datetime | None) -> Iterator[Job]:
        jobs = self.jobs()
        return self._with_telemetry(job for job in self.cluster.history(since) if job.id not in jobs)

    def _with_telemetry(self, jobs: Iterable[Job]) -> Iterator[Job]:
        return iter(jobs) if self._measured is None else self._measured().jobs(jobs)

    def version(self) -> object:
        """Return a token that changes whenever the cluster would be asked again."""
        return int(self._monotonic() / (2 * FRESH))

    def watch(self) -> StoreWatch | None:
        """Return None: clusters are polled."""
        return None

    def controls(self) -> Controls:
        """Return empty controls."""
        from gputui.domain.snapshot import Controls

        return Controls()

    def recurring(self) -> Mapping[JobId, RecurringJob]:
        """Return no recurring jobs."""
        return {}

    def audit_log(self, target: str | None = None) -> Iterator[AuditEntry]:
        """Yield nothing: the engine has its own log."""
        del target
        return iter(())

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Raise CapabilityError."""
        self._refuse()

    def submit(self, jobs: Iterable[Job], *, actor: Actor) -> tuple[JobId, ...]:
        """Raise CapabilityError."""
        del jobs, actor
        self._refuse()

    def run_as(self, spec: JobSpec) -> RunAs:
        """Raise CapabilityError."""
        del spec
        self._refuse()

    def _refuse(self) -> NoReturn:
        engine = self.cluster.caps.engine
        raise CapabilityError(f"the queue is {engine}'s: gputui asks {engine} for changes and stores none itself")

    def with_warrant(self, spec: JobSpec, uid: int) -> JobSpec:
        """Return the spec unchanged: the engine knows who submits."""
        del uid
        return spec

    def caps_waiting(self) -> bool:
        """Return False: the engine has its own limits."""
        return False

    def lock_timeout(self, seconds: float) -> AbstractContextManager[None]:
        """Do nothing: there is no lock."""
        del seconds
        return nullcontext()

    def time_writes(self, wrote: Callable[[float], object]) -> None:
        """Do nothing: there are no writes."""

    def maintain(self, now: datetime) -> None:
        """Do nothing: the engine looks after its queue."""

    def damage(self) -> tuple[str, ...]:
        """Return nothing: no file is read."""
        return ()

    def history_damage(self) -> tuple[str, ...]:
        """Return nothing: no file is read."""
        return ()

    def unread(self) -> tuple[str, ...]:
        return ()

    def unreadable(self) -> tuple[Unreadable, ...]:
        """Return nothing: no file is read."""
        return ()

    def check(self) -> None:
        """Do nothing: no file is read."""

    def close(self) -> None:
        """Close the connections to the cluster."""
        self.cluster.close()


def _month(job: Job) -> str:
    return f"{job.ended_at or job.submitted_at:%Y-%m}"
