"""Pages of one thing: a job with all its facts, a GPU, the processes of a job."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import ClassVar

from msgspec.structs import replace
from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.message import Message

from gputui.domain.cluster import ENGINES
from gputui.domain.container import ProcessRow
from gputui.domain.errors import GputuiError
from gputui.domain.gpu import GpuView
from gputui.domain.job import Attempt, Job
from gputui.domain.job_spec import JobId, shown_id
from gputui.domain.policy.planning_context import Durations
from gputui.domain.policy.whatif import Explanation, explain
from gputui.domain.queue_columns import gpus_wanted
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.domain.telemetry_series import Measured
from gputui.domain.text import UNKNOWN, format_duration, format_size, plain, plural, width
from gputui.ports.backend import Backend
from gputui.tui.commands import APP_COMMANDS, BACK, COPY, GPU_PAGE_COMMANDS, JOB_COMMANDS, PROCESS_VIEW, SHELL, bindings
from gputui.tui.keymap import keymap_of
from gputui.tui.present.cells import (
    AMBER,
    BLUE,
    DIM,
    GREEN,
    GROUND,
    PLAIN,
    RED,
    STRONG,
    Cell,
    Column,
    broken_cell,
    cell,
    fitted,
)
from gputui.tui.present.detail import (
    ExplanationState,
    Line,
    Live,
    array_lines,
    engine_wait_lines,
    gpu_rows_of,
    job_gpu_lines,
    job_lines,
    standing_lines,
    telemetry_lines,
)
from gputui.tui.present.gpu_detail import GpuPage, gpu_page_lines, holders, is_in_trouble, several_graph_lines, title
from gputui.tui.present.gpu_rows import GpuPicture, GpuRow, Labels
from gputui.tui.present.job import JobContext, job_title
from gputui.tui.progress import ForecastBase, LatestWorker, Throttle, failure_words
from gputui.tui.screens.job_screen import JobScreen, OverlayScreen
from gputui.tui.services import Services
from gputui.tui.widgets.line_table import CellLines, LineTable, Page
from gputui.tui.widgets.log_follower import started_attempt
from gputui.tui.widgets.log_view import JobLog
from gputui.tui.widgets.queue_tabs import PastJobs, PastJobsLoader, PastJobsRead
from gputui.tui.widgets.status_bars import KeyBar

_AGAIN = 10.0
"""Seconds after which a running attempt's telemetry is read again."""


@dataclass(eq=False)
class TelemetryLoaded(Message, bubble=False):
    measured: Mapping[int, Measured]


class TelemetryLoader:
    """Telemetry of a job, as far as it has been read."""

    def __init__(self, post: Callable[[Message], object], backend: Backend) -> None:
        self._backend = backend
        self.worker = LatestWorker(post, lambda error: TelemetryLoaded({}))
        self._asked_for: object = None
        self._asked_at = 0.0
        self.measured: Mapping[int, Measured] = {}

    def update(self, job: Job) -> None:
        attempt = _shown(job)
        if attempt is None:
            return
        wanted, now = (job.id, attempt.number, attempt.is_over), time.monotonic()
        if wanted == self._asked_for and (attempt.is_over or now - self._asked_at < _AGAIN):
            return
        self._asked_for, self._asked_at = wanted, now
        self.worker.ask(lambda is_wanted: TelemetryLoaded(self._backend.measured(job.id)))

    def lines(self, job: Job, room: int, *, has_graphs: bool, is_tall: bool) -> list[tuple[str, Cell]]:
        """Return the lines of the page about the latest started attempt; empty before they were read."""
        attempt = _shown(job)
        measured = self.measured.get(attempt.number) if attempt else None
        if attempt is None or measured is None:
            return []
        lines = telemetry_lines(attempt, measured, room, has_graphs=has_graphs, is_tall=is_tall)
        if not lines and (why := self._backend.why_unread(job).get(attempt.number)):
            return [("measured", cell(why, DIM))]
        return lines


