"""Models of the tabs of the queue pane; one table widget draws them all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.conditions import keyed
from gputui.domain.gpu import short_names
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, shown_id
from gputui.domain.queue_columns import gpus_wanted
from gputui.domain.recurring import RecurringJob
from gputui.domain.snapshot import WindowState, WindowView
from gputui.domain.text import plain
from gputui.domain.units import format_duration, minute, plural
from gputui.tui.present.cells import Cell, Column, cell
from gputui.tui.present.job import JobContext, group_cells, job_cells
from gputui.tui.present.status import empty_queue_words
from gputui.tui.present.style import AMBER, BLUE, DIM, GREEN, PLAIN
from gputui.tui.queue.columns import ENDED, ChosenColumns, fitting, with_server
from gputui.tui.queue.folding import FOLD, Marks, RowKey
from gputui.tui.queue.rows import QueueRows, width_of_id

Key: TypeAlias = RowKey | str
MARK = "●"
READING = (cell("Reading the queue …", DIM),)


class TabModel(Protocol):
    """Model of a tab: rows by key from the top, and their cells."""

    @property
    def name(self) -> str: ...
    @property
    def noun(self) -> str: ...
    @property
    def keys(self) -> Sequence[Key]: ...
    @property
    def positions(self) -> Mapping[Key, int]: ...
    @property
    def columns(self) -> tuple[Column, ...]: ...
    def cell(self, key: Key, column: str, context: JobContext) -> Cell: ...
    def lead(self, key: Key) -> str:
        """Return the character before the row."""

    def jobs(self, key: Key | None) -> tuple[Job, ...]:
        """Return the jobs that commands on the row act on."""

    def empty(self) -> tuple[Cell, ...]:
        """Return the lines shown if there is no row."""


class _PlainTab:
    """Tab whose rows have no mark."""

    def __init__(self) -> None:
        self.keys: Sequence[Key] = ()
        self.positions: Mapping[Key, int] = {}

    def _become(self, keys: Sequence[Key]) -> None:
        self.keys = keys
        self.positions = {key: row for row, key in enumerate(keys)}

    def lead(self, key: Key) -> str:
        return " "


class QueueTab:
    """Tab of live jobs and jobs that ended recently."""

    name = "queue"

    def __init__(self, rows: QueueRows, chosen: ChosenColumns) -> None:
        self.rows = rows
        self.chosen = chosen
        self.marks = Marks()
        self.room = 0
        """Cells of the table."""
        self.absent: Mapping[str, str] = {}
        """Columns for which the cluster has no values, each with its sentence."""
        self.others: tuple[Cell, ...] = ()
        """Lines about foreign use, for an empty queue; empty if there is none."""
        self._signs: Mapping[RowKey, str] = {}
        self._lead = 0
        """Cells of the widest of the signs."""
        self._living: tuple[Marks, object, Marks] | None = None
        """Marks with their snapshot, and those on jobs that had not ended in it."""

    def drop_ended_marks(self) -> None:
        """Remove the marks of jobs that are gone or have ended since; a job marked after its end keeps its mark."""
        jobs, known = self.rows.jobs, self._living
        if known is not None and known[0] is self.marks and known[1] is jobs:
            return
        living = self._marked(job for job in jobs.values() if not job.state.is_terminal) if self.marks else self.marks
        if self.marks and known is not None and known[1] is not jobs:
            self.marks = self._marked(jobs.values()).without(known[2].without(living))
        self._living = (self.marks, jobs, living)

    def _marked(self, jobs: Iterable[Job]) -> Marks:
        return Marks.of(part for job in jobs if (part := self.marks.part(job)) is not None)

    @property
    def noun(self) -> str:
        return "row" if self.rows.arranged.groups or FOLD in self.rows.positions else "job"

    @property
    def keys(self) -> Sequence[Key]:
        return self.rows.keys

    @property
    def positions(self) -> Mapping[Key, int]:
        return self.rows.positions  # type: ignore[return-value]  # a mapping of fewer kinds of keys

    @property
    def columns(self) -> tuple[Column, ...]:
        """Chosen columns, with room for the longest id."""
        columns, widest = self.chosen.columns(self.room, self.rows.varied), self.rows.id_width
        return tuple(
            replace(column, width=max(widest, column.width)) if column.key == "id" else column
            for column in columns
            if column.key not in self.absent
        )

    def cell(self, key: Key, column: str, context: JobContext) -> Cell:
        rows = self.rows
        if not isinstance(key, int):
            return ()
        group = rows.arranged.groups.get(key)
        if group:
            counts = rows.arrays.get(group[0].array.id) if group[0].array else None
            shown = group_cells(group, column, context, counts)
        else:
            shown = job_cells(rows.jobs[key], column, self._with_reason(key, context) if column == "why" else context)
        if rows.positions.get(key, 0) < rows.extent.running and rows.jobs_of(key)[0].state.is_terminal:
            shown = tuple((words, DIM) for words, _ in shown)  # it has ended, and its line is free
        if column != "name" or not rows.arranged.signs:
            return shown
        return ((self._sign(key), DIM), *shown)

    def _sign(self, key: RowKey) -> str:
        """Return the sign before a name, as wide as the widest: all names begin in one column."""
        signs = self.rows.arranged.signs
        if signs is not self._signs:
            self._signs, self._lead = signs, max(map(len, signs.values()))
        return signs.get(key, "").ljust(self._lead)

    def lead(self, key: Key) -> str:
        if not self.marks or not isinstance(key, int):
            return " "
        return MARK if any(map(self.marks.has_any, self.rows.jobs_of(key))) else " "

    def _with_reason(self, key: JobId, context: JobContext) -> JobContext:
        """Return the context in which an element of an entry has its entry's reason."""
        entry = self.rows.jobs.entry(key)
        if entry is None or entry.id == key or (reason := context.reasons.get(entry.id)) is None:
            return context
        return replace(context, reasons={key: reason})

    def jobs(self, key: Key | None) -> tuple[Job, ...]:
        return self.rows.jobs_of(key) if isinstance(key, int) else ()

    def empty(self) -> tuple[Cell, ...]:
        return empty_queue_words(self.rows.filter, self.others) if self.rows.is_read else READING


