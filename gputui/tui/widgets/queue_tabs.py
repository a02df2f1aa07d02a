"""Models of the tabs of the queue pane, which one table draws, and loaders of history and scores, in threads."""

from __future__ import annotations

import heapq
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile
from types import MappingProxyType
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace
from textual.message import Message

from gputui.domain.conditions import keyed
from gputui.domain.errors import GputuiError
from gputui.domain.gpu import short_names
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, shown_id
from gputui.domain.queue_columns import gpus_wanted
from gputui.domain.recurring import RecurringJob
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot, WindowState, WindowView
from gputui.domain.text import format_duration, minute, plain, plural
from gputui.ports import Clock
from gputui.tui.present.cells import AMBER, BLUE, DIM, GREEN, PLAIN, Cell, Column, cell
from gputui.tui.present.job import JobContext, group_cells, job_cells
from gputui.tui.present.status import empty_queue_words
from gputui.tui.progress import (
    IsWanted,
    LatestWorker,
    LongTask,
    TaskCancelledError,
    TaskStarted,
    Throttle,
    failure_words,
)
from gputui.tui.widgets.queue_folding import FOLD, Marks, RowKey, by_end
from gputui.tui.widgets.queue_rows import ENDED, ChosenColumns, QueueRows, fitting, width_of_id, with_server

Key: TypeAlias = RowKey | str
MARK = "●"
READING = (cell("Reading the queue …", DIM),)


class _PlainTab:
    keys: Sequence[Key] = ()
    positions: Mapping[Key, int] = MappingProxyType({})

    def _become(self, keys: Sequence[Key]) -> None:
        self.keys = keys
        self.positions = {key: row for row, key in enumerate(keys)}

    def lead(self, key: Key) -> str:
        return " "

    def jobs(self, key: Key | None) -> tuple[Job, ...]:
        return ()


class QueueTab(Struct, eq=False):
    name = "queue"

    rows: QueueRows
    chosen: ChosenColumns
    marks: Marks = Marks()
    room: int = 0
    absent: Mapping[str, str] = {}
    """Columns for which the cluster has no values, each with its sentence."""
    others: tuple[Cell, ...] = ()
    """Lines about foreign use, for an empty queue; empty if there is none."""
    machine: str = ""
    """Name of the machine where jobs run, if it is another than the scheduler's; else empty."""
    _signs: Mapping[RowKey, str] = {}
    _lead: int = 0
    _living: tuple[Marks, object, Marks] | None = None
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
            entry = rows.jobs.entry(key) if column == "why" else None
            if entry is not None and entry.id != key and (reason := context.reasons.get(entry.id)) is not None:
                context = replace(context, reasons={key: reason})  # an element has its entry's reason
            shown = job_cells(rows.jobs[key], column, context)
        if rows.positions.get(key, 0) < rows.extent.running and rows.jobs_of(key)[0].state.is_terminal:
            shown = tuple((words, DIM) for words, _ in shown)  # it has ended, and its line is free
        signs = rows.arranged.signs
        if column != "name" or not signs:
            return shown
        if signs is not self._signs:
            self._signs, self._lead = signs, max(map(len, signs.values()))
        return ((signs.get(key, "").ljust(self._lead), DIM), *shown)  # all names begin in one column

    def lead(self, key: Key) -> str:
        if not self.marks or not isinstance(key, int):
            return " "
        return MARK if any(map(self.marks.has_any, self.rows.jobs_of(key))) else " "

    def jobs(self, key: Key | None) -> tuple[Job, ...]:
        return self.rows.jobs_of(key) if isinstance(key, int) else ()

    def empty(self) -> tuple[Cell, ...]:
        return empty_queue_words(self.rows.filter, self.others, machine=self.machine) if self.rows.is_read else READING


class EndedJobs(Struct, frozen=True):
    jobs: Mapping[JobId, Job]
    is_whole: bool = False
    is_reading: bool = False
    failure: str = ""


class FinishedTab(_PlainTab):
    name, noun = "finished", "job"
    ended = EndedJobs(MappingProxyType({}))
    room = 0
    has_servers = False
    id_width = 0

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


