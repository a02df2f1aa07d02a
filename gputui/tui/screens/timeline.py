"""Timeline screen: the plan as a picture, GPUs down, time across."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.message import Message

from gputui.domain.entries import Entries
from gputui.domain.gpu import GpuView
from gputui.domain.job import Job, JobId
from gputui.domain.policy.timeline import Timeline, timeline
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.tui.commands import APP_COMMANDS, BACK, GPU_COMMANDS, JOB_COMMANDS, TIMELINE_COMMANDS, bindings
from gputui.tui.latest_worker import IsWanted, LatestWorker, Throttle, are_alike
from gputui.tui.present.bars import legend
from gputui.tui.present.cells import Cell, cell
from gputui.tui.present.style import DIM, GROUND, RED
from gputui.tui.present.timeline import agenda_lines, bar_lines, gpu_lines, heading
from gputui.tui.screens.job_screen import OverlayScreen
from gputui.tui.services import Services
from gputui.tui.widgets.cell_lines import CellLines
from gputui.tui.widgets.line_table import CursorMoved
from gputui.tui.widgets.mouse import RowOpened
from gputui.tui.widgets.status_bars import KeyBar
from gputui.tui.widgets.timeline_table import TimelineTable, TimelineView

_OTHERS = 5
"""Lines of the screen that are neither GPUs nor agenda: heading, selection, legend, keys."""
_AGED = timedelta(seconds=15)


class TimelineMade(Message, bubble=False):
    """Plan of a snapshot; None with an error."""

    def __init__(self, view: TimelineView | None, failure: str = "") -> None:
        super().__init__()
        self.view = view
        self.failure = failure


class TimelineScreen(OverlayScreen):
    """Timeline of the plan. Commands act on the job whose bar is selected."""

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
        self, services: Services, snapshot: Snapshot, follow: Callable[[JobId], None], job_id: JobId | None = None
    ) -> None:
        super().__init__(services, snapshot, follow)
        self._wanted = job_id
        """Id of the job to select as soon as its bar is there."""
        self.view = TimelineView.of(snapshot, None)
        self._failure = ""
        self._jobs = Entries({job.id: job for job in snapshot.jobs})
        self._newest = LatestWorker(
            self.post_message, lambda error: TimelineMade(None, f"{type(error).__name__}: {error}")
        )
        self.pace = Throttle(rest=9)

    def compose(self) -> ComposeResult:
        """Yield heading, rows, agenda, selection, legend and keys."""
        yield CellLines(id="heading")
        yield TimelineTable(id="rows", now=self._services.clock.now())
        yield CellLines(id="agenda", background=GROUND)
        yield CellLines(id="about")
        yield CellLines(id="legend")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        """Show the GPUs at once, and ask for the plan."""
        self.query_one(TimelineTable).focus()
        self.set_interval(self._services.pace.tick, self.tick)
        self._ask()
        self.call_after_refresh(self._draw)

    def on_unmount(self) -> None:
        """Stop the worker, and release the plan."""
        self._newest.close()
        self.view, self._jobs = TimelineView(EMPTY), Entries({})

    @property
    def timeline(self) -> Timeline | None:
        """Plan that is shown; None while it is being worked out."""
        return self.view.timeline

    def subject(self) -> Job | None:
        """Return the job whose bar is selected."""
        if not self.is_mounted:
            return None
        picked = self.query_one(TimelineTable).picked
        return None if picked is None else self._jobs.get(picked)

    def gpu(self) -> GpuView | None:
        """Return the GPU of the row under the cursor."""
        return self.query_one(TimelineTable).gpu if self.is_mounted else None

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Take the snapshot; its plan follows."""
        self._snapshot = snapshot
        self.tick()

    def on_screen_resume(self) -> None:
        """Catch up after another screen was closed."""
        self.tick()

    def on_resize(self) -> None:
        """Draw for the new size, once all widgets have theirs."""
        self.call_after_refresh(self._draw)

    def tick(self) -> None:
        """Advance the time, and ask for a new plan where it may have changed."""
        if self.app.screen is not self:
            return
        seen = self.view
        is_old = seen.timeline is None or self._services.clock.now() - seen.timeline.at >= _AGED
        if (is_old or not are_alike(seen.snapshot, self._snapshot)) and self.pace.may_begin:
            self._ask()
        self._draw()

    def _ask(self) -> None:
        snapshot, settings, now = self._snapshot, self._services.settings, self._services.clock.now()
        self.pace.begin()

        def work(is_wanted: IsWanted) -> Message:
            return TimelineMade(TimelineView.of(snapshot, timeline(snapshot, settings, now, is_wanted=is_wanted)))

        self._newest.ask(work)

    def on_timeline_made(self, message: TimelineMade) -> None:
        """Show the plan."""
        self.pace.end()
        self._failure = message.failure
        if message.view is not None:
            self.view = message.view
            self._jobs = Entries({job.id: job for job in message.view.snapshot.jobs})
        self._draw()
        if self._wanted is not None and message.view is not None:
            for table in self.query(TimelineTable):  # none, where the plan comes as the screen goes
                table.select(self._wanted)
            self._wanted = None

    def _draw(self) -> None:
        if not self.is_mounted or self.app.screen is not self:
            return
        table = self.query_one(TimelineTable)
        table.show(self.view, self._services.clock.now())
        self.query_one("#legend", CellLines).show([((" ", DIM), *legend(room=self.size.width - 2))])
        self._show_agenda(table)
        self._tell()

    def _show_agenda(self, table: TimelineTable) -> None:
        """Show the agenda in the room that the GPUs leave."""
        view = self.view
        room = self.size.height - _OTHERS - max(1, len(table.keys)) - table.head
        lines = agenda_lines(view.timeline, view.snapshot, view.labels, self._services.clock.now(), room - 1)
        agenda = self.query_one("#agenda", CellLines)
        agenda.styles.height = room if lines else 0
        agenda.show([(), *(((" ", DIM), *line) for line in lines)])

    @on(CursorMoved)
    def _tell(self) -> None:
        """Show heading, selection and keys."""
        table, now, view = self.query_one(TimelineTable), self._services.clock.now(), self.view
        head = heading(view.timeline, self._snapshot, view.labels, table.scale, now)
        if self._failure:
            head = cell(f"The forecast failed: {self._failure}", RED)
        self.query_one("#heading", CellLines).show([((" ", DIM), *head)])
        self.query_one("#about", CellLines).show([((" ", DIM), *line) for line in self._about(table)])
        commands = (c for c in (*JOB_COMMANDS, *TIMELINE_COMMANDS, *GPU_COMMANDS) if c.in_footer and c.works_at(self))
        self.query_one(KeyBar).show(tuple(commands), (BACK, APP_COMMANDS[0]))

    def _about(self, table: TimelineTable) -> tuple[Cell, ...]:
        view, now = self.view, self._services.clock.now()
        promise = view.timeline.promise if view.timeline else None
        if (bar := table.bar) is not None:
            return bar_lines(bar, self._jobs.get(bar.job_id), promise, view.labels, now)
        if (gpu := table.gpu) is not None:
            return gpu_lines(gpu, view.timeline.windows if view.timeline else (), view.labels, now)
        return ()

    def action_zoom_time(self, finer: int) -> None:
        """Zoom in or out."""
        self.query_one(TimelineTable).zoom(finer)
        self._tell()

    def action_look(self, step: int) -> None:
        """Scroll in time."""
        self.query_one(TimelineTable).look(step)

    def action_present(self) -> None:
        """Return to the present."""
        self.query_one(TimelineTable).present()
        self._tell()

    def action_bar(self, step: int) -> None:
        """Select another job on this GPU."""
        self.query_one(TimelineTable).next_bar(step)

    @on(RowOpened)
    def _opened(self) -> None:
        self.action_detail()
