"""Reading side of the queue of a cluster: snapshots, jobs and history, as the engine tells them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from gputui.domain.errors import NotFoundError

if TYPE_CHECKING:
    from gputui.domain.access import AuditEntry
    from gputui.domain.accounting import JobRecord
    from gputui.domain.arrays import Entries
    from gputui.domain.job import Job
    from gputui.domain.job_spec import JobId
    from gputui.domain.recurring import RecurringJob
    from gputui.domain.snapshot import Controls, Snapshot, Unreadable
    from gputui.engine.cluster.measurements import MeasuredJobs
    from gputui.ports import Cluster, StoreWatch

FRESH = 1.0
"""Seconds for which a snapshot is used before the cluster is asked again."""


class EngineQueue:
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

    def version(self) -> object:
        """Return a token that changes whenever the cluster would be asked again."""
        return int(self._monotonic() / (2 * FRESH))

    def read(self) -> Snapshot:
        """Return a snapshot that is at most a second old."""
        return self._read()[0]

    def _read(self) -> tuple[Snapshot, Entries]:
        from gputui.domain.arrays import Entries

        with self._lock:
            latest = self._latest
            if latest is None or self._monotonic() - self._taken_at > FRESH:
                snapshot = self.cluster.snapshot()
                if self._measured is not None:
                    snapshot = self._measured().joined(snapshot)
                jobs = sorted(snapshot.jobs, key=lambda job: job.id)
                self._latest = latest = snapshot, Entries({job.id: job for job in jobs})
                self._taken_at = self._monotonic()
            return latest

    def refresh(self) -> None:
        """Ask the cluster again at the next read, as after a change."""
        self._latest = None
        self.on_refresh()

    def jobs(self) -> Entries:
        return self._read()[1]

    def arrays(self) -> Mapping[JobId, Mapping[int, JobId]]:
        from gputui.domain.arrays import places_of

        return places_of(self.jobs().values())

    def get(self, job_id: JobId) -> Job:
        """Return a job; for an array, its first element. The first digits of a long number do, if no other has them.

        Of one that is not in the queue the cluster is asked anew.
        """
        if (job := self.jobs().get(job_id)) is not None:
            return job
        try:
            found = self.cluster.job(job_id)
        except NotFoundError:
            from gputui.domain.arrays import begun_by

            if (begun := begun_by(job_id, chain(self.jobs().values(), self.cluster.history()))) is None:
                raise
            found = begun
        if found.id not in self.jobs() and not found.state.is_terminal:  # it has just been submitted elsewhere
            self.refresh()
        return self.jobs().get(found.id) or next(self._with_telemetry((found,)))

    def whole_id(self, number: JobId) -> JobId:
        from gputui.domain.arrays import number_of

        if number in self.jobs() or number in self.arrays():
            return number
        job = self.get(number)
        return found if str(found := number_of(job)).startswith(str(number)) else job.id

    def past(self, since: datetime | None = None) -> Iterator[Job]:
        """Yield jobs that the engine has forgotten, the latest month of their end first."""
        return iter(sorted(self._forgotten(since), key=lambda job: f"{job.end:%Y-%m}", reverse=True))

    def records(self, since: datetime | None = None) -> Iterator[JobRecord]:
        from gputui.domain.accounting import record_of

        yield from map(record_of, self.jobs().values())
        yield from map(record_of, self._forgotten(since))

    def _forgotten(self, since: datetime | None) -> Iterator[Job]:
        jobs = self.jobs()
        return self._with_telemetry(job for job in self.cluster.history(since) if job.id not in jobs)

    def _with_telemetry(self, jobs: Iterable[Job]) -> Iterator[Job]:
        return iter(jobs) if self._measured is None else self._measured().jobs(jobs)

    @property
    def store_id(self) -> str:
        return self.cluster.name

    def controls(self) -> Controls:
        from gputui.domain.snapshot import Controls

        return Controls()

    def recurring(self) -> Mapping[JobId, RecurringJob]:
        return {}

    def audit_log(self, target: str | None = None) -> Iterator[AuditEntry]:
        """Yield nothing: the engine has its own log."""
        del target
        return iter(())

    def requests(self, uid: int) -> Iterator[tuple[str, tuple[JobId, ...]]]:
        del uid
        return iter(())

    def watch(self) -> StoreWatch | None:
        """Return None: clusters are polled."""
        return None

    def check(self) -> None:
        """Do nothing: no file is read."""

    def unread(self) -> tuple[str, ...]:
        return ()

    def unreadable(self) -> tuple[Unreadable, ...]:
        return ()

    def close(self) -> None:
        self.cluster.close()
