"""What the queue's pane shows, tab by tab: each a table of its own, and one widget draws them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from gputui.domain.job import Job, JobId
from gputui.domain.text import plain
from gputui.tui.present.cells import Cell, Column, cell
from gputui.tui.present.job import JobContext, group_cells, job_cells
from gputui.tui.present.status import empty_queue_words
from gputui.tui.present.style import AMBER, DIM
from gputui.tui.queue.columns import COLUMNS, ENDED, Chosen
from gputui.tui.queue.folding import RowKey
from gputui.tui.queue.rows import QueueRows

Key: TypeAlias = RowKey | str
MARK = "●"
READING = (cell("Reading the queue …", DIM),)


class Sheet(Protocol):
    """Rows by key, and their cells."""

    @property
    def name(self) -> str:
        """What its tab is called."""
        ...

    @property
    def noun(self) -> str:
        """What a row is."""
        ...

    @property
    def keys(self) -> Sequence[Key]:
        """The rows, from the top."""
        ...

    @property
    def positions(self) -> Mapping[Key, int]:
        """Where each is."""
        ...

    @property
    def columns(self) -> tuple[Column, ...]:
        """Its columns."""
        ...

    def cell(self, key: Key, column: str, context: JobContext) -> Cell:
        """What stands in that cell."""
        ...

    def lead(self, key: Key) -> str:
        """The character before that row."""
        ...

    def jobs(self, key: Key | None) -> tuple[Job, ...]:
        """The jobs that commands on that row are about."""
        ...

    def empty(self) -> tuple[Cell, ...]:
        """What stands there while there is no row."""
        ...


class QueueSheet:
    """Jobs that live, and those that ended lately."""

    name = "queue"

    def __init__(self, rows: QueueRows, chosen: Chosen) -> None:
        self.rows = rows
        self.chosen = chosen
        self.marks: frozenset[JobId] = frozenset()
        self._living: tuple[frozenset[JobId], Mapping[JobId, Job], frozenset[JobId]] | None = None
        """Marked jobs that had not ended in that snapshot."""

    def drop_ended_marks(self) -> None:
        """Remove the marks of jobs that are gone or have ended since; a job marked after its end keeps its mark."""
        jobs, known = self.rows.jobs, self._living
        if known is not None and known[0] is self.marks and known[1] is jobs:
            return
        living = frozenset(mark for mark in self.marks if mark in jobs and not jobs[mark].state.is_terminal)
        if known is not None and known[1] is not jobs:
            ended = known[2] - living
            self.marks = frozenset(mark for mark in self.marks if mark in jobs and mark not in ended)
        self._living = (self.marks, jobs, living)

    @property
    def noun(self) -> str:
        """What a row is."""
        return "row" if self.rows.arranged.groups else "job"

    @property
    def keys(self) -> Sequence[Key]:
        """The rows, from the top."""
        return self.rows.keys

    @property
    def positions(self) -> Mapping[Key, int]:
        """Where each is."""
        return self.rows.positions  # type: ignore[return-value]  # a mapping of fewer kinds of keys

    @property
    def columns(self) -> tuple[Column, ...]:
        """Chosen columns, with room for the longest id."""
        columns, room = self.chosen.columns, self.rows.id_width
        return tuple(
            replace(column, width=max(room, column.width)) if column.key == "id" else column for column in columns
        )

    def cell(self, key: Key, column: str, context: JobContext) -> Cell:
        """What stands in that cell."""
        rows = self.rows
        if not isinstance(key, int):
            return ()
        group = rows.arranged.groups.get(key)
        if group:
            jobs = [rows.jobs[job_id] for job_id in group]
            active = rows.active_elements[jobs[0].array.id] if jobs[0].array else 0
            shown = group_cells(jobs, column, context, active)
        else:
            shown = job_cells(rows.jobs[key], column, context)
        sign = rows.arranged.signs.get(key) if column == "name" else None
        return ((sign, DIM), *shown) if sign else shown

    def lead(self, key: Key) -> str:
        """Whether it is marked."""
        if not self.marks or not isinstance(key, int):
            return " "
        return MARK if self.marks.intersection(self.rows.arranged.groups.get(key, (key,))) else " "

    def jobs(self, key: Key | None) -> tuple[Job, ...]:
        """The job, or the elements that share the row."""
        return self.rows.jobs_of(key) if isinstance(key, int) else ()

    def empty(self) -> tuple[Cell, ...]:
        """Why there is none."""
        return empty_queue_words(self.rows.filter) if self.rows.is_read else READING


@dataclass
class Ended:
    """Jobs that are over, latest first, as far back as was asked for."""

    jobs: Mapping[JobId, Job]
    is_whole: bool = False
    """There are no older ones."""
    is_reading: bool = False
    failure: str = ""


class EndedSheet:
    """Jobs that are over, those in history too."""

    name, noun = "finished", "job"

    def __init__(self) -> None:
        self.ended = Ended({})
        self.keys: Sequence[Key] = ()
        self.positions: Mapping[Key, int] = {}

    def take(self, ended: Ended, shown: Callable[[Job], bool]) -> None:
        """Show these, where they match."""
        self.ended = ended
        self.keys = [job_id for job_id, job in ended.jobs.items() if shown(job)]
        self.positions = {key: row for row, key in enumerate(self.keys)}

    @property
    def columns(self) -> tuple[Column, ...]:
        """Those of jobs that are over."""
        return tuple(COLUMNS[key] for key in ENDED)

    def cell(self, key: Key, column: str, context: JobContext) -> Cell:
        """What stands in that cell."""
        return job_cells(self.ended.jobs[int(key)], column, context)

    def lead(self, key: Key) -> str:
        """Nothing."""
        del key
        return " "

    def jobs(self, key: Key | None) -> tuple[Job, ...]:
        """The job."""
        job = self.ended.jobs.get(key) if isinstance(key, int) else None
        return (job,) if job else ()

    def empty(self) -> tuple[Cell, ...]:
        """Why there is none."""
        if self.ended.failure:
            return (cell(f"The history cannot be read: {plain(self.ended.failure, 300)}", AMBER),)
        if self.ended.is_reading:
            return (cell("Reading the history …", DIM),)
        return (cell("No job has ended yet." if not self.ended.jobs else "No ended job matches the filter.", DIM),)
