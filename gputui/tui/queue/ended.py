"""Ended jobs in the queue: those that stay in place, those below the others, and those in a folded row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from enum import Enum

from msgspec import Struct

from gputui.domain.arrays import count
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.state import TERMINAL, JobState
from gputui.tui.present.cells import Cell
from gputui.tui.present.style import DIM, RED
from gputui.tui.queue.folding import CLOSED, OPEN

FOLD = 0
"""Key of the row that ended jobs share; no job has this id."""
FAILED = TERMINAL - {JobState.COMPLETED, JobState.CANCELLED}
IN_PLACE = 3
"""Maximum number of failed jobs that keep their place among the running ones until somebody has looked at them."""
_STALE = timedelta(days=1)
"""Age from which a failure is folded even if nobody has looked at it."""
_HOUR = timedelta(hours=1)
_MOST = 200
"""Maximum number of viewed failures that are remembered."""


class EndedRows(Enum):
    """Presentation of jobs that ended a while ago."""

    FOLDED = "folded"
    """All share one row."""
    OPEN = "open"
    """Each has its own row, below that one."""
    HIDDEN = "hidden"
    """Hidden, including those that have just ended."""


class Section(Enum):
    """Part of the queue that has a job's row."""

    RUNNING = "running"
    """Active jobs, and failures that keep their place."""
    WAITING = "waiting"
    ENDED = "ended"


class LookedAt:
    """Failed jobs whose page or log was opened after their end."""

    def __init__(self, known: object = ()) -> None:
        names = known if isinstance(known, list | tuple) else ()
        self._known = dict.fromkeys(str(name) for name in names)

    def has(self, job: Job) -> bool:
        """Return whether the job was viewed after this end."""
        return _end_of(job) in self._known

    def add(self, job: Job) -> bool:
        """Record that the job was viewed; return whether that is new."""
        if job.state not in FAILED or self.has(job):
            return False
        self._known[_end_of(job)] = None
        for oldest in list(self._known)[:-_MOST]:
            del self._known[oldest]
        return True

    def values(self) -> dict[str, object]:
        """Return the values for the preferences."""
        return {"jobs": list(self._known)}


def _end_of(job: Job) -> str:
    return f"{job.id} {job.ended_at.timestamp():.0f}" if job.ended_at else str(job.id)


class EndedJobsSplit(Struct, frozen=True):
    """Ended jobs by their place in the queue, the latest first."""

    in_place: Sequence[Job] = ()
    """Unviewed failures, which stay among the running jobs."""
    below: Sequence[Job] = ()
    """Jobs that ended recently, and further failures."""
    folded: Sequence[Job] = ()
    changes_at: datetime | None = None
    """Time at which the next job is folded."""


def split_ended(ended: Iterable[Job], now: datetime, stay: timedelta, looked_at: LookedAt) -> EndedJobsSplit:
    """Return the ended jobs by their place; each stays in the queue for `stay`, a failure until it was viewed."""
    in_place: list[Job] = []
    below: list[Job] = []
    folded: list[Job] = []
    leaves: list[datetime] = []
    for job in sorted(ended, key=_end, reverse=True):
        is_awaited = job.state in FAILED and not looked_at.has(job)
        leaves_at = (job.ended_at or job.submitted_at) + (max(stay, _STALE) if is_awaited else stay)
        if leaves_at <= now:
            folded.append(job)
            continue
        leaves.append(leaves_at)
        if is_awaited and job.started_at is not None and len(in_place) < IN_PLACE:
            in_place.append(job)
        else:
            below.append(job)
    return EndedJobsSplit(in_place, below, folded, min(leaves, default=None))


def _end(job: Job) -> tuple[datetime, JobId]:
    return job.ended_at or job.submitted_at, job.id


def fold_words(folded: Sequence[Job], now: datetime, *, is_open: bool) -> Cell:
    """Return `▸ 47 ended (3 failed in the last hour)`."""
    failed = count(job for job in folded if job.state in FAILED and job.ended_at and now - job.ended_at < _HOUR)
    words = f"{OPEN if is_open else CLOSED} {count(folded):,} ended"
    return ((words, DIM), (f" ({failed:,} failed in the last hour)", RED)) if failed else ((words, DIM),)


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
