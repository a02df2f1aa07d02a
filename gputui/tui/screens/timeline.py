"""The plan as a picture: GPUs down, time across."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.message import Message

from gputui.domain.gpu import GpuView
from gputui.domain.job import Job, JobId
from gputui.domain.policy.timeline import Timeline, timeline
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.tui.commands import APP_COMMANDS, BACK, GPU_COMMANDS, JOB_COMMANDS, TIMELINE_COMMANDS, bindings
from gputui.tui.desk import Desk
from gputui.tui.newest import IsWanted, Newest, Pace, are_alike
from gputui.tui.present.agenda import agenda_lines
from gputui.tui.present.bars import legend
from gputui.tui.present.cells import Cell, cell
from gputui.tui.present.style import DIM, GROUND, RED
from gputui.tui.present.timeline import bar_lines, gpu_lines, heading
from gputui.tui.screens.cover import Cover
from gputui.tui.widgets.cell_lines import CellLines
from gputui.tui.widgets.line import KeyBar
from gputui.tui.widgets.line_table import CursorMoved
from gputui.tui.widgets.row_clicks import RowOpened
from gputui.tui.widgets.timeline_table import TimelineTable, TimelineView

_OTHERS = 5
"""Lines of the screen that are neither GPUs nor agenda: heading, what is selected, legend, keys."""
_AGED = timedelta(seconds=15)


class TimelineMade(Message, bubble=False):
    """The plan of a picture; None with what went wrong."""

    def __init__(self, view: TimelineView | None, failure: str = "") -> None:
        super().__init__()
        self.view = view
        self.failure = failure


class TimelineScreen(Cover):
    """Commands act on the job whose bar is selected."""

    BINDINGS: ClassVar = [
        *bindings(JOB_COMMANDS),
        *bindings(TIMELINE_COMMANDS),
        *bindings(GPU_COMMANDS),
        *bindings((BACK,)),
        Binding("T", "back", "back", id="timeline"),
    ]
    DEFAULT_CSS = """
    TimelineScreen { layout: vertical; }
    TimelineScreen #heading { dock: top; }
    TimelineScreen #about { height: 2; }
    TimelineScreen #agenda { height: 0; }
    """

    def __init__(
        self, desk: Desk, snapshot: Snapshot, follow: Callable[[JobId], None], job_id: JobId | None = None
    ) -> None:
        super().__init__(desk, snapshot, follow)
        self._wanted = job_id
        """To be selected as soon as its bar is there."""
        self._view = TimelineView.of(snapshot, None)
        self._failure = ""
        self._jobs = {job.id: job for job in snapshot.jobs}
        self._newest = Newest(self.post_message, lambda error: TimelineMade(None, f"{type(error).__name__}: {error}"))
        self._pace = Pace(rest=9)

    def compose(self) -> ComposeResult:
        """Heading, rows, what is selected, what the characters mean, keys."""
        yield CellLines(id="heading")
        yield TimelineTable(id="rows", now=self._desk.clock.now())
        yield CellLines(id="agenda", background=GROUND)
        yield CellLines(id="about")
        yield CellLines(id="legend")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        """Show the GPUs at once, and have the plan worked out."""
        self.query_one(TimelineTable).focus()
        self.set_interval(self._desk.pace.tick, self.tick)
        self._ask()
        self.call_after_refresh(self._draw)

    def on_unmount(self) -> None:
        """What is still being worked out is wanted no more, nor what is shown."""
        self._newest.close()
        self._view, self._jobs = TimelineView(EMPTY), {}

    @property
    def timeline(self) -> Timeline | None:
        """The plan that is shown; None while it is worked out."""
        return self._view.timeline

    def subject(self) -> Job | None:
        """The job whose bar is selected."""
        if not self.is_mounted:
            return None
        picked = self.query_one(TimelineTable).picked
        return None if picked is None else self._jobs.get(picked)

    def gpu(self) -> GpuView | None:
        """The GPU of the row under the cursor."""
        return self.query_one(TimelineTable).gpu if self.is_mounted else None

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Take the picture in; the plan follows."""
        self._snapshot = snapshot
        self.tick()

    def on_screen_resume(self) -> None:
        """Catch up with what happened meanwhile."""
        self.tick()

    def on_resize(self) -> None:
        """Another part of the plan fits, once everything has its new size."""
        self.call_after_refresh(self._draw)

    def tick(self) -> None:
        """Let time go on, and have the plan made anew where it is another one by now."""
        if self.app.screen is not self:
            return
        seen = self._view
        is_old = seen.timeline is None or self._desk.clock.now() - seen.timeline.at >= _AGED
        if (is_old or not are_alike(seen.snapshot, self._snapshot)) and self._pace.may_begin:
            self._ask()
        self._draw()

    def _ask(self) -> None:
        snapshot, settings, now = self._snapshot, self._desk.settings, self._desk.clock.now()
        self._pace.begin()

        def work(is_wanted: IsWanted) -> Message:
            return TimelineMade(TimelineView.of(snapshot, timeline(snapshot, settings, now, is_wanted=is_wanted)))

        self._newest.ask(work)

    def on_timeline_made(self, message: TimelineMade) -> None:
        """Show it."""
        self._pace.end()
        self._failure = message.failure
        if message.view is not None:
            self._view = message.view
            self._jobs = {job.id: job for job in message.view.snapshot.jobs}
        self._draw()
        if self._wanted is not None and message.view is not None:
            for table in self.query(TimelineTable):  # none, where the plan comes as the screen goes
                table.select(self._wanted)
            self._wanted = None

    def _draw(self) -> None:
        if not self.is_mounted or self.app.screen is not self:
            return
        table = self.query_one(TimelineTable)
        table.show(self._view, self._desk.clock.now())
        self.query_one("#legend", CellLines).show([((" ", DIM), *legend(room=self.size.width - 2))])
        self._show_agenda(table)
        self._tell()

    def _show_agenda(self, table: TimelineTable) -> None:
        """In the room that the GPUs leave: for these and their times, all of it is theirs."""
        view = self._view
        room = self.size.height - _OTHERS - max(1, len(table.keys)) - table.head
        lines = agenda_lines(view.timeline, view.snapshot, view.labels, self._desk.clock.now(), room - 1)
        agenda = self.query_one("#agenda", CellLines)
        agenda.styles.height = room if lines else 0
        agenda.show([(), *(((" ", DIM), *line) for line in lines)])

    @on(CursorMoved)
    def _tell(self) -> None:
        """The heading, what is selected, and the keys for it."""
        table, now, view = self.query_one(TimelineTable), self._desk.clock.now(), self._view
        head = heading(view.timeline, self._snapshot, view.labels, table.scale, now)
        if self._failure:
            head = cell(f"The forecast failed: {self._failure}", RED)
        self.query_one("#heading", CellLines).show([((" ", DIM), *head)])
        self.query_one("#about", CellLines).show([((" ", DIM), *line) for line in self._about(table)])
        commands = (c for c in (*JOB_COMMANDS, *TIMELINE_COMMANDS, *GPU_COMMANDS) if c.in_footer and c.works_at(self))
        self.query_one(KeyBar).show(tuple(commands), (BACK, APP_COMMANDS[0]))

    def _about(self, table: TimelineTable) -> tuple[Cell, ...]:
        view, now = self._view, self._desk.clock.now()
        promise = view.timeline.promise if view.timeline else None
        if (bar := table.bar) is not None:
            return bar_lines(bar, self._jobs.get(bar.job_id), promise, view.labels, now)
        if (gpu := table.gpu) is not None:
            return gpu_lines(gpu, view.timeline.windows if view.timeline else (), view.labels, now)
        return ()

    def action_zoom_time(self, finer: int) -> None:
        """Less time on the screen, or more."""
        self.query_one(TimelineTable).zoom(finer)
        self._tell()

    def action_look(self, step: int) -> None:
        """Further ahead, or back."""
        self.query_one(TimelineTable).look(step)

    def action_present(self) -> None:
        """Back to the present."""
        self.query_one(TimelineTable).present()
        self._tell()

    def action_bar(self, step: int) -> None:
        """To another job on this GPU."""
        self.query_one(TimelineTable).next_bar(step)

    @on(RowOpened)
    def _opened(self) -> None:
        self.action_detail()
