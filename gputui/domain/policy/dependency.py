"""What a job waits for in other jobs, and whether that can still come. The id of an array stands for its elements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gputui.domain.job import Job, JobId
from gputui.domain.state import JobState
from gputui.domain.units import plural
from gputui.domain.unreadable import Unreadable


@dataclass
class Tally:
    """How an array stands, as far as its elements are known: those in history had completed."""

    known: int = 0
    left: set[JobId] = field(default_factory=set)
    failed: Job | None = None


@dataclass(frozen=True)
class Dependencies:
    """The jobs that waiting ones depend on."""

    jobs: Mapping[JobId, Job] = field(default_factory=dict)
    arrays: Mapping[JobId, Tally] = field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()
    """Ids of jobs that cannot be read: nobody knows whether they are over."""

    @classmethod
    def of(cls, jobs: Iterable[Job], unreadable: Iterable[Unreadable] = ()) -> Dependencies:
        """Those of these jobs; arrays are gone through only where a job waits for one."""
        left_out = frozenset(entry.key for entry in unreadable)
        known = tuple(jobs)
        specs = [job.spec for job in known if (job.spec.after or job.spec.after_any) and job.state is JobState.PENDING]
        wanted = {job_id for spec in specs for job_id in spec.after + spec.after_any}
        if not wanted:
            return cls()
        found = {job.id: job for job in known if job.id in wanted}
        arrays = {job_id: Tally() for job_id, job in found.items() if job.array and job.array.id == job_id}
        if arrays:
            for job in known:
                if job.array and (tally := arrays.get(job.array.id)):
                    _count(tally, job)
        return cls(found, {job_id: tally for job_id, tally in arrays.items() if tally.known > 1}, left_out)

    def unmet(self, job: Job) -> str | None:
        """What it still waits for, in words; None when nothing."""
        for job_id in job.spec.after:
            if words := self._unfinished(job_id, successful=True):
                return f"starts after {words}"
        for job_id in job.spec.after_any:
            if words := self._unfinished(job_id, successful=False):
                return f"starts after {words}"
        return None

    def awaited(self, job: Job) -> set[JobId]:
        """The jobs whose end it waits for: of an array all elements that are not over."""
        ids: set[JobId] = set()
        for job_id in (*job.spec.after, *job.spec.after_any):
            other = self.jobs.get(job_id)
            if tally := self.arrays.get(job_id):
                ids |= tally.left
            elif other is not None and not other.state.is_terminal:
                ids.add(job_id)
        return ids

    def never_met(self, job: Job) -> str | None:
        """Why what it waits for can never come, in words; None while it can."""
        for job_id in job.spec.after:
            if failed := self._failed(job_id):
                cause = f": {failed.cause.text}" if failed.cause else ""
                return f"can never start after job {failed.id}, which ended {failed.state}{cause}"
        return None

    def _failed(self, job_id: JobId) -> Job | None:
        if tally := self.arrays.get(job_id):
            return tally.failed
        other = self.jobs.get(job_id)
        return other if other is not None and has_failed(other) else None

    def _unfinished(self, job_id: JobId, *, successful: bool) -> str | None:
        how = "has completed" if successful else "has ended"
        if tally := self.arrays.get(job_id):
            if tally.left:
                return f"array {job_id} {how}: {plural(len(tally.left), 'element')} of it to go"
            failed = tally.failed if successful else None
            return f"array {job_id} {how}: job {failed.id} is {failed.state}" if failed else None
        if str(job_id) in self.unreadable:
            return f"job {job_id} {how}: it cannot be read"
        other = self.jobs.get(job_id)
        if other is None or (other.state is JobState.COMPLETED if successful else other.state.is_terminal):
            return None
        return f"job {job_id} {how}: it is {other.state}"


def _count(tally: Tally, job: Job) -> None:
    tally.known += 1
    if not job.state.is_terminal:
        tally.left.add(job.id)
    elif tally.failed is None and has_failed(job):
        tally.failed = job


def has_failed(job: Job) -> bool:
    """Whether it ended other than well, and nobody wished it back."""
    return job.state.is_terminal and job.state is not JobState.COMPLETED and not job.requeue_requested
