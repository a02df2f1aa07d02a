"""Columns of the queue: all available ones, the chosen ones, and sorting by one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.filter import gpu_count_of
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.server_ids import server_of
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.tui.present.cells import Column
from gputui.tui.present.job import WORDS, elapsed, more_than_name
from gputui.tui.present.job_progress import WIDTH

NEVER_LEFT_OUT = "id"
_ALL = (
    (Column("id", "ID", 5, right=True), "its number"),
    (Column("state", "ST", 3), "state: a word on wide screens, else squeue's abbreviation"),
    (Column("priority", "PRI", 3, right=True), "0 to 100, or top"),
    (Column("name", "NAME", 14, flex=2, most=40), "name"),
    (Column("tenant", "TENANT", 8, flex=1, most=16), "tenant it is charged to"),
    (Column("gpus", "GPUS", 4, right=True), "how many GPUs it holds or asks for"),
    (
        Column("progress", "PROGRESS", WIDTH, flex=1, most=27),
        "how long it has run, of its time limit; pulls and arrays; without STARTS, until its start",
    ),
    (Column("time", "TIME", 6, right=True), "how long it has run"),
    (Column("limit", "LIMIT", 6, right=True), "its time limit"),
    (Column("age", "AGE", 6, right=True, rank=3), "since it was submitted"),
    (Column("start", "STARTS", 7, right=True, rank=2), "time until its expected start"),
    (Column("why", "INFO", 18, flex=5), "why it waits, where it runs, how it ended"),
    (Column("eta", "ETA", 12, right=True), "expected start, local time"),
    (Column("left", "LEFT", 6, right=True), "remaining time of its limit"),
    (Column("where", "ON GPU", 8), "the indices of its GPUs"),
    (Column("user", "USER", 8), "user who submitted it"),
    (Column("server", "SERVER", 6, flex=1, most=16), "server it is on, in a console over several"),
    (Column("image", "IMAGE", 14, flex=1, most=40), "its image"),
    (
        Column("command", "COMMAND", 16, flex=2, most=60),
        "its program and arguments, as far as its name does not say them",
    ),
    (Column("attempts", "TRY", 3, right=True), "number of attempts"),
    (Column("exit", "EXIT", 4, right=True), "its exit code"),
    (Column("submitted", "SUBMITTED", 11, right=True), "when it was submitted, local time"),
    (Column("started", "STARTED", 11, right=True), "when it started, local time"),
    (Column("ended", "ENDED", 11, right=True), "when it ended, local time"),
    (Column("score", "SCORE", 8, right=True), "score by which the plan orders waiting jobs"),
)
COLUMNS: Mapping[str, Column] = MappingProxyType({column.key: column for column, _ in _ALL})
ABOUT: Mapping[str, str] = MappingProxyType({column.key: about for column, about in _ALL})
USUAL = ("id", "state", "priority", "name", "tenant", "gpus", "progress", "age", "start", "why")
MORE = ("left", "user", "image", "command")
"""Columns added on wide screens; if they do not fit, the last one goes first."""
SERVER = "server"
"""Key of the column that follows the id, whatever is chosen, in a console over several servers."""
ALIKE = frozenset({"user", "image", "command"})
"""Keys of columns that are left out while all rows have the same value."""
WIDE, WITH_BARS, IN_WORDS = 176, 144, 100
"""Cells from which more columns are added, from which there is room for bars, and from which states are words."""
INFO_FIRST = 56
"""Cells of INFO on wide screens, before the command and other added columns get any."""
ENDED = ("id", "state", "name", "tenant", "gpus", "time", "exit", "ended", "why")
"""Columns of the tab of ended jobs."""


class ChosenColumns(Struct, frozen=True):
    """Chosen columns, in their order."""

    keys: tuple[str, ...] = USUAL

    @classmethod
    def of(cls, preferences: Mapping[str, object], setting: Iterable[str] = ()) -> ChosenColumns:
        """Return the columns from the preferences, else from the settings; unknown names are ignored."""
        found = preferences.get("columns")
        known = tuple(dict.fromkeys(str(key) for key in found if key in COLUMNS)) if isinstance(found, list) else ()
        return cls(known or tuple(setting) or USUAL)

    def columns(self, room: int = 0, varied: Collection[str] = ALIKE) -> tuple[Column, ...]:
        """Return the columns to lay out in `room` cells; if there is no room for all, the first ones stay longest.

        `varied` are those of `ALIKE` that wide screens show, as not all rows have the same value.
        """
        if SERVER in varied and SERVER not in self.keys:
            return with_server(self.columns(room, set(varied) - {SERVER}))
        if self.keys != USUAL:
            return tuple(
                replace(fitting(key, room), rank=0 if key == NEVER_LEFT_OUT else rank + 1)
                for rank, key in enumerate(self.keys)
            )
        usual = [fitting(key, room) for key in USUAL]
        if room >= WIDE:
            more = [key for key in MORE if key in varied or key not in ALIKE]
            usual[-1] = replace(usual[-1], width=INFO_FIRST)
            usual[-1:-1] = [replace(COLUMNS[key], rank=len(USUAL) + rank) for rank, key in enumerate(more)]
        return tuple(usual)


def with_server(columns: Iterable[Column]) -> tuple[Column, ...]:
    """Return the columns with that of the server behind the id."""
    wanted = []
    for column in columns:
        wanted.append(column)
        if column.key == NEVER_LEFT_OUT:
            wanted.append(COLUMNS[SERVER])
    return tuple(wanted)


def varied_columns(jobs: Iterable[Job]) -> frozenset[str]:
    """Return the columns of `ALIKE` in which two jobs differ; stops at the first difference."""
    first: tuple[object, ...] | None = None
    left = dict(_VARIED)
    for job in jobs:
        values = (job.submitted_by, job.spec.image, more_than_name(job))
        if first is None:
            first = values
        elif values != first:
            for key, place in tuple(left.items()):
                if values[place] != first[place]:
                    del left[key]
            if not left:
                break
    return ALIKE.difference(left)


_VARIED = {"user": 0, "image": 1, "command": 2}


def fitting(key: str, room: int) -> Column:
    """Return a column for a table of `room` cells; states are words if there is room."""
    column = COLUMNS[key]
    if key == "state" and room >= IN_WORDS:
        return replace(column, title="STATE", width=WORDS)
    if key == "progress" and room < WITH_BARS:
        return replace(column, flex=0)  # as more cells would be no bar yet
    return column


SortValue: TypeAlias = float | str | None


class Sorting(Struct, frozen=True):
    """Column by which rows are sorted, and whether in reverse; no column: the order of the plan."""

    column: str = ""
    is_turned: bool = False

    @property
    def is_down(self) -> bool:
        """Return whether large values come first."""
        return (self.column in LARGEST_FIRST) != self.is_turned

    @property
    def is_planned(self) -> bool:
        """Return whether the rows are in the plan's own order."""
        return self.column not in VALUES

    def by(self, column: str) -> Sorting:
        """Return the order by a column; for the same column its reverse, and then the order of the plan."""
        if column not in VALUES:
            return self
        if column != self.column:
            return Sorting(column)
        return Sorting() if self.is_turned else Sorting(column, True)

    def next(self, columns: Iterable[str]) -> Sorting:
        """Return the order by the next sortable column; after the last one the order of the plan."""
        able = ["", *(column for column in columns if column in VALUES)]
        here = able.index(self.column) if self.column in able else 0
        return Sorting(able[(here + 1) % len(able)])


