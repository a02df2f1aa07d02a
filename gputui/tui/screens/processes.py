"""What a job runs inside, looked at again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding

from gputui.domain.errors import GputuiError
from gputui.domain.job import Job, JobId
from gputui.domain.process import ProcessRow
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import plain
from gputui.domain.units import plural
from gputui.tui.commands import APP_COMMANDS, BACK, COPY, SHELL, bindings
from gputui.tui.desk import Desk
from gputui.tui.present.cells import Cell, cell
from gputui.tui.present.detail import job_title
from gputui.tui.present.process import PROCESS_COLUMNS, process_cells
from gputui.tui.present.style import DIM, RED, STRONG
from gputui.tui.screens.job_screen import JobScreen
from gputui.tui.widgets.cell_lines import CellLines
from gputui.tui.widgets.line import KeyBar
from gputui.tui.widgets.line_table import LineTable

EVERY = 2.0
"""Seconds between two looks; none is begun while another is under way."""


class ProcessTable(LineTable[int]):
    """Rows by pid, the busiest first."""

    COLUMNS: ClassVar = PROCESS_COLUMNS
    NOUN = "process"

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._rows: Mapping[int, ProcessRow] = {}
        self._memory: Mapping[int, int] = {}

    def show(self, rows: tuple[ProcessRow, ...], memory: Mapping[int, int], empty: Cell) -> None:
        """Show these, with the GPU memory of each pid that has some."""
        self._rows, self._memory = {row.pid: row for row in rows}, memory
        keys = sorted(self._rows, key=lambda pid: (-memory.get(pid, 0), -(self._rows[pid].cpu or 0), pid))
        self.show_rows(keys, {pid: place for place, pid in enumerate(keys)}, (empty,))

    def cell_of(self, key: int, column: str, room: int) -> Cell:
        """What stands in that cell."""
        del room
        return process_cells(self._rows[key], self._memory.get(key), column)


class Processes(JobScreen):
    """Follows the processes of one job while it is open."""

    BINDINGS: ClassVar = [*bindings((SHELL, COPY, BACK)), Binding("X", "back", "back", id="processes")]
    DEFAULT_CSS = "Processes { layout: vertical; }"

    def __init__(self, desk: Desk, snapshot: Snapshot, job_id: JobId) -> None:
        super().__init__(desk, snapshot)
        self._job_id = job_id
        self._job = snapshot.job(job_id)
        self._found: tuple[ProcessRow, ...] = ()
        self._fault = ""
        self._is_asking = False
        self._is_asked = False

    def compose(self) -> ComposeResult:
        """Heading, rows, keys."""
        yield CellLines(id="heading")
        yield ProcessTable(id="processes")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        """Look at once, and from then on."""
        self.query_one(ProcessTable).focus()
        self.set_interval(EVERY, self.look)
        self.look()
        self.call_after_refresh(self._draw)

    def subject(self) -> Job | None:
        """The job whose processes are shown."""
        return self._job

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Take the job, and the memory on GPUs, from this picture."""
        self._snapshot = snapshot
        self._job = snapshot.job(self._job_id) or self._job
        self._draw()

    @work
    async def look(self) -> None:
        """Ask, elsewhere: the engine may take its time."""
        if self._is_asking or self._job is None or self.app.screen is not self:
            return
        self._is_asking = True
        try:
            self._found, self._fault = await asyncio.to_thread(self._desk.inside.processes, self._job), ""
        except GputuiError as error:
            self._found, self._fault = (), str(error)
        finally:
            self._is_asking = False
        self._is_asked = True
        self._draw()

    def _draw(self) -> None:
        if not self.is_mounted or self.app.screen is not self:
            return
        title = job_title(self._job) if self._job else f"#{self._job_id}"
        count = plural(len(self._found), "process") if self._found else ""
        self.query_one(CellLines).show([((" PROCESSES  ", DIM), (f"{title}  ", STRONG), (count, DIM))])
        self.query_one(ProcessTable).show(self._found, self._gpu_memory(), self._empty())
        keys = tuple(command for command in (SHELL, COPY) if self.check_action(command.action, ()))
        self.query_one(KeyBar).show(keys, (BACK, APP_COMMANDS[0]))

    def _empty(self) -> Cell:
        if self._fault:
            return cell(plain(self._fault, 300), RED)
        if self._job is not None and self._job.state.is_terminal:
            return cell(f"It runs no more: {self._job.state}.", DIM)
        return cell("It runs no process that can be seen." if self._is_asked else "Looking …", DIM)

    def _gpu_memory(self) -> dict[int, int]:
        """Bytes on all GPUs, by pid."""
        found: dict[int, int] = {}
        for view in self._snapshot.gpus:
            for holder in view.holders:
                if holder.pid is not None and holder.memory is not None:
                    found[holder.pid] = found.get(holder.pid, 0) + holder.memory
        return found

    def action_back(self) -> None:
        """Back to the screen before."""
        self.dismiss()
