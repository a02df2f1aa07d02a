"""Processes on the GPUs: their view, pages of foreign processes and containers, and the actions on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import Thread
from types import MappingProxyType
from typing import Any, ClassVar

from msgspec import Struct
from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input

from gputui.domain.action import Cancel
from gputui.domain.container import ProcessRow
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.filter import Filter
from gputui.domain.gpu import ALL_SHARES
from gputui.domain.gpu_processes import (
    JOB,
    PROCESS_FIELDS,
    ContainerDetail,
    GpuProcessRow,
    local_pids,
    parse_process_filter,
    process_rows,
    process_target,
    summary,
    tree_of,
    with_host_values,
)
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import listed, plain
from gputui.engine.actions.foreign_use import ForeignUse
from gputui.ports import LogStream
from gputui.ports.backend import LogRequest
from gputui.tui.actions import ActionDone, ActionFailed
from gputui.tui.commands import (
    APP_COMMANDS,
    BACK,
    BY_NAME,
    FILTER_COMMANDS,
    LOG_COMMANDS,
    MENUS,
    PROCESS_COMMANDS,
    STOP_CONTAINER,
    bindings,
)
from gputui.tui.keymap import keymap_of
from gputui.tui.present.cells import DIM, GROUND, STRONG, Cell, Column, PlacedColumn, cell
from gputui.tui.present.gpu import label_of
from gputui.tui.present.gpu_detail import several_graph_lines
from gputui.tui.present.process import (
    FAULT,
    PROCESS_VIEW_COLUMNS,
    ProcessOrder,
    container_lines,
    heading_cell,
    process_lines,
    process_page,
    row_lines,
    signal_question,
    view_cell,
)
from gputui.tui.progress import IsWanted, LatestWorker
from gputui.tui.screens.dialogs import Confirm, ScrollingDialog, ask
from gputui.tui.screens.job_screen import JobScreen
from gputui.tui.screens.log_pane import LogPane
from gputui.tui.services import Services
from gputui.tui.widgets.job_table import DOWN, UP, TitleClicked
from gputui.tui.widgets.line_table import CellLines, CursorMoved, LineTable, MenuAsked, RowOpened
from gputui.tui.widgets.log_follower import LogFollower
from gputui.tui.widgets.status_bars import FilterHistory, FilterLine, KeyBar


def act(app: App[Any], begun: str, call: Callable[[], str]) -> None:
    """Carry out an action on its own thread and show its result on the screen that is in front by then."""
    app.notify(begun)

    def run() -> None:
        try:
            told: Message = ActionDone(call())
        except GputuiError as error:
            told = ActionFailed(error)
        except Exception as error:  # noqa: BLE001 - a border: whatever went wrong is told
            told = ActionFailed(GputuiError(f"{type(error).__name__}: {error}", where="gputui"))
        app.post_message(told)

    Thread(target=run, name="gputui-foreign", daemon=True).start()


def ask_stop(screen: Screen[Any], use: ForeignUse, container_id: str, words: str) -> None:
    detail = "It gets its stop signal, and is killed when its stop timeout is over, 10 s unless it has its own."
    question = Confirm(plain(f"Stop container {words}?", 200), detail)
    begun = f"Stopping container {words} …"
    ask(screen.app, question, lambda _: act(screen.app, begun, lambda: use.stop(container_id)))


@dataclass(eq=False)
class EnvironmentRead(Message, bubble=False):
    environment: tuple[str, ...] | None
    refusal: str = ""


class ProcessPage(ScrollingDialog):
    """Page of a process, with its environment if this user may read it."""

    def __init__(self, row: GpuProcessRow, use: ForeignUse | None) -> None:
        super().__init__()
        self.heading = f"Process {row.pid}"
        self._row = row
        self._use = use
        self._environment: tuple[str, ...] | None = None
        self._refusal = ""
        self._worker = LatestWorker(self.post_message, lambda error: EnvironmentRead(None, str(error)))

    def on_mount(self) -> None:
        self.show_lines()
        self._worker.ask(self._read)

    def on_unmount(self) -> None:
        self._worker.close()

    def _read(self, is_wanted: IsWanted) -> EnvironmentRead:
        target = process_target(self._row)
        if self._use is None or target is None:
            return EnvironmentRead(None, "it cannot be read from here")
        if target.machine:
            return EnvironmentRead(None, f"processes of {target.machine} cannot be read from here")
        if target.ticks is None:
            return EnvironmentRead(None, "the process cannot be identified from here")
        return EnvironmentRead(self._use.environment(target))

    def on_environment_read(self, message: EnvironmentRead) -> None:
        self._environment, self._refusal = message.environment, message.refusal
        self.show_lines()
        self.call_after_refresh(self.show_lines)  # the scroll bar may have taken some of the room

    def lines(self, room: int) -> list[Cell]:
        return process_page(self._row, self._environment, self._refusal, room)


class ContainerLog(Struct, eq=False):
    """LogOpener for the output of one container."""

    _use: ForeignUse
    _container_id: str

    def log(self, job_id: JobId, request: LogRequest) -> LogStream:
        return self._use.logs(self._container_id, tail=request.tail, follow=request.follow, stamped=request.stamped)


@dataclass(eq=False)
class ContainerRead(Message, bubble=False):
    detail: ContainerDetail | None
    fault: str = ""


class ContainerScreen(JobScreen):
    """Page of a foreign container: owner, image, uptime, mounts and ports, and its log."""

    BINDINGS: ClassVar = bindings((STOP_CONTAINER, BACK))
    DEFAULT_CSS = """
    ContainerScreen { layout: vertical; }
    ContainerScreen #log { height: 1fr; min-height: 4; }
    """

    def __init__(self, services: Services, use: ForeignUse, container_id: str, name: str) -> None:
        super().__init__(services)
        self._use = use
        self._container_id = container_id
        self._called = name
        self._detail: ContainerDetail | None = None
        self._fault = ""
        self._worker = LatestWorker(self.post_message, lambda error: ContainerRead(None, str(error)))
        self.conditions["stop_container"] = lambda _: (
            (detail := self._detail) is not None and detail.is_running and not detail.store
        )

    def compose(self) -> ComposeResult:
        yield CellLines(id="heading")
        yield CellLines(id="page")
        yield LogPane(id="log")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        self._draw()
        self._worker.ask(self._read)
        pane = self.query_one(LogPane)
        pane.follow(
            LogFollower(ContainerLog(self._use, self._container_id), 0, None), f"container {plain(self._called, 60)}"
        )
        pane.focus()
        self.set_interval(5.0, lambda: self._worker.ask(self._read))

    def on_unmount(self) -> None:
        super().on_unmount()
        self._worker.close()

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    def _read(self, is_wanted: IsWanted) -> ContainerRead:
        return ContainerRead(self._use.container(self._container_id))

    def on_container_read(self, message: ContainerRead) -> None:
        """Show the container; one that is gone stays as it was, with the reason."""
        self._detail, self._fault = message.detail or self._detail, message.fault
        self._draw()

    def _draw(self) -> None:
        if not self.is_attached:
            return
        self.query_one("#heading", CellLines).show([((" CONTAINER  ", DIM), (plain(self._called, 80), STRONG))])
        page, room = self.query_one("#page", CellLines), max(20, self.size.width - 2)
        lines = container_lines(self._detail, self._services.clock.now(), room) if self._detail else []
        lines = [*([cell(plain(self._fault, 400), FAULT)] if self._fault else []), *lines]
        page.fill([((" ", DIM), *line) for line in lines[: max(3, self.size.height // 2)] or [cell("Looking …", DIM)]])
        pane = self.query_one(LogPane)
        offered = (STOP_CONTAINER, *LOG_COMMANDS[:2])
        keys = tuple(each for each in offered if each.works_at(pane if each.is_known_to(pane) else self))
        self.query_one(KeyBar).show(keys, (BACK, APP_COMMANDS[0]))

    def subject(self) -> Job | None:
        """Return None: a foreign container has no job."""
        return None

    def action_stop_container(self) -> None:
        ask_stop(self, self._use, self._container_id, self._called)


class GpuProcessTable(LineTable[str]):
    """Processes and containers on GPUs, by row key. A column without known values is left out."""

    noun = "process"
    _rows: Mapping[str, GpuProcessRow] = MappingProxyType({})
    _order = ProcessOrder()
    _shown_columns: tuple[Column, ...] = PROCESS_VIEW_COLUMNS

    def show(self, rows: Sequence[GpuProcessRow], order: ProcessOrder, empty: Cell) -> None:
        self._rows = {row.key: row for row in rows}
        has_shares = any(row.sm is not None for row in rows)
        columns = tuple(column for column in PROCESS_VIEW_COLUMNS if column.key != "sm" or has_shares)
        is_changed = (order, columns) != (self._order, self._shown_columns)
        self._order, self._shown_columns = order, columns
        keys = list(self._rows)
        self.show_rows(keys, {key: place for place, key in enumerate(keys)}, (empty,))
        if is_changed:
            self.lay_out()

    @property
    def row(self) -> GpuProcessRow | None:
        return None if self.cursor is None else self._rows.get(self.cursor)

    def columns(self) -> tuple[Column, ...]:
        return self._shown_columns

    def cell_of(self, key: str, column: str, room: int) -> Cell:
        return view_cell(self._rows[key], column)

    def title_of(self, placed: PlacedColumn) -> str:
        column = placed.column
        if column.key != self._order.column:
            return column.title
        return column.title[: placed.width - 1] + (DOWN if self._order.is_down else UP)

    def on_click(self, event: events.Click) -> None:
        if event.y == self.head - 1 and (column := self.column_at(event.x)):
            self.post_message(TitleClicked(column.key))


_OTHERS, _STEP = 4, 6
"""Lines for heading, titles, messages and keys, and the rows by which the list grows."""
_LEAST, _MUCH = 8, 20
"""Lines from which more is shown about the selected row, and from which all is."""
FILTERS = "process_filters"
"""Section of the preferences."""
_OFFERED = (*PROCESS_COMMANDS, BY_NAME["cancel"], *FILTER_COMMANDS)
_EXAMPLES = {name: field.example for name, field in PROCESS_FIELDS.items()}
_NAMED = 3
"""Most nodes that are named as not read."""
_HINT = "alice kind:foreign gpu:3 gpumem>10g age>2h -user:root  ↑ earlier"


@dataclass(eq=False)
class ProcessesRead(Message, bubble=False):
    """Message with the processes on GPUs and their values from the host, and all processes that were read."""

    rows: tuple[GpuProcessRow, ...]
    seen: Mapping[int, ProcessRow]
    fault: str = ""


class GpuProcessesScreen(JobScreen):
    """List of all processes on the GPUs. /proc is read on a thread, once for each reading of the process lists."""

    BINDINGS: ClassVar = [
        *bindings((*PROCESS_COMMANDS, *FILTER_COMMANDS, BY_NAME["cancel"], BACK)),
        Binding("U", "back", "back", id="gpu_processes"),
    ]
    DEFAULT_CSS = "GpuProcessesScreen { layout: vertical; } GpuProcessesScreen #about { height: 2; }"

    def __init__(
        self, services: Services, snapshot: Snapshot, follow: Callable[[JobId], None], words: str = "", at: str = ""
    ) -> None:
        """`words` filter the list; `at` is the pid or the id of a container on which the cursor starts."""
        super().__init__(services, snapshot)
        self._follow = follow
        self._at = at
        self._read = ProcessesRead((), {})
        self._is_read = False
        self._lists_at: datetime | None = None
        """Time of the process lists of the last request."""
        self._filter = parse_process_filter(words)
        self._filters = FilterHistory.of(services.preferences.get(FILTERS))
        self.order = ProcessOrder()
        self.is_tree = False
        self._worker = LatestWorker(self.post_message, lambda error: ProcessesRead((), {}, f"{error}"))
        self.line = FilterLine(_HINT, _EXAMPLES, "process")
        self.conditions |= {
            "open": lambda _: self.row() is not None,
            "environment": lambda _: self._has_process(),
            "end_process": lambda _: self._has_process(),
            "stop_container": lambda _: (row := self.row()) is not None and row.kind != JOB and bool(row.container_id),
            "clear_filter": lambda _: self.line.is_typed or bool(self._filter),
        }

    def compose(self) -> ComposeResult:
        yield CellLines(id="heading")
        yield self.line
        yield GpuProcessTable(id="rows")
        yield CellLines(id="about", background=GROUND)
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        self.query_one(GpuProcessTable).focus()
        self.ask()
        self.call_after_refresh(self._draw)

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    def on_unmount(self) -> None:
        super().on_unmount()
        self._services.want_pcie(None)
        self._worker.close()
        self._read = ProcessesRead((), {})

    def row(self) -> GpuProcessRow | None:
        return self.query_one(GpuProcessTable).row if self.is_mounted else None

    def subject(self) -> Job | None:
        row = self.row()
        return self._snapshot.job(row.job_id) if row is not None and row.job_id is not None else None

    def _has_process(self) -> bool:
        row = self.row()
        return row is not None and row.pid is not None

    def show_snapshot(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        if _lists_at(snapshot) != self._lists_at:
            self.ask()

    @on(events.ScreenResume)
    def ask(self) -> None:
        if not self.is_mounted or not self.is_in_sight:
            return
        snapshot, use, is_tree = self._snapshot, self._services.foreign, self.is_tree
        self._lists_at = _lists_at(snapshot)
        self._services.want_pcie(ALL_SHARES)  # repeatedly: another process may have become leader meanwhile

        def read(is_wanted: IsWanted) -> ProcessesRead:
            rows = process_rows(snapshot)
            seen = use.rows(local_pids(rows), with_parents=is_tree) if use is not None else {}
            return ProcessesRead(with_host_values(rows, seen), seen)

        self._worker.ask(read)

    def on_processes_read(self, message: ProcessesRead) -> None:
        self._read, self._is_read = message, True
        self._draw()

    def _draw(self) -> None:
        if not self.is_mounted or not self.is_in_sight:
            return
        read = self._read
        rows = self.order.sorted(row for row in read.rows if self._filter.matches(row))
        rows = list(tree_of(rows, read.seen)) if self.is_tree else rows
        table = self.query_one(GpuProcessTable)
        if found := next((row.key for row in rows if self._at and self._at in {str(row.pid), row.container_id}), None):
            table.cursor, self._at = found, ""
        table.show(rows, self.order, self._empty())
        found = summary(read.rows) if self._is_read else ""
        words = f"{len(rows)} of {found}" if self._filter and found else found
        self.query_one("#heading", CellLines).show([heading_cell(words, self._filter.text, self.order)])
        if self.line.is_open:
            self.line.count(len(rows), len(read.rows), is_typed=self.line.is_typed)
        self._draw_row()

    @on(CursorMoved)
    def _draw_row(self) -> None:
        """Draw what depends only on the selected row, so that a key does not sort thousands of rows."""
        if not self.is_mounted or not self.is_in_sight:
            return
        self.query_one("#about", CellLines).fill(self._about())
        keys = tuple(command for command in _OFFERED if command.in_footer and command.works_at(self))
        self.query_one(KeyBar).show(keys, (BACK, APP_COMMANDS[0]))

    def _about(self) -> list[Cell]:
        """Return the selected row: two lines, and where the rows leave room the graphs of its GPUs, or of all."""
        row, room = self.row(), self.size.width
        shown = -(-len(self.query_one(GpuProcessTable).keys) // _STEP) * _STEP or _STEP  # not another height each time
        rows = self.size.height - _OTHERS - self.line.size.height - shown
        if rows < _LEAST or not self._services.pace.has_graphs:
            return row_lines(row, room)
        lines = [*row_lines(row, room)] if row is not None else []
        if row is not None and rows >= _MUCH:
            lines = [lines[0], (), *(((" ", DIM), *line) for line in process_lines(row, room - 2))]
        gpus = self._services.gpus.of(self._snapshot, {}, self._services.clock.now()).rows.values()
        mine = [gpu for gpu in gpus if row is not None and label_of(gpu) in row.gpus] or list(gpus)
        graphs = several_graph_lines([mine], room - 2, rows - len(lines) - 1)
        lines += [(), *(((" ", DIM), *line) for line in graphs)]
        return lines + [()] * (rows - len(lines))

    def _empty(self) -> Cell:
        if self._read.fault:
            return cell(plain(self._read.fault, 300), FAULT)
        if not self._is_read:
            return cell("Looking …", DIM)
        if self._filter:
            return cell("No process matches the filter.", DIM)
        unread = [node for node in self._snapshot.nodes if node.gpus and not any(view.sample for view in node.gpus)]
        if unread and len(self._snapshot.nodes) > 1:
            names = listed([plain(node.name, 60) for node in unread[:_NAMED]])
            more = f" and {len(unread) - _NAMED} more" if len(unread) > _NAMED else ""
            why = plain(unread[0].probe.text.removeprefix("no readings: "), 200)
            return cell(f"Processes are not read on {names}{more}: {why}", DIM)
        return cell("No process is on a GPU.", DIM)

    # order and filter

    def action_tree(self) -> None:
        self.is_tree = not self.is_tree
        self.query_one(GpuProcessTable).rearrange()
        self.ask()  # a tree includes parents, which were not read
        self._draw()

    def action_sort_processes(self) -> None:
        self._sort(self.order.next())

    @on(TitleClicked)
    def _title_clicked(self, event: TitleClicked) -> None:
        self._sort(self.order.by(event.column))

    def _sort(self, order: ProcessOrder) -> None:
        self.order = order
        self.query_one(GpuProcessTable).rearrange()
        self._draw()

    def action_filter(self) -> None:
        self.line.open(self._filters)
        self.line.query_one(Input).value = self._filter.text

    @on(Input.Changed, "#filter")
    def _typed(self, event: Input.Changed) -> None:
        try:
            self._filter, fault = parse_process_filter(event.value), None
        except InputError as error:
            fault = error
        self.line.show_fault(fault)
        self.query_one(GpuProcessTable).rearrange()
        self._draw()

    @on(Input.Submitted, "#filter")
    def _accepted(self) -> None:
        self._filters = self._filters.with_one(self._filter.text)
        self._services.preferences.put(FILTERS, self._filters.values())
        self._close_filter()

    def action_clear_filter(self) -> None:
        self.line.query_one(Input).value = ""
        self._filter = Filter()
        self._close_filter()

    def _close_filter(self) -> None:
        self.line.close()
        self.query_one(GpuProcessTable).focus()
        self._draw()

    # actions

    @on(MenuAsked)
    def list_commands(self, message: MenuAsked) -> None:
        row = self.row()
        commands = tuple(keymap_of(self).told(command) for command in MENUS["processes"] if command.works_at(self))
        if row is not None and commands:
            from gputui.tui.screens.menu import open_menu

            title = f"pid {row.pid}" if row.pid is not None else plain(row.what, 60)
            open_menu(self, title, commands, message.at)

    @on(RowOpened)
    def action_open(self) -> None:
        row, use = self.row(), self._services.foreign
        if row is None:
            return
        if (job := self.subject()) is not None:
            self.open_page(job, self._follow)
        elif row.container_id and use is not None:
            self.app.push_screen(ContainerScreen(self._services, use, row.container_id, row.what))
        else:
            self.action_environment()

    def action_environment(self) -> None:
        if (row := self.row()) is not None and row.pid is not None:
            self.app.push_screen(ProcessPage(row, self._services.foreign))

    def action_end_process(self, name: str) -> None:
        row, use = self.row(), self._services.foreign
        target = process_target(row) if row is not None else None
        if row is None or target is None or use is None:
            return
        question, detail = signal_question(row, name)
        if (job := self.subject()) is not None:
            tenant = plain(job.spec.tenant, 32)
            detail = f"Processes of jobs get no signals from here. The job of {tenant} ends as a whole."
            question = f"pid {row.pid} belongs to job {plain(row.job, 80)}. Cancel the job?"

        def answered(_: bool) -> None:
            if job is not None:
                self.request(Cancel((job.id,)))
            else:
                act(self.app, f"Sending {name} to pid {row.pid} …", lambda: use.signal(target, name))

        ask(self.app, Confirm(question, detail), answered)

    def action_stop_container(self) -> None:
        row, use = self.row(), self._services.foreign
        if row is not None and row.container_id and use is not None:
            ask_stop(self, use, row.container_id, row.what)


def _lists_at(snapshot: Snapshot) -> datetime | None:
    times = (view.sample.processes_at for view in snapshot.gpus if view.sample is not None)
    return max((at for at in times if at is not None), default=None)
