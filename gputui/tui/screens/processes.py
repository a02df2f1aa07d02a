"""Screen with the processes of a job, refreshed every two seconds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding

from gputui.domain.container import ProcessRow
from gputui.domain.errors import GputuiError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, shown_id
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import UNKNOWN, format_duration, format_size, plain, plural
from gputui.tui.commands.command import bindings
from gputui.tui.commands.table import APP_COMMANDS, BACK, COPY, SHELL
from gputui.tui.present.cells import Cell, Column, cell
from gputui.tui.present.detail import gpu_rows_of
from gputui.tui.present.gpu_detail import several_graph_lines
from gputui.tui.present.job import job_title
from gputui.tui.present.style import AMBER, DIM, GREEN, GROUND, PLAIN, RED, STRONG
from gputui.tui.screens.job_screen import JobScreen
from gputui.tui.services import Services
from gputui.tui.widgets.line_table import CellLines, LineTable
from gputui.tui.widgets.status_bars import KeyBar

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

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._rows: Mapping[int, ProcessRow] = {}
        self._memory: Mapping[int, int] = {}

    def show(self, rows: tuple[ProcessRow, ...], memory: Mapping[int, int], empty: Cell) -> None:
        """Show the processes, with the GPU memory of each pid that uses some."""
        self._rows, self._memory = {row.pid: row for row in rows}, memory
        keys = sorted(self._rows, key=lambda pid: (-memory.get(pid, 0), -(self._rows[pid].cpu or 0), pid))
        self.show_rows(keys, {pid: place for place, pid in enumerate(keys)}, (empty,))

    def cell_of(self, key: int, column: str, room: int) -> Cell:
        return process_cells(self._rows[key], self._memory.get(key), column)


class ProcessesScreen(JobScreen):
    """Processes of one job, kept up to date while the screen is open."""

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
        self.query_one(ProcessTable).show(self._found, memory, self._empty())
        self.query_one("#graphs", CellLines).fill(self._graphs())
        keys = tuple(command for command in (SHELL, COPY) if self.check_action(command.action, ()))
        self.query_one(KeyBar).show(keys, (BACK, APP_COMMANDS[0]))

    def _graphs(self) -> list[Cell]:
        """Return graphs of the job's GPUs, where the processes leave room for them."""
        shown = -(-len(self._found) // _STEP) * _STEP or _STEP  # not another height with each process
        rows = self.size.height - _OTHERS - shown
        if self._job is None or not self._services.pace.has_graphs:
            return []
        picture = self._services.gpus.of(self._snapshot, {}, self._services.clock.now())
        return [
            ((" ", DIM), *line)
            for line in several_graph_lines(gpu_rows_of(self._job, picture), self.size.width - 2, rows)
        ]

    def _empty(self) -> Cell:
        if self._fault:
            return cell(plain(self._fault, 300), RED)
        if self._job is not None and self._job.state.is_terminal:
            return cell(f"It has ended: {self._job.state}.", DIM)
        return cell("No visible processes." if self._is_asked else "Looking …", DIM)
