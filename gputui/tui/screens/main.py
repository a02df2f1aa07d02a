"""The main screen: GPUs, queue and a log."""

from __future__ import annotations

import time
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical

from gputui.domain.gpu import GpuView
from gputui.domain.job import Job, JobId
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.tui import wishes
from gputui.tui.commands import (
    APP_COMMANDS,
    EDIT_COMMANDS,
    LOG_COMMANDS,
    LOG_JOB_COMMANDS,
    MAIN_COMMANDS,
    QUEUE_COMMANDS,
    SUBMIT,
    Command,
    bindings,
)
from gputui.tui.commands.menu import MENUS, menu_words
from gputui.tui.desk import Desk
from gputui.tui.gpu_rows import gpu_picture, holder
from gputui.tui.keymap import keymap_of
from gputui.tui.messages import WishMade
from gputui.tui.present.detail import job_title
from gputui.tui.present.gpu import index_of
from gputui.tui.present.gpu_tiles import GridRoom
from gputui.tui.present.job import JobContext
from gputui.tui.present.status import no_gpu_words, pressing, status_line
from gputui.tui.screens.follow_screen import FollowScreen
from gputui.tui.screens.gpu_screen import GpuScreen
from gputui.tui.screens.pane_screen import PaneScreen
from gputui.tui.screens.queue_edits import QueueEdits
from gputui.tui.widgets.filter_line import FilterLine
from gputui.tui.widgets.gpu_grid import GpuGrid
from gputui.tui.widgets.job_table import JobTable
from gputui.tui.widgets.line import KeyBar, NoticeBar, StatusBar
from gputui.tui.widgets.line_table import CursorMoved
from gputui.tui.widgets.log_pane import LogPane
from gputui.tui.widgets.row_clicks import MenuAsked, RowOpened

_FRESH = 0.9
"""Seconds for which the clock needs no tick of its own: a picture came, and the time with it."""