class EndedJobs(Struct):
    """Ended jobs, latest first, as far back as they were read."""

    jobs: Mapping[JobId, Job]
    is_whole: bool = False
    """True if there are no older ones."""
    is_reading: bool = False
    failure: str = ""


class FinishedTab(_PlainTab):
    """Tab of ended jobs, including those in the history."""

    name, noun = "finished", "job"

    def __init__(self) -> None:
        super().__init__()
        self.ended = EndedJobs({})
        self.room = 0
        """Cells of the table."""
        self.has_servers = False
        """True if the jobs are of several servers."""
        self.id_width = 0
        """Cells of the longest id."""

    def update(self, ended: EndedJobs, shown: Callable[[Job], bool]) -> None:
        self.ended = ended
        self._become([job_id for job_id, job in ended.jobs.items() if shown(job)])
        self.id_width = max((width_of_id(ended.jobs[int(key)]) for key in self.keys), default=0)

    @property
    def columns(self) -> tuple[Column, ...]:
        columns = tuple(fitting(key, self.room) for key in ENDED)
        columns = (replace(columns[0], width=max(columns[0].width, self.id_width)), *columns[1:])
        return with_server(columns) if self.has_servers else columns

    def cell(self, key: Key, column: str, context: JobContext) -> Cell:
        job = self.ended.jobs[int(key)]
        return group_cells((job,), column, context) if job.runs else job_cells(job, column, context)

    def jobs(self, key: Key | None) -> tuple[Job, ...]:
        job = self.ended.jobs.get(key) if isinstance(key, int) else None
        return (job,) if job else ()

    def empty(self) -> tuple[Cell, ...]:
        if self.ended.failure:
            return (cell(f"The history cannot be read: {plain(self.ended.failure, 300)}", AMBER),)
        if self.ended.is_reading:
            return (cell("Reading the history …", DIM),)
        return (cell("No job has ended yet." if not self.ended.jobs else "No ended job matches the filter.", DIM),)


RECURRING_COLUMNS = (
    Column("id", "ID", 5, right=True),
    Column("state", "STATE", 7),
    Column("every", "WHEN", 14, flex=1, most=24),
    Column("next", "NEXT", 12, right=True),
    Column("name", "NAME", 12, flex=2, most=36),
    Column("gpus", "GPUS", 4, right=True),
    Column("tenant", "TENANT", 8, rank=1),
    Column("by", "BY", 8, rank=2),
    Column("what", "WHAT", 12, flex=4),
)
WINDOW_COLUMNS = (
    Column("name", "NAME", 10, flex=1, most=24),
    Column("state", "STATE", 8),
    Column("gpus", "GPUS", 8, flex=1, most=20),
    Column("from", "FROM", 11, right=True),
    Column("to", "TO", 11, right=True),
    Column("for", "FOR", 12, flex=2, most=30),
    Column("about", "ABOUT", 14, flex=3),
)
_STATES = {WindowState.ACTIVE: GREEN, WindowState.UPCOMING: PLAIN, WindowState.RELEASED: AMBER}


