"""Columns of the queue: how all are laid out, the chosen ones, and sorting by one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.queue_columns import QUEUE_COLUMNS, ColumnData, more_than_name
from gputui.tui.present.cells import Column
from gputui.tui.present.job import WORDS

NEVER_LEFT_OUT = "id"
COLUMNS: Mapping[str, Column] = MappingProxyType(
    {key: Column(key, at.title, at.width, at.right, at.flex, at.rank, at.most) for key, at in QUEUE_COLUMNS.items()}
)
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
    wanted = []
    for column in columns:
        wanted.append(column)
        if column.key == NEVER_LEFT_OUT:
            wanted.append(COLUMNS[SERVER])
    return tuple(wanted)


def varied_columns(jobs: Iterable[Job]) -> frozenset[str]:
    """Return the columns of `ALIKE` in which two jobs differ; stops at the first difference."""
    first: tuple[object, ...] | None = None
    left = {"user": 0, "image": 1, "command": 2}
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


def fitting(key: str, room: int) -> Column:
    """Return a column for a table of `room` cells; states are words if there is room."""
    column = COLUMNS[key]
    if key == "state" and room >= IN_WORDS:
        return replace(column, title="STATE", width=WORDS)
    if key == "progress" and room < WITH_BARS:
        return replace(column, flex=0)  # as more cells would be no bar yet
    return column


MOVING = frozenset(key for key, column in QUEUE_COLUMNS.items() if column.is_moving)
_DOWN = frozenset(key for key, column in QUEUE_COLUMNS.items() if column.is_down)
_SORTABLE = frozenset(key for key, column in QUEUE_COLUMNS.items() if column.value)


class Sorting(Struct, frozen=True):
    """Column by which rows are sorted, and whether in reverse; no column: the order of the plan."""

    column: str = ""
    is_turned: bool = False

    @property
    def is_down(self) -> bool:
        return (self.column in _DOWN) != self.is_turned

    @property
    def is_planned(self) -> bool:
        return self.column not in _SORTABLE

    def by(self, column: str) -> Sorting:
        """Return the order by a column; for the same column its reverse, and then the order of the plan."""
        if column not in _SORTABLE:
            return self
        if column != self.column:
            return Sorting(column)
        return Sorting() if self.is_turned else Sorting(column, True)

    def next(self, columns: Iterable[str]) -> Sorting:
        """Return the order by the next sortable column; after the last one the order of the plan."""
        able = ["", *(column for column in columns if column in _SORTABLE)]
        here = able.index(self.column) if self.column in able else 0
        return Sorting(able[(here + 1) % len(able)])


def sort_ids(ids: Iterable[JobId], jobs: Mapping[JobId, Job], sorting: Sorting, seen: ColumnData) -> list[JobId]:
    """Return the ids sorted; equal jobs keep their order, and jobs without a value come last in either direction."""
    value = QUEUE_COLUMNS[sorting.column].order
    known: list[tuple[Any, JobId]] = []
    unknown: list[JobId] = []
    for job_id in ids:
        found = value(jobs[job_id], seen)
        if found is None:
            unknown.append(job_id)
        else:
            known.append((found, job_id))
    known.sort(key=lambda pair: pair[0], reverse=sorting.is_down)
    return [job_id for _, job_id in known] + unknown