class SortData(Struct, frozen=True):
    """Data for sort keys, besides the job."""

    now: datetime
    expected_starts: Mapping[JobId, datetime] = field(default_factory=dict)
    scores: Mapping[JobId, float] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot, scores: Mapping[JobId, float]) -> SortData:
        """Return the data of a snapshot."""
        return cls(snapshot.taken_at, snapshot.expected_starts, scores)


def sort_ids(ids: Iterable[JobId], jobs: Mapping[JobId, Job], sorting: Sorting, seen: SortData) -> list[JobId]:
    """Return the ids sorted; equal jobs keep their order, and jobs without a value come last in either direction."""
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


def _elapsed(job: Job, seen: SortData) -> float | None:
    taken = elapsed(job, seen.now)
    return None if taken is None else taken.total_seconds()


def _limit(job: Job, seen: SortData) -> float | None:
    del seen
    return None if job.spec.time_limit is None else job.spec.time_limit.total_seconds()


def _start(job: Job, seen: SortData) -> float | None:
    return _stamp(seen.expected_starts.get(job.id)) if job.state is JobState.PENDING else None


VALUES: Mapping[str, Callable[[Job, SortData], SortValue]] = MappingProxyType(
    {
        "id": lambda job, seen: job.id,
        "state": lambda job, seen: job.state.short,
        "priority": lambda job, seen: job.priority + (1000 if job.topped_at else 0),
        "name": lambda job, seen: job.name.casefold(),
        "tenant": lambda job, seen: job.spec.tenant.casefold(),
        "gpus": lambda job, seen: gpu_count_of(job),
        "time": _elapsed,
        "progress": _elapsed,
        "limit": _limit,
        "left": lambda job, seen: _stamp(job.limit_at),
        "age": lambda job, seen: -job.submitted_at.timestamp(),
        "start": _start,
        "eta": _start,
        "user": lambda job, seen: job.submitted_by.casefold(),
        "server": lambda job, seen: server_of(job.id) or None,
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
    {"priority", "gpus", "time", "progress", "age", "attempts", "submitted", "started", "ended", "score", "exit"}
)
MOVING = frozenset({"start", "eta", "score"})
"""Columns whose values change without a change of any job."""