def _gpus(view: WindowView, names: dict[str, str]) -> str:
    kept = [names.get(uuid, "?") for uuid in view.gpus]
    if view.window.gpus or not kept:
        short = short_names(view.window.gpus)
        named = [names.get(name, short[name]) for name in view.window.gpus]
        return ",".join(named) or str(view.window.count)
    return f"{view.window.count}: {','.join(kept)}"


def _about(view: WindowView, now: datetime) -> str:
    words = []
    if view.state is WindowState.RELEASED:
        words.append("released: not claimed in time")
    elif view.claimed_at is not None:
        words.append("in use")
    elif view.lapses_at is not None:
        words.append(f"released in {format_duration(view.lapses_at - now)} if unused")
    if view.source == "file":
        words.append("of the settings file")
    if view.gpus and not view.window.gpus and view.state is not WindowState.RELEASED:
        words.append(f"{plural(len(view.gpus), 'GPU')} kept")
    return "; ".join(words)


class _StandingTab(_PlainTab):
    """Tab whose rows are not jobs."""

    def jobs(self, key: Key | None) -> tuple[Job, ...]:
        return ()


class RecurringTab(_StandingTab):
    """Tab of recurring jobs."""

    name, noun = "recurring", "recurring job"
    columns: tuple[Column, ...] = RECURRING_COLUMNS

    def __init__(self) -> None:
        super().__init__()
        self.entries: Mapping[Key, RecurringJob] = {}

    def update(self, entries: Sequence[RecurringJob]) -> None:
        self.entries = {entry.id: entry for entry in entries}
        self._become(list(self.entries))

    def cell(self, key: Key, column: str, context: JobContext) -> Cell:
        entry = self.entries[key]
        spec = entry.submission.spec
        due = "" if entry.paused or entry.next_at is None else minute(entry.next_at, context.now)
        words = {
            "id": (shown_id(entry.id), BLUE),
            "state": ("paused", AMBER) if entry.paused else ("waits", PLAIN),
            "every": (plain(entry.expression, 80), PLAIN),
            "next": (due, PLAIN),
            "name": (plain(entry.name or spec.name, 80), PLAIN),
            "gpus": (gpus_wanted(spec.gpus), PLAIN),
            "tenant": (plain(spec.tenant, 40), DIM),
            "by": (plain(entry.added_by, 40), DIM),
            "what": (plain(" ".join((spec.image or "host", *spec.command)), 200), DIM),
        }
        return cell(*words[column])

    def empty(self) -> tuple[Cell, ...]:
        how = f"Select a job in the queue and press {keyed('recur')}, or from any shell:"
        command = "  gputui cron add '0 3 * * *' IMAGE COMMAND..."
        return (cell(f"No recurring jobs. {how}", DIM), cell(command, BLUE))


class ReservationsTab(_StandingTab):
    """Tab of reservations."""

    name, noun = "reservations", "reservation"
    columns: tuple[Column, ...] = WINDOW_COLUMNS

    def __init__(self) -> None:
        super().__init__()
        self.views: Mapping[Key, WindowView] = {}

    def update(self, views: Sequence[WindowView]) -> None:
        self.views = {view.window.key: view for view in views}
        self._become(list(self.views))

    def cell(self, key: Key, column: str, context: JobContext) -> Cell:
        view, now = self.views[key], context.now
        window = view.window
        whom = [window.tenant] if window.tenant else []
        whom += [f"priority {window.priority}+"] if window.priority is not None else []
        words = {
            "name": (plain(window.name, 60), BLUE),
            "state": (view.state.value.lower(), _STATES[view.state]),
            "gpus": (_gpus(view, dict(context.gpu_names)), PLAIN),
            "from": (minute(window.start, now), PLAIN),
            "to": (minute(window.end, now), PLAIN),
            "for": (plain(" and ".join(whom) or "nobody", 60), PLAIN),
            "about": (_about(view, now), DIM),
        }
        return cell(*words[column])

    def empty(self) -> tuple[Cell, ...]:
        return (
            cell("No GPUs are reserved. Press B to reserve some, or from any shell:", DIM),
            cell("  gputui reserve add --gpus 4 --start 14:00 --end 18:00 --tenant alice", BLUE),
        )