def _shown(job: Job) -> Attempt | None:
    return next((attempt for attempt in reversed(job.attempts) if attempt.started_at), None)


_COMMANDS = tuple(command for command in JOB_COMMANDS if command.action != "detail")
_LABEL, _GAP = 10, 2
_FRAME, _AROUND = 4, 5
"""Cells beside the page, and rows above and below its lines."""
_LOG_LEAST = 6
"""Minimum rows of a log."""
_BESIDE_FROM = 180
"""Columns from which the log is beside the page."""
_COMPACT = 30
"""Screens with fewer rows are compact."""
_TALL = 56
"""Rows from which a page with the log below has spare rows."""
_ENDLESS = 1000
"""Cells of a line that is cut at the edge, not wrapped."""


@dataclass(eq=False)
class Explained(Message, bubble=False):
    explanation: Explanation | None
    failure: str = ""


class Detail(JobScreen):
    BINDINGS: ClassVar = [
        *bindings((*_COMMANDS, BACK)),
        Binding("enter", "back", "back", id="detail"),
        ("j", "scroll(1)", "down"),
        ("k", "scroll(-1)", "up"),
    ]
    CSS = """
    Detail { layout: vertical; }
    Detail VerticalScroll { padding: 1 2; scrollbar-size-vertical: 1; scrollbar-background: $background; }
    Detail.-with-log VerticalScroll { height: auto; }
    Detail.-beside #page { layout: horizontal; }
    Detail.-beside VerticalScroll { width: 1fr; height: 1fr; }
    Detail.-beside JobLog { width: 1fr; }
    """

    def __init__(
        self,
        services: Services,
        snapshot: Snapshot,
        job_id: JobId,
        follow: Callable[[JobId], None],
        job: Job | None = None,
    ) -> None:
        super().__init__(services, snapshot)
        self._job_id = job_id
        self._last_id = job.last_id if job is not None and job.runs else None
        """Last element of an entry, which the page shows as a whole; it stays longest."""
        self._follow = follow
        self._job: Job | None = self._seen(snapshot) or job
        """Job as of the snapshot; if it is only in the history, its last state."""
        self._heading = CellLines(id="heading")
        self._body = CellLines(id="body", background=GROUND)
        self._log = JobLog(id="log")
        self._keys = KeyBar(id="keys")
        self._told = ExplanationState()
        self._explainer = LatestWorker(self.post_message, lambda error: Explained(None, failure_words(error)))
        self._telemetry = TelemetryLoader(self.post_message, services.backend)
        self._pace = Throttle(rest=9)
        self._explained: ForecastBase | None = None
        """Base of the last requested explanation."""

    def compose(self) -> ComposeResult:
        yield self._heading
        with Vertical(id="page"):
            with VerticalScroll():
                yield self._body
            yield self._log
        yield self._keys

    def on_mount(self) -> None:
        self.show_snapshot(self._snapshot)
        self.set_interval(self._services.pace.tick, lambda: self.show_snapshot(self._snapshot))

    def on_unmount(self) -> None:
        self._explainer.close()
        self._telemetry.worker.close()
        self._explained = None

    def on_resize(self) -> None:
        self.call_after_refresh(lambda: self.show_snapshot(self._snapshot))  # the one of then, not of now

    def subject(self) -> Job | None:
        return self._job

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Show the job as of the snapshot; a job that left the queue file stays as it was."""
        self._snapshot = snapshot
        self._job = self._seen(snapshot) or self._job
        if self._job is None or not self.is_in_sight or not self._keys.is_attached:
            return  # a snapshot may arrive before the page is ready
        self._explain(self._job)
        self._telemetry.update(self._job)
        self._heading.show([((f" Job {job_title(self._job)}", STRONG),)])
        self._fill(self._job)
        commands = (c for c in _COMMANDS if c.in_footer)
        self._keys.show(tuple(c for c in commands if c.works_at(self)), (BACK, APP_COMMANDS[0]))

    def _seen(self, snapshot: Snapshot) -> Job | None:
        if self._last_id is None:
            return snapshot.job(self._job_id)
        return snapshot.entry(self._last_id)

    def _fill(self, job: Job) -> None:
        is_wide = self.size.width >= _BESIDE_FROM
        self.set_class(is_wide and started_attempt(job) > 0, "-beside")
        room = self._body.size.width or self.size.width - _FRAME
        snapshot = self._snapshot
        names = Labels.of(snapshot).by_uuid
        reasons = snapshot.reasons
        if job.array is not None and job.id not in reasons and (entry := snapshot.entry(job.id)) is not None:
            each = reasons.get(entry.id)  # it waits for what its entry does
            reasons = {**reasons, job.id: each} if each else reasons
        context = replace(JobContext.of(snapshot, self._services.clock.now(), names), reasons=reasons)
        told = self._lines(job, context, room)
        lines = _laid_out(told, room, _labels(told))
        if job.state is JobState.PENDING:
            rest = self.size.height - len(lines) - _AROUND
            standing = standing_lines(job, self._snapshot, context, self._told, rest)
            lines += [tuple(fitted(line, room)) for line in _laid_out(standing, _ENDLESS, _labels(told))]
        has_log = started_attempt(job) > 0
        lines += self._graphs(job, room, self.size.height - len(lines) - _AROUND - 1) if is_wide or not has_log else []
        self._body.fill(lines)
        is_room = is_wide or self.size.height - len(lines) - _AROUND >= _LOG_LEAST
        self._log.show_of(job, self._services.backend, is_room=is_room)
        self.set_class(self._log.display and not is_wide, "-with-log")

    def _lines(self, job: Job, context: JobContext, room: int) -> tuple[Line, ...]:
        is_compact = self.app.size.height < _COMPACT
        told = replace(self._told, is_compact=is_compact)
        live = None
        if job.state.is_active:  # the readings of its GPUs and its expected duration
            picture = self._services.gpus.of(self._snapshot, {}, context.now)
            is_below = self.size.width < _BESIDE_FROM
            gpus = job_gpu_lines(job, picture, room - _LABEL - _GAP, is_compact=is_compact, has_graphs=is_below)
            live = Live(gpus)
            if not self._snapshot.engine_decides:
                settings = self._services.settings
                alike = (each for each in self._snapshot.jobs if each.spec.tenant == job.spec.tenant)
                live = Live(gpus, Durations(alike, settings.policy, settings.scheduler.max_time).expected(job))
        has_graphs = self._services.pace.has_graphs and not is_compact
        # it has spare rows if there are more than the log below it needs, or the log is beside it
        is_tall = self.size.height >= (_COMPACT if self.size.width >= _BESIDE_FROM else _TALL)
        telemetry = self._telemetry.lines(job, room - _LABEL - _GAP, has_graphs=has_graphs, is_tall=is_tall)
        if self._snapshot.engine_decides:  # its engine decides: a score or a forecast of ours would mislead
            lines = job_lines(job, context, None, live, telemetry, engine_wait_lines(job, self._snapshot))
        else:
            lines = job_lines(job, context, told if job.state is JobState.PENDING else None, live, telemetry)
        return (lines[0], *array_lines(job, self._snapshot), *lines[1:])

    def _graphs(self, job: Job, room: int, rows: int) -> list[Cell]:
        """Return the lines that fit below the page: the past of the GPUs that the job holds, or may wait for."""
        is_waiting = job.state is JobState.PENDING and gpus_wanted(job.spec.gpus) != "-"
        if not (job.state.is_active or is_waiting) or not self._services.pace.has_graphs:
            return []
        picture = self._services.gpus.of(self._snapshot, {}, self._services.clock.now())
        choices = [gpu_rows_of(job, picture)]
        if is_waiting:
            told = self._told.explanation
            awaited = frozenset(told.waits_for if told else ())
            everyone = list(picture.rows.values())
            choices = [everyone, [row for row in everyone if row.view.job_id in awaited]]
        graphs = several_graph_lines(choices, room, rows)
        return [(), *graphs] if graphs else []

    def _explain(self, job: Job) -> None:
        snapshot, now = self._snapshot, self._services.clock.now()
        is_new = self._explained is None or self._explained.is_old(snapshot, now)
        if job.state is not JobState.PENDING or snapshot.engine_decides or not is_new or not self._pace.may_begin:
            return
        settings = self._services.settings
        self._explained = ForecastBase(snapshot, now)
        self._pace.begin()
        self._explainer.ask(lambda is_wanted: Explained(explain(snapshot, job.element(job.id), settings, now)))

    def on_explained(self, message: Explained) -> None:
        self._pace.end()
        self._told = ExplanationState(message.explanation, message.failure)
        self.show_snapshot(self._snapshot)

    def on_telemetry_loaded(self, message: TelemetryLoaded) -> None:
        self._telemetry.measured = message.measured
        self.show_snapshot(self._snapshot)

    def action_follow(self) -> None:
        self._follow(self._job_id)
        self.dismiss()

    def action_scroll(self, step: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=step, animate=False)


def _labels(lines: Sequence[Line]) -> int:
    return max([_LABEL, *(width(label) for label, _ in lines)]) + _GAP


def _laid_out(lines: Sequence[Line], room: int, first: int) -> list[Cell]:
    """Lay out labels in a column of `first` cells, and their texts beside them, wrapped."""
    found: list[Cell] = []
    for label, about in lines:
        begun = fitted(((label, BLUE),), first)
        for line in broken_cell(about, room - first) or [()]:
            found.append((*begun, *line))
            begun = fitted((), first)
    return found


class GpuDetailScreen(OverlayScreen):
    """Page of a GPU, kept up to date while it is open. Commands act on the GPU and on the job that holds it."""

    BINDINGS: ClassVar = bindings((*JOB_COMMANDS, *GPU_PAGE_COMMANDS, BACK))
    DEFAULT_CSS = """
    GpuDetailScreen { layout: vertical; }
    GpuDetailScreen #heading { dock: top; }
    """

    def __init__(self, services: Services, snapshot: Snapshot, uuid: str, follow: Callable[[JobId], None]) -> None:
        super().__init__(services, snapshot, follow)
        self._uuid = uuid
        self._picture = GpuPicture()
        self._meant = 0
        """Index of the selected job among those that share the GPU."""
        self._past_jobs = PastJobsLoader(services.backend.history, self.post_message)
        self.conditions["next_job"] = lambda _: len(self._jobs()) > 1

    def compose(self) -> ComposeResult:
        yield CellLines(id="heading")
        yield Page(id="page")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        self.query_one(Page).focus()
        self.set_interval(self._services.pace.tick, self.tick)
        self.call_after_refresh(self.tick)

    def on_unmount(self) -> None:
        self._past_jobs.close()
        self._services.want_pcie(None)
        self._picture = GpuPicture()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Show the GPU as of the snapshot; a GPU that is no longer listed stays as it was."""
        self._snapshot = snapshot
        self.tick()

    @on(events.ScreenResume)
    @on(Page.Scrolled)
    def tick(self) -> None:
        if not self.is_mounted or not self.is_in_sight:
            return
        now, snapshot = self._services.clock.now(), self._snapshot
        jobs = {job.id: job for job in snapshot.jobs if job.state.is_active}
        picture = self._services.gpus.of(snapshot, jobs, now)
        if self._uuid in picture.rows:
            self._picture = picture
        row = self._picture.rows.get(self._uuid)
        if row is None:
            return
        self._services.want_pcie(self._uuid)  # repeatedly: another process may have become leader meanwhile
        shown = self.query_one(Page)
        page = self._page(row, now)
        shown.show(gpu_page_lines(page, max(0, shown.size.width - 2), shown.size.height))
        room = self.size.width - len(shown.position) - 3
        head = ((" ", DIM), *fitted(title(page.row), max(0, room)), (f" {shown.position} ", DIM))
        self.query_one("#heading", CellLines).show([head])
        commands = (c for c in (*JOB_COMMANDS, *GPU_PAGE_COMMANDS) if c.in_footer and c.works_at(self))
        self.query_one(KeyBar).show(tuple(commands), (PROCESS_VIEW, BACK, APP_COMMANDS[0]))

    def _page(self, row: GpuRow, now: datetime) -> GpuPage:
        keys = (keymap_of(self).key("detail"), keymap_of(self).key("next_job"))
        past = self._past_jobs.of(self._uuid, now) if is_in_trouble(row.view) else PastJobs(is_read=True)
        words = "" if past.is_read else "reading the history …"
        if past.failure:
            words = f"the history cannot be read: {plain(past.failure, 200)}"
        leader = self._snapshot.leader
        if self._snapshot.leads_here:
            why = ""
        elif leader is None:
            why = "no scheduler reads the GPUs now"
        elif leader.kind in ENGINES:
            why = "the probes of nodes do not read it"
        else:
            kind = "gputui serve" if leader.kind == "serve" else "a console"
            why = f"{kind} (pid {leader.pid}) reads the GPUs and is asked for it"
        return GpuPage(row, self._picture, self._snapshot, now, self._jobs(), why, keys, past.jobs, words)

    def on_past_jobs_read(self, message: PastJobsRead) -> None:
        self._past_jobs.take(message)
        self.tick()

    def gpu(self) -> GpuView | None:
        row = self._picture.rows.get(self._uuid)
        return row.view if row else None

    def _jobs(self) -> tuple[Job, ...]:
        view = self.gpu()
        jobs = holders(view, self._snapshot.jobs) if view else ()
        meant = self._meant % len(jobs) if jobs else 0
        return (*jobs[meant:], *jobs[:meant])

    def subject(self) -> Job | None:
        """Return the job that holds it; of several, the selected one."""
        return next(iter(self._jobs()), None)

    def action_next_job(self) -> None:
        self._meant += 1
        self.tick()

    def action_other_gpu(self, step: int) -> None:
        uuids = list(self._picture.rows)
        if self._uuid in uuids:
            self._uuid = uuids[(uuids.index(self._uuid) + step) % len(uuids)]
            self._meant = 0
            self.query_one(Page).action_first()
            self.tick()


