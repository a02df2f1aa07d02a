"""Everything about one job."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from gputui.domain.job import Job, JobId
from gputui.domain.snapshot import Snapshot
from gputui.tui.commands import APP_COMMANDS, BACK, JOB_COMMANDS, bindings
from gputui.tui.desk import Desk
from gputui.tui.present.detail import Line, job_lines, job_title
from gputui.tui.present.gpu import index_of
from gputui.tui.present.job import JobContext
from gputui.tui.present.style import BLUE
from gputui.tui.screens.job_screen import JobScreen
from gputui.tui.widgets.line import KeyBar

_COMMANDS = tuple(command for command in JOB_COMMANDS if command.action != "detail")
_LABEL = 10


class Detail(JobScreen):
    """Follows the job while it is open."""

    BINDINGS: ClassVar = [
        *bindings(_COMMANDS),
        *bindings((BACK,)),
        ("enter", "back", "back"),
        ("j", "scroll(1)", "down"),
        ("k", "scroll(-1)", "up"),
    ]
    CSS = """
    Detail #heading { height: 1; background: $surface; padding: 0 1; text-style: bold; }
    Detail VerticalScroll { padding: 1 2; scrollbar-size-vertical: 1; scrollbar-background: $background; }
    """

    def __init__(
        self,
        desk: Desk,
        snapshot: Snapshot,
        job_id: JobId,
        follow: Callable[[JobId], None],
        job: Job | None = None,
    ) -> None:
        super().__init__(desk, snapshot)
        self._job_id = job_id
        self._follow = follow
        self._job: Job | None = snapshot.job(job_id) or job
        """As it is in the picture; or as it was, where it is in the history alone."""
        self._shown: tuple[Line, ...] = ()

    def compose(self) -> ComposeResult:
        """Heading, body, keys."""
        yield Static("", id="heading", markup=False)
        with VerticalScroll():
            yield Static("", id="body", markup=False)
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        """Show what is known."""
        self.show_snapshot(self._snapshot)
        self.set_interval(self._desk.pace.tick, lambda: self.show_snapshot(self._snapshot))

    def subject(self) -> Job | None:
        """The job that is shown."""
        return self._job

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Show the job as it is in this picture; one that left the queue file stays as it was."""
        self._snapshot = snapshot
        self._job = snapshot.job(self._job_id) or self._job
        if self._job is None or self.app.screen is not self:
            return
        lines = self._lines(self._job)
        if lines != self._shown:
            self._shown = lines
            self.query_one("#heading", Static).update(f"Job {job_title(self._job)}")
            self.query_one("#body", Static).update(_table(lines))
        commands = (c for c in _COMMANDS if c.in_footer)
        self.query_one(KeyBar).show(tuple(c for c in commands if c.works_at(self)), (BACK, APP_COMMANDS[0]))

    def _lines(self, job: Job) -> tuple[Line, ...]:
        snapshot = self._snapshot
        names = {view.gpu.uuid: index_of(view) for view in snapshot.gpus}
        now, beside = self._desk.clock.now(), snapshot.sharing()
        context = JobContext(now, snapshot.reasons, snapshot.expected_starts, snapshot.progress, names, beside)
        return job_lines(job, context)

    def action_follow(self) -> None:
        """Follow its log on the main screen."""
        self._follow(self._job_id)
        self.dismiss()

    def action_back(self) -> None:
        """Back to the main screen."""
        self.dismiss()

    def action_scroll(self, step: int) -> None:
        """Scroll by a line."""
        self.query_one(VerticalScroll).scroll_relative(y=step, animate=False)


def _table(lines: tuple[Line, ...]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(min_width=_LABEL)
    table.add_column(overflow="fold")
    for label, cell in lines:
        table.add_row(Text(label, BLUE), Text.assemble(*cell))
    return table
