"""Ends of own jobs of a cluster that leave all their GPUs idle, as `scheduler.idle_gpus_end` asks for.

The engine knows no such rule, so a process of the user cancels the job, and records why before it does.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from concurrent.futures import Executor
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from gputui.domain.action import Cancel
from gputui.domain.errors import GputuiError
from gputui.domain.idle_gpus import IdleSpells
from gputui.domain.snapshot import Notice

if TYPE_CHECKING:
    from gputui.domain.cause import Cause
    from gputui.domain.job import Job
    from gputui.domain.job_spec import JobId
    from gputui.ports import Cluster, SteadyClock

log = logging.getLogger(__name__)

AGAIN = timedelta(minutes=1)
"""Time after which a job that could not be ended is tried again."""


class EndNotes(Protocol):
    """Record of why jobs were ended from here."""

    def note_end(self, job_id: JobId, started_at: datetime, words: str) -> None:
        """Record durably why a run of a job is ended; raises OSError."""
        ...


class IdleEnds:
    """Ends own jobs some time after they were reported to leave all their GPUs idle; a new process reports again."""

    def __init__(
        self, cluster: Cluster, notes: EndNotes, ends_after: timedelta | None, clock: SteadyClock, worker: Executor
    ) -> None:
        """`ends_after` is that time; None: no job is ended."""
        self._cluster = cluster
        self._notes = notes
        self._clock = clock
        self._worker = worker
        self._is_on = ends_after is not None
        self._spells = IdleSpells(ends_after, lambda job: job.submitted_by == cluster.user)
        self._tried_at: dict[JobId, datetime] = {}
        self._faults: dict[JobId, str] = {}

    def update(self, jobs: Collection[Job], idle: Mapping[JobId, Mapping[str, datetime]], now: datetime) -> None:
        """Take the running jobs with their idle GPUs, and end those that have been idle for too long."""
        if not self._is_on:
            return
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
        """Return notices of jobs that could not be ended."""
        return tuple(Notice("warning", fault) for fault in tuple(self._faults.values()))

    def close(self) -> None:
        """End no further job."""
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