PROCESS_COLUMNS = (
    Column("pid", "PID", 7, right=True),
    Column("user", "USER", 8, rank=2),
    Column("cpu", "CPU", 6, right=True),
    Column("memory", "MEM", 5, right=True),
    Column("gpu", "GPU MEM", 7, right=True),
    Column("age", "AGE", 7, right=True, rank=1),
    Column("command", "COMMAND", 20, flex=1),
)
_BUSY = 0.5
"""Share of a core from which a process counts as busy."""


def process_cells(row: ProcessRow, gpu_memory: int | None, column: str) -> Cell:
    """Return the content of a cell; `gpu_memory` is None for a process without GPU memory."""
    if column == "cpu":
        if row.cpu is None:
            return cell(UNKNOWN, DIM)
        return cell(f"{row.cpu:.0%}", GREEN if row.cpu >= _BUSY else PLAIN)
    program, space, rest = row.command.partition(" ")  # what distinguishes it comes after its directory
    texts = {
        "pid": (str(row.pid), DIM),
        "user": (plain(row.user, 32), DIM),
        "memory": (UNKNOWN if row.memory is None else format_size(row.memory), PLAIN),
        "gpu": ("" if gpu_memory is None else format_size(gpu_memory), AMBER),
        "age": (UNKNOWN if row.age is None else format_duration(row.age), DIM),
        "command": (plain((program.rpartition("/")[2] or program) + space + rest, 1000), PLAIN),
    }
    return cell(*texts[column])


