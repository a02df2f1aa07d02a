"""The order of rows by a column. The plan's own order is the one that nobody chose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import TypeAlias

from gputui.domain.filter_fields import gpus_of
from gputui.domain.job import Job, JobId
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.tui.present.job import elapsed

Value: TypeAlias = float | str | None


@dataclass(frozen=True)
class Sorting:
    """By which column; turned round or not. No column: as the plan has them."""

    column: str = ""
    is_turned: bool = False

    @property
    def is_down(self) -> bool:
        """Whether large values come first."""
        return (self.column in LARGEST_FIRST) != self.is_turned

    @property
    def is_planned(self) -> bool:
        """Whether the rows are in the plan's own order."""
        return self.column not in VALUES

    def by(self, column: str) -> Sorting:
        """By that column; by the same one: turned round, and then as the plan has it."""
        if column not in VALUES:
            return self
        if column != self.column:
            return Sorting(column)
        return Sorting() if self.is_turned else Sorting(column, True)

    def next(self, columns: Iterable[str]) -> Sorting:
        """By the next of these columns that can be sorted by; after the last one as the plan has it."""
        able = ["", *(column for column in columns if column in VALUES)]
        here = able.index(self.column) if self.column in able else 0
        return Sorting(able[(here + 1) % len(able)])


@dataclass(frozen=True)
class Seen:
    """What values are taken from, besides the job."""

    now: datetime
    expected_starts: Mapping[JobId, datetime] = field(default_factory=dict)
    scores: Mapping[JobId, float] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot, scores: Mapping[JobId, float]) -> Seen:
        """What a picture says."""
        return cls(snapshot.taken_at, snapshot.expected_starts, scores)


def in_order(ids: Iterable[JobId], jobs: Mapping[JobId, Job], sorting: Sorting, seen: Seen) -> list[JobId]:
    """Sorted; equals stay as they were, and what has no such value comes last whichever way round."""
    value = VALUES[sorting.column]
    known: list[tuple[float | str, JobId]] = []
    unknown: list[JobId] = []
    for job_id in ids:
        found = value(jobs[job_id], seen)
        if found is None:
            unknown.append(job_id)
        else:
            known.append((found, job_id))
    known.sort(key=lambda pair: pair[0], reverse=sorting.is_down)
    return [job_id for _, job_id in known] + unknown


def _stamp(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


def _elapsed(job: Job, seen: Seen) -> float | None:
    taken = elapsed(job, seen.now)
    return None if taken is None else taken.total_seconds()


def _limit(job: Job, seen: Seen) -> float | None:
    del seen
    return None if job.spec.time_limit is None else job.spec.time_limit.total_seconds()


def _start(job: Job, seen: Seen) -> float | None:
    return _stamp(seen.expected_starts.get(job.id)) if job.state is JobState.PENDING else None


VALUES: Mapping[str, Callable[[Job, Seen], Value]] = MappingProxyType(
    {
        "id": lambda job, seen: job.id,
        "state": lambda job, seen: job.state.short,
        "priority": lambda job, seen: job.priority + (1000 if job.topped_at else 0),
        "name": lambda job, seen: job.spec.name.casefold(),
        "tenant": lambda job, seen: job.spec.tenant.casefold(),
        "gpus": lambda job, seen: gpus_of(job),
        "time": _elapsed,
        "limit": _limit,
        "left": lambda job, seen: _stamp(job.limit_at),
        "age": lambda job, seen: -job.submitted_at.timestamp(),
        "start": _start,
        "eta": _start,
        "user": lambda job, seen: job.submitted_by.casefold(),
        "image": lambda job, seen: (job.spec.image or "").casefold() or None,
        "exit": lambda job, seen: job.exit_code,
        "attempts": lambda job, seen: len(job.attempts),
        "submitted": lambda job, seen: job.submitted_at.timestamp(),
        "started": lambda job, seen: _stamp(job.started_at),
        "ended": lambda job, seen: _stamp(job.ended_at),
        "score": lambda job, seen: seen.scores.get(job.id),
    }
)
LARGEST_FIRST = frozenset(
    {"priority", "gpus", "time", "age", "attempts", "submitted", "started", "ended", "score", "exit"}
)
MOVING = frozenset({"start", "eta", "score"})
"""Columns whose values change without any job changing."""