class Main(PaneScreen, GpuScreen, QueueEdits, FollowScreen):
    """Everything at a glance; commands act on what the focused pane points at."""

    BINDINGS: ClassVar = bindings((*MAIN_COMMANDS, *EDIT_COMMANDS, *LOG_JOB_COMMANDS))  # together: some share a key
    DEFAULT_CSS = """
    Main { layout: vertical; }
    """

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._shown_at = 0.0
        self._is_ready = False
        """Its widgets are there: a picture may come before."""

    def compose(self) -> ComposeResult:
        """Top to bottom."""
        yield StatusBar(id="status")
        yield NoticeBar(id="notices")
        with Vertical():
            yield GpuGrid(id="gpus")
            yield JobTable(self._rows, JobContext(self._desk.clock.now()), id="queue", chosen=self.chosen_columns())
            yield FilterLine()
            yield LogPane(id="log")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        """Draw before anything is known."""
        self._grid = self.query_one(GpuGrid)
        self._queue = self.query_one(JobTable)
        self._log = self.query_one(LogPane)
        self._status = self.query_one(StatusBar)
        self._notices = self.query_one(NoticeBar)
        self._keys = self.query_one(KeyBar)
        self.lay_panes()
        self.pane("queue" if "queue" in self.layout_now.shown else self.layout_now.shown[0]).focus()
        self._is_ready = True
        self.set_interval(self._desk.pace.tick, self.tick)
        self.show_snapshot(self._snapshot)

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Show this picture."""
        if snapshot is not self._snapshot and snapshot is not EMPTY:
            self._desk.gpu_history.add(snapshot)
        self._snapshot = snapshot
        self.refresh_time()
        if self._is_ready:
            self.follow_on()

    def tick(self) -> None:
        """Let the time go on where no picture did it: they come every second as a rule, and one repaint is enough."""
        if time.monotonic() - self._shown_at >= _FRESH:
            self.refresh_time()

    def refresh_time(self) -> None:
        """Show the picture at the time it is now; only cells that differ are sent. Not while something covers it."""
        if not self._is_ready or self.app.screen is not self:
            return
        self._shown_at = time.monotonic()
        now, snapshot = self._desk.clock.now(), self._snapshot
        self._rows.update(snapshot)
        self.look_later()
        self.update_tabs()
        local = now.astimezone()
        words = status_line(snapshot, self._desk.host, self._status.room, read_only=self._desk.is_read_only)
        self._status.show(words, f"{local:{self._desk.pace.clock}}")
        self._notices.show(pressing(snapshot, now))
        picture = self._desk.pace.drawn(gpu_picture(snapshot, self._rows.jobs, self._desk.gpu_history, now))
        self._grid.show(picture, no_gpu_words(snapshot, self.size.width - 2), self._room())
        self.mind_the_room(self.size.height - 2 - self._notices.rows - self._rows_of_gpus())
        names = {view.gpu.uuid: index_of(view) for view in snapshot.gpus}
        self._queue.show(
            JobContext(
                now,
                snapshot.reasons,
                snapshot.expected_starts,
                snapshot.progress,
                names,
                snapshot.sharing(),
                self._rows.scores,
            ),
        )
        self._show_keys()

    @property
    def time(self) -> str:
        """The time that it shows."""
        return self._status.time

    def refresh_panes(self) -> None:
        """Draw them, as they are laid out now."""
        self.refresh_time()

    def _rows_of_gpus(self) -> int:
        return self._grid.arrangement.rows if "gpus" in self.layout_now.shown else 0

    def _room(self) -> GridRoom:
        """What the GPUs may take of the screen."""
        room = self.size.height - 2 - self._notices.rows
        layout = self.layout_now
        fixed = room if self.is_zoomed else layout.rows_for_gpus(room)
        return GridRoom(self.size.width, layout.most_for_gpus(room), fixed, self._desk.pace.grid(layout.grid))

    def on_screen_resume(self) -> None:
        """Catch up with what happened meanwhile."""
        self.refresh_time()

    def subject(self) -> Job | None:
        """The job of the focused pane: selected, on the selected GPU, or the one whose log is shown."""
        if not self._is_ready:
            return None
        if self.focused is self._grid:
            view = self.gpu()
            return holder(view, self._rows.jobs) if view else None
        if self.focused is self._log:
            follower = self._log.follower
            return self._rows.jobs.get(follower.job_id) if follower else None
        return self._queue.job

    def gpu(self) -> GpuView | None:
        """The selected GPU, while the grid has the focus."""
        if self.focused is not self._grid or self._grid.cursor is None:
            return None
        row = self._grid.picture.rows.get(self._grid.cursor)
        return row.view if row else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide what cannot be done now."""
        controls = self._snapshot.controls
        known = {
            "pause": lambda: not controls.paused,
            "unpause": lambda: controls.paused,
            "gpu": lambda: self.gpu() is not None or bool((job := self.subject()) and job.gpus),
        }
        if (test := known.get(action)) and not test():
            return False
        if action == "detail" and self.gpu() is not None:
            return True  # of the GPU, where no job holds it
        return super().check_action(action, parameters)

    @on(CursorMoved)
    def _subject_changed(self) -> None:
        self._show_keys()

    def on_descendant_focus(self) -> None:
        """Other keys work now."""
        self._show_keys()
        self.count_matches()

    def _show_keys(self) -> None:
        if self.filter_line.is_typed:
            self._keys.show(())  # every key is text: the line itself says what ends it
            return
        here = (*LOG_COMMANDS, LOG_JOB_COMMANDS[0]) if self.focused is self._log else ()
        wanted = (*here, *MAIN_COMMANDS, *EDIT_COMMANDS, *QUEUE_COMMANDS)
        commands = tuple(c for c in wanted if c.in_footer and c is not SUBMIT and self._works(c))
        self._keys.show(commands, tuple(c for c in (SUBMIT, *APP_COMMANDS) if c.in_footer and self._works(c)))

    def _works(self, command: Command) -> bool:
        return command.works_at(self._log if command in LOG_COMMANDS else self)

    @on(RowOpened)
    def action_detail(self) -> None:
        """Everything about the job."""
        if job := self.subject():
            from gputui.tui.screens.detail import Detail

            self.app.push_screen(Detail(self._desk, self._snapshot, job.id, self.follow, job))
        elif self.gpu():
            self.action_gpu()

    @on(MenuAsked)
    def list_commands(self, message: MenuAsked) -> None:
        """List what can be done to the row under the pointer, and do what is chosen."""
        wanted = MENUS.get(self.focused_pane or "", ())
        commands = tuple(keymap_of(self).told(command) for command in wanted if self._works(command))
        if not commands:
            return
        from gputui.tui.screens.menu import Menu

        def chosen(number: int | None) -> None:
            if number is not None:
                self.call_later(self.run_action, commands[number].action)

        self.app.push_screen(Menu(self._row_words(), menu_words(commands), message.at), chosen)

    def _row_words(self) -> str:
        """What commands act on."""
        jobs, view = self.subjects(), self.gpu()
        if view is not None:
            return f"GPU {index_of(view)}"
        return f"{len(jobs)} jobs" if len(jobs) > 1 else job_title(jobs[0]) if jobs else ""

    def action_gpu(self) -> None:
        """Everything about the selected GPU, or the first one of the job."""
        job, view = self.subject(), self.gpu()
        uuid = view.gpu.uuid if view else next(iter(job.gpus), None) if job else None
        if uuid is not None:
            from gputui.tui.screens.gpu import GpuDetail

            self.app.push_screen(GpuDetail(self._desk, self._snapshot, uuid, self.follow))

    def job_of(self, job_id: JobId) -> Job | None:
        """The job of that id."""
        return self._rows.jobs.get(job_id)

    def show_log_pane(self) -> None:
        """Have it in sight, though it be hidden or another zoomed, and send it the keys."""
        if "log" in self.layout_now.hidden:
            self.action_all_panes()
        self.turn_to(self._log)

    def action_pause(self) -> None:
        """Ask for the reason, then pause."""
        from gputui.tui.screens.prompt import Prompt

        def answered(reason: str | None) -> None:
            if reason is not None:
                self.post_message(WishMade(wishes.pause(reason)))

        self.app.push_screen(Prompt("Pause the scheduler", "Reason", "Running jobs go on, none starts."), answered)

    def action_unpause(self) -> None:
        """Start jobs again."""
        self.post_message(WishMade(wishes.unpause))

    def action_submit(self) -> None:
        """Open the form."""
        from gputui.tui.screens.submit import Submit

        self.app.push_screen(Submit(self._desk, self._snapshot))

    def action_reserve(self) -> None:
        """Open the form of a new reservation: of the GPU that is selected, where one is."""
        from gputui.tui.screens.reserve import Reserve

        view = self.gpu()
        self.app.push_screen(Reserve(self._desk, self._snapshot, view.gpu.uuid if view else None))

    def action_timeline(self) -> None:
        """Show which job has which GPUs when."""
        from gputui.tui.screens.timeline import TimelineScreen

        job = self.subject()
        self.app.push_screen(TimelineScreen(self._desk, self._snapshot, self.follow, job.id if job else None))

    def on_resize(self) -> None:
        """Choose words that fit, once everything has its new size."""
        self.call_after_refresh(self.refresh_time)