_OTHERS, _STEP = 4, 6
"""Lines for heading, titles, messages and keys, and the rows by which the list grows."""
EVERY = 2.0
"""Seconds between two listings; a new one waits for the previous one."""


class ProcessTable(LineTable[int]):
    """Table of processes by pid, the busiest first."""

    COLUMNS: ClassVar = PROCESS_COLUMNS
    noun = "process"
    _rows: Mapping[int, ProcessRow] = MappingProxyType({})
    _memory: Mapping[int, int] = MappingProxyType({})

    def show(self, rows: tuple[ProcessRow, ...], memory: Mapping[int, int], empty: Cell) -> None:
        """Show the processes, with the GPU memory of each pid that uses some."""
        self._rows, self._memory = {row.pid: row for row in rows}, memory
        keys = sorted(self._rows, key=lambda pid: (-memory.get(pid, 0), -(self._rows[pid].cpu or 0), pid))
        self.show_rows(keys, {pid: place for place, pid in enumerate(keys)}, (empty,))

    def cell_of(self, key: int, column: str, room: int) -> Cell:
        return process_cells(self._rows[key], self._memory.get(key), column)


class ProcessesScreen(JobScreen):
    BINDINGS: ClassVar = [*bindings((SHELL, COPY, BACK)), Binding("X", "back", "back", id="processes")]
    DEFAULT_CSS = "ProcessesScreen { layout: vertical; }"

    def __init__(self, services: Services, snapshot: Snapshot, job_id: JobId) -> None:
        super().__init__(services, snapshot)
        self._job_id = job_id
        self._job = snapshot.job(job_id)
        self._found: tuple[ProcessRow, ...] = ()
        self._fault = ""
        self._is_asking = False
        self._is_asked = False

    def compose(self) -> ComposeResult:
        yield CellLines(id="heading")
        yield ProcessTable(id="processes")
        yield CellLines(id="graphs", background=GROUND)
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        self.query_one(ProcessTable).focus()
        self.set_interval(EVERY, self.look)
        self.look()
        self.call_after_refresh(self._draw)

    def subject(self) -> Job | None:
        return self._job

    def show_snapshot(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._job = snapshot.job(self._job_id) or self._job
        self._draw()

    @work
    async def look(self) -> None:
        """List the processes in a thread: the engine may be slow."""
        if self._is_asking or self._job is None or not self.is_in_sight:
            return
        self._is_asking = True
        try:
            self._found, self._fault = await asyncio.to_thread(self._services.backend.processes, self._job.id), ""
        except GputuiError as error:
            self._found, self._fault = (), str(error)
        finally:
            self._is_asking = False
        self._is_asked = True
        self._draw()

    def _draw(self) -> None:
        if not self.is_mounted or not self.is_in_sight:
            return
        title = job_title(self._job) if self._job else f"#{shown_id(self._job_id)}"
        count = plural(len(self._found), "process") if self._found else ""
        self.query_one("#heading", CellLines).show([((" PROCESSES  ", DIM), (f"{title}  ", STRONG), (count, DIM))])
        memory: Counter[int] = Counter()
        for holder in (holder for view in self._snapshot.gpus for holder in view.holders):
            if holder.pid is not None and holder.memory is not None:
                memory[holder.pid] += holder.memory
        empty = cell("No visible processes." if self._is_asked else "Looking …", DIM)
        if self._job is not None and self._job.state.is_terminal:
            empty = cell(f"It has ended: {self._job.state}.", DIM)
        if self._fault:
            empty = cell(plain(self._fault, 300), RED)
        self.query_one(ProcessTable).show(self._found, memory, empty)
        self.query_one("#graphs", CellLines).fill(self._graphs())
        keys = tuple(command for command in (SHELL, COPY) if self.check_action(command.action, ()))
        self.query_one(KeyBar).show(keys, (BACK, APP_COMMANDS[0]))

    def _graphs(self) -> list[Cell]:
        shown = -(-len(self._found) // _STEP) * _STEP or _STEP  # not another height with each process
        rows = self.size.height - _OTHERS - shown
        if self._job is None or not self._services.pace.has_graphs:
            return []
        picture = self._services.gpus.of(self._snapshot, {}, self._services.clock.now())
        return [
            ((" ", DIM), *line)
            for line in several_graph_lines([gpu_rows_of(self._job, picture)], self.size.width - 2, rows)
        ]