class RecurringTab(_PlainTab):
    name, noun = "recurring", "recurring job"
    columns: tuple[Column, ...] = RECURRING_COLUMNS
    entries: Mapping[Key, RecurringJob] = MappingProxyType({})

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
        how = f"Select a job in the queue and press {keyed('recur')}, or from any shell:"  # noqa: S608 - a sentence
        command = "  gputui cron add '0 3 * * *' IMAGE COMMAND..."
        return (cell(f"No recurring jobs. {how}", DIM), cell(command, BLUE))


class ReservationsTab(_PlainTab):
    name, noun = "reservations", "reservation"
    columns: tuple[Column, ...] = WINDOW_COLUMNS
    views: Mapping[Key, WindowView] = MappingProxyType({})

    def update(self, views: Sequence[WindowView]) -> None:
        self.views = {view.window.key: view for view in views}
        self._become(list(self.views))

    def cell(self, key: Key, column: str, context: JobContext) -> Cell:
        view, now = self.views[key], context.now
        window, names = view.window, context.gpu_names
        gpus = f"{window.count}: {','.join(names.get(uuid, '?') for uuid in view.gpus)}"
        if window.gpus or not view.gpus:
            short = short_names(window.gpus)
            gpus = ",".join(names.get(name, short[name]) for name in window.gpus) or str(window.count)
        about = ["of the settings file"] if view.source == "file" else []
        if view.state is WindowState.RELEASED:
            about.insert(0, "released: not claimed in time")
        elif view.claimed_at is not None:
            about.insert(0, "in use")
        elif view.lapses_at is not None:
            about.insert(0, f"released in {format_duration(view.lapses_at - now)} if unused")
        if view.gpus and not window.gpus and view.state is not WindowState.RELEASED:
            about.append(f"{plural(len(view.gpus), 'GPU')} kept")
        whom = [window.tenant] if window.tenant else []
        whom += [f"priority {window.priority}+"] if window.priority is not None else []
        words = {
            "name": (plain(window.name, 60), BLUE),
            "state": (view.state.value.lower(), _STATES[view.state]),
            "gpus": (gpus, PLAIN),
            "from": (minute(window.start, now), PLAIN),
            "to": (minute(window.end, now), PLAIN),
            "for": (plain(" and ".join(whom) or "nobody", 60), PLAIN),
            "about": ("; ".join(about), DIM),
        }
        return cell(*words[column])

    def empty(self) -> tuple[Cell, ...]:
        return (
            cell("No GPUs are reserved. Press B to reserve some, or from any shell:", DIM),
            cell("  gputui reserve add --gpus 4 --start 14:00 --end 18:00 --tenant alice", BLUE),
        )


TabModel: TypeAlias = QueueTab | FinishedTab | RecurringTab | ReservationsTab
"""Model of a tab: rows by key from the top, their cells, the character before each, and the jobs of a row."""
ReadHistory: TypeAlias = Callable[[datetime | None], Iterable[Job]]
"""Returns finished jobs that left the queue file since a time, or all. May block."""
PAGES = (timedelta(days=7), timedelta(days=62), timedelta(days=366), None)
"""Periods that are read one after the other, each when the end of the list is reached."""
GIVEN_UP = "reading was cancelled; 2 continues it"


@dataclass(eq=False)
class HistoryRead(Message, bubble=False):
    jobs: dict[int, Job]
    is_whole: bool
    failure: str = ""


