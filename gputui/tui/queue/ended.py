"""Ended jobs in the queue: what their title says, and which failures are acknowledged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from types import MappingProxyType

from msgspec import Struct

from gputui.domain.arrays import count
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.tui.present.cells import Cell
from gputui.tui.present.style import AMBER, DIM

FOLD = 0
"""Key of the row that ended jobs share; no job has this id."""
_MOST = 200
"""Maximum number of viewed failures that are remembered."""


class EndedRows(Enum):
    """Presentation of ended jobs."""

    FOLDED = "folded"
    """All share one row."""
    OPEN = "open"
    """Each has its own row, below that one."""
    HIDDEN = "hidden"
    """Not even counted."""


class LookedAt:
    """Failed jobs whose page or log was opened after their end, and the time up to which all are acknowledged."""

    def __init__(self, known: Mapping[str, object] = MappingProxyType({})) -> None:
        names, until = known.get("jobs"), known.get("until")
        self._known = dict.fromkeys(str(name) for name in names) if isinstance(names, list | tuple) else {}
        self._until = float(until) if isinstance(until, int | float) else 0.0

    def has(self, job: Job) -> bool:
        """Return whether the job was viewed after this end, or acknowledged with all others."""
        return _end(job)[0].timestamp() <= self._until or _end_of(job) in self._known

    def add(self, job: Job) -> bool:
        """Record that the job was viewed; return whether that is new."""
        if not job.state.is_failure or self.has(job):
            return False
        self._known[_end_of(job)] = None
        for oldest in list(self._known)[:-_MOST]:
            del self._known[oldest]
        return True

    def add_all(self, jobs: Iterable[Job]) -> int:
        """Record that all failures among these were seen; return how many of them are new, elements counted."""
        failed = [job for job in jobs if job.state.is_failure]
        new = count(job for job in failed if not self.has(job))
        if new:
            self._known, self._until = {}, max(_end(job)[0].timestamp() for job in failed)
        return new

    def values(self) -> dict[str, object]:
        """Return the values for the preferences."""
        return {"jobs": list(self._known), "until": self._until}


def _end_of(job: Job) -> str:
    return f"{job.id} {job.ended_at.timestamp():.0f}" if job.ended_at else str(job.id)


def _end(job: Job) -> tuple[datetime, JobId]:
    return job.ended_at or job.submitted_at, job.id


class EndedCounts(Struct):
    """Numbers of ended jobs, elements counted."""

    total: int = 0
    failed: int = 0
    new: int = 0
    """Failures that nobody has acknowledged."""

    @classmethod
    def of(cls, jobs: Iterable[Job], looked_at: LookedAt) -> EndedCounts:
        """Count these ended jobs."""
        found = cls()
        for job in jobs:
            found.total += job.count
            if job.state.is_failure:
                found.failed += job.count
                found.new += 0 if looked_at.has(job) else job.count
        return found


def latest_first(ended: Iterable[Job]) -> list[JobId]:
    """Return the ids of ended jobs, those that ended last first."""
    return [job.id for job in sorted(ended, key=_end, reverse=True)]


def ended_words(counts: EndedCounts, sign: str) -> Cell:
    """Return `▸ ENDED 138, 22 failed (3 new)`; the failures are amber while one of them is new."""
    words: Cell = ((f"{sign}ENDED {counts.total:,}", DIM),)
    if not counts.failed:
        return words
    words += ((", ", DIM), (f"{counts.failed:,} failed", AMBER if counts.new else DIM))
    return (*words, (f" ({counts.new:,} new)", AMBER)) if 0 < counts.new < counts.failed else words


def merged(waiting: list[JobId], ended: Iterable[Job], before: Sequence[JobId]) -> list[JobId]:
    """Return the waiting jobs with ended ones, each after the same waiting job as before."""
    left = {job.id for job in ended}
    if not left:
        return waiting
    after: dict[JobId, list[JobId]] = {}
    known, last = set(waiting), 0
    for job_id in before:
        if job_id in left:
            after.setdefault(last, []).append(job_id)
        elif job_id in known:
            last = job_id
    return [*after.get(0, ()), *(found for job_id in waiting for found in (job_id, *after.get(job_id, ())))]