class HistoryLoader:
    """Loads ended jobs from the history, page by page. Never blocks."""

    def __init__(self, history: ReadHistory, tell: Callable[[Message], object]) -> None:
        self._history = history
        self._tell = tell
        self._newest = LatestWorker(tell, lambda error: HistoryRead({}, True, failure_words(error)))
        self.close = self._newest.close
        self._page = -1
        self.read = HistoryRead({}, False)
        self.is_reading = False

    def read_further(self, now: datetime) -> None:
        if self.is_reading or self.read.is_whole:
            return
        self.is_reading = True
        self._page += 1
        page = PAGES[self._page]
        since, is_last = (None if page is None else now - page), self._page == len(PAGES) - 1

        reading = LongTask("Reading the history:", "jobs")

        def work(is_wanted: IsWanted) -> Message:
            reading.begin()
            found: dict[int, Job] = {}
            try:
                for job in takewhile(lambda _: is_wanted(), self._history(since)):
                    found[job.id] = job
                    if len(found) % 100 == 0:
                        reading.step(len(found))
                return HistoryRead(found, is_last)
            except TaskCancelledError:
                return HistoryRead(self.read.jobs, False, GIVEN_UP)
            except GputuiError as error:  # the cluster, or one of several servers, does not answer
                return HistoryRead(self.read.jobs | found, False, str(error))
            finally:
                reading.end()

        self._newest.ask(work)
        self._tell(TaskStarted(reading))

    def take(self, message: HistoryRead) -> None:
        self.is_reading, self.read = False, message
        if message.failure and not message.is_whole:  # the same page again, when its end is reached
            self._page -= 1

    def ended(self, snapshot: Snapshot) -> EndedJobs:
        """Return all ended jobs, latest first: those of the queue file and those read from history."""
        known = {**self.read.jobs, **{job.id: job for job in snapshot.jobs if job.state.is_terminal}}
        live = {job.id for job in snapshot.jobs if not job.state.is_terminal}  # one from history may have been requeued
        over = sorted((job for job in known.values() if job.id not in live), key=by_end, reverse=True)
        return EndedJobs({job.id: job for job in over}, self.read.is_whole, self.is_reading, self.read.failure)


@dataclass(eq=False)
class ScoresMade(Message, bubble=False):
    """Scores of the waiting jobs, by id; empty if the computation failed."""

    scores: dict[JobId, float]


class ScoreLoader:
    """Computes the scores of a snapshot once, and rarely enough that it takes little of a core."""

    def __init__(self, settings: Settings, clock: Clock, tell: Callable[[Message], object]) -> None:
        self._settings = settings
        self._clock = clock
        self._worker = LatestWorker(tell, lambda error: ScoresMade({}))
        self.close = self._worker.close
        self._asked: Callable[[], Snapshot | None] = lambda: None
        """Snapshot of the last request, as a weak reference, since it holds a whole queue."""
        self._throttle = Throttle(rest=9)
        self.end = self._throttle.end

    def load(self, snapshot: Snapshot) -> None:
        if self._asked() is snapshot or not self._throttle.may_begin:
            return
        self._asked = weakref.ref(snapshot)
        settings, now = self._settings, self._clock.now()
        self._throttle.begin()

        def work(is_wanted: IsWanted) -> Message:
            from gputui.domain.policy import queue_order

            parts = [(server.snapshot, server.settings) for server in snapshot.servers] or [(snapshot, settings)]
            standings = (queue_order.queue_standings(part, rules, now) for part, rules in parts)
            return ScoresMade({each.job.id: each.score for found in standings for each in found})

        self._worker.ask(work)


PERIOD = timedelta(days=7)
_MOST = 50


class PastJobs(Struct, frozen=True):
    """Jobs of a GPU that left the queue file in the last days, the latest ones."""

    jobs: tuple[Job, ...] = ()
    is_read: bool = False
    failure: str = ""


@dataclass(eq=False)
class PastJobsRead(Message, bubble=False):
    uuid: str
    past: PastJobs


class PastJobsLoader:
    """Reads the history once for each GPU that is asked for. Never blocks."""

    def __init__(self, history: ReadHistory, tell: Callable[[Message], object]) -> None:
        self._history = history
        self._worker = LatestWorker(
            tell, lambda error: PastJobsRead(self._uuid, PastJobs((), True, failure_words(error)))
        )
        self.close = self._worker.close
        self._uuid = ""
        self._past = PastJobs()

    def of(self, uuid: str, now: datetime) -> PastJobs:
        """Return what is known of a GPU's past jobs; of another GPU than before, begin to read them."""
        if uuid != self._uuid:
            self._uuid, self._past = uuid, PastJobs()

            def read(is_wanted: IsWanted) -> PastJobsRead:
                jobs = takewhile(lambda _: is_wanted(), self._history(now - PERIOD))
                found = (job for job in jobs if any(uuid in attempt.gpus for attempt in job.attempts))
                return PastJobsRead(uuid, PastJobs(tuple(heapq.nlargest(_MOST, found, key=by_end)), True))

            self._worker.ask(read)
        return self._past

    def take(self, message: PastJobsRead) -> None:
        if message.uuid == self._uuid:
            self._past = message.past
