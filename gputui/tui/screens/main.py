"""Main screen: GPUs, queue and a log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input

from gputui.domain.gpu import GpuView
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.tui.commands.command import Command, bindings
from gputui.tui.commands.table import (
    EDIT_COMMANDS,
    LOG_COMMANDS,
    LOG_JOB_COMMANDS,
    MAIN_COMMANDS,
    PANE_COMMANDS,
    QUEUE_COMMANDS,
)
from gputui.tui.pace import Repaints
from gputui.tui.present.gpu_rows import Labels, holder
from gputui.tui.present.job import JobContext
from gputui.tui.present.status import no_gpu_words
from gputui.tui.queue.loaders import HistoryRead, ScoreLoader, ScoresMade
from gputui.tui.screens.grid_nodes import GridNodes
from gputui.tui.screens.job_screen import GpuScreen
from gputui.tui.screens.log_pane import LogPane
from gputui.tui.screens.logs import LogController
from gputui.tui.screens.panes import Panes
from gputui.tui.screens.queue_controller import QueueController, chosen_columns, queue_rows
from gputui.tui.screens.queue_editor import MoveFound, QueueEditor
from gputui.tui.screens.server_choice import ServerChoice
from gputui.tui.screens.status_controller import StatusController, footer
from gputui.tui.services import Services
from gputui.tui.widgets.filter_line import FilterLine
from gputui.tui.widgets.gpu_grid import GpuGrid
from gputui.tui.widgets.job_table import JobTable, TabClicked, TitleClicked
from gputui.tui.widgets.line_table import CursorMoved
from gputui.tui.widgets.mouse import Divider, DividerMoved, GripMoved, MenuAsked, RowOpened
from gputui.tui.widgets.status_bars import KeyBar


class Main(GpuScreen):
    """Overview of everything. Commands act on the selection of the focused pane.

    The screen owns the widgets and the snapshot. Its parts carry out the commands: `panes` the sizes, `jobs` the queue,
    `editor` the changes made in the queue, `scores` the score column, `logs` the followed log.
    """

    BINDINGS: ClassVar = bindings(  # in one list, since some share a key
        (*MAIN_COMMANDS, *EDIT_COMMANDS, *LOG_JOB_COMMANDS, *QUEUE_COMMANDS, *PANE_COMMANDS)
    )
    AUTO_FOCUS = ""  # on_mount chooses
    DEFAULT_CSS = """
    Main { layout: vertical; }
    Main #work { height: 1fr; }
    Main #list, Main #log { min-height: 3; max-height: 100vh; }
    Main.-beside #work { layout: horizontal; }
    Main.-beside Divider { display: block; }
    Main.-beside.-zoomed Divider, Main.-beside.-low Divider { display: none; }
    Main .pane.-hidden { display: none; }
    Main.-low #log, Main.-low.-reading #list { display: none; }
    Main.-low.-reading #log { display: block; }
    Main.-zoomed .pane { display: none; }
    Main.-zoomed .pane:focus-within { display: block; }
    """

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self.grid = GpuGrid(id="gpus")
        context = JobContext(services.clock.now())
        self.queue = JobTable(queue_rows(services), context, id="queue", chosen=chosen_columns(services))
        self.filter_line = FilterLine()
        self.log_pane = LogPane(id="log")
        self.around = StatusController(services, self.log_pane)
        self._keys = KeyBar(id="keys")
        self.panes = Panes(self, services, self.refresh_time)
        self.jobs = QueueController(self, services, self.queue, self.filter_line, self.refresh_time)
        self.editor = QueueEditor(self, services, self.jobs)
        self.nodes = GridNodes(self, self.grid, self.refresh_time)
        self.server = ServerChoice(self, services)
        self.scores = ScoreLoader(services.settings, services.clock, self.post_message)
        self.logs = LogController(self, services, self.log_pane, self.job_of, self.show_log_pane, self.jobs.look_at)
        self.conditions |= {
            **self.jobs.conditions,
            **self.editor.conditions,
            **self.logs.conditions,
            "pause": lambda _: not self.server.is_paused,
            "unpause": lambda _: self.server.is_paused,
            "gpu": lambda _: self.gpu() is not None or bool((job := self.subject()) and job.gpus),
            **self.nodes.conditions(self.jobs.conditions),
            "detail": lambda _: self.has_detail,
        }
        self._repaints = Repaints(services.pace.tick)
        self._is_ready = False
        """True once the widgets are mounted; a snapshot may arrive before that."""

    def compose(self) -> ComposeResult:
        """Yield the widgets from top to bottom."""
        yield self.around.bar
        with Vertical():
            yield self.grid
            yield self.around.summary
            with Vertical(id="work"):
                with Vertical(id="list"):
                    yield self.queue
                    yield self.filter_line
                yield Divider()
                yield self.log_pane
        yield self._keys

    def on_mount(self) -> None:
        """Draw before any data is known."""
        self.panes.lay_out()
        shown = self.panes.layout.shown
        self.panes.pane("queue" if "queue" in shown else shown[0]).focus()
        self._is_ready = True
        self.set_interval(self._services.pace.tick, self.tick)
        self.show_snapshot(self._snapshot)

    def on_unmount(self) -> None:
        """End the worker threads."""
        self.jobs.close()
        self.editor.close()
        self.scores.close()

    # what is shown

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Store and show a snapshot."""
        if snapshot is not self._snapshot and snapshot is not EMPTY:
            self._services.gpu_history.add(snapshot)
        is_wanted = self._repaints.wants(self._snapshot, snapshot)
        self._snapshot = snapshot
        if is_wanted:
            self.refresh_time()
        if self._is_ready:
            self.logs.follow_on()

    def tick(self) -> None:
        """Advance the clock, unless a snapshot does."""
        if self._repaints.wants_tick():
            self.refresh_time()

    def refresh_time(self) -> None:
        """Show the snapshot as of now; only changed cells are sent.

        Pauses while a page covers this screen.
        """
        if not self._is_ready or not self.is_in_sight:
            return
        self._repaints.note()
        now, snapshot = self._services.clock.now(), self._snapshot
        self.queue.rows.update(snapshot)
        self.jobs.match_later()
        self._update_tabs()
        self.around.show(snapshot, now)
        picture = self._services.gpu_picture(snapshot, self.queue.rows.jobs, now)
        room = self.panes.room_for_gpus(self.size.height - self.around.rows, is_idle=self.is_idle)
        self.grid.show(picture, no_gpu_words(snapshot, self.size.width - 2), room)
        grid_rows = self.grid.arrangement.rows if "gpus" in self.panes.layout.shown else 0
        self.panes.settle(self.size.height - self.around.rows - grid_rows, self.jobs.rows_wanted)
        names = Labels.of(snapshot).by_uuid
        self.queue.show(JobContext.of(snapshot, now, names, self.queue.rows.scores))
        self._show_keys()

    def _update_tabs(self) -> None:
        self.jobs.update_tabs()
        if "score" in self.queue.live.chosen.keys or self.queue.rows.sorting.column == "score":
            self.scores.load(self._snapshot)

    @property
    def is_idle(self) -> bool:
        """Return whether the queue is empty, and no log is shown."""
        return self.logs.followed is None and self.jobs.is_empty

    def on_screen_resume(self) -> None:
        """Catch up after another screen was closed."""
        self.refresh_time()
        self.logs.catch_up()

    @on(events.Resize)
    def fit_texts(self, event: events.Resize) -> None:
        """Choose texts that fit, once all widgets have their new sizes."""
        if self._repaints.wants_size(event.size):
            self.call_after_refresh(self.refresh_time)

    # subject and footer

    def subject(self) -> Job | None:
        """Return the job of the focused pane: selected, on the selected GPU, or the one whose log is shown."""
        if not self._is_ready:
            return None
        if self.grid.has_focus_within:
            view = self.gpu()
            return holder(view, self.queue.rows.jobs) if view else None
        if self.focused is self.log_pane:
            return self.job_of(self.logs.followed.job_id) if self.logs.followed else None
        return self.queue.job

    def subjects(self) -> Sequence[Job]:
        """Return the marked jobs or those of the row while the queue has the focus, else the subject."""
        return self.jobs.subjects() if self.jobs.has_focus else super().subjects()

    def drained_node(self) -> str | None:
        """Return the node that a drain concerns where the cluster drains nodes alone."""
        return self.nodes.chosen or super().drained_node()

    def gpu(self) -> GpuView | None:
        """Return the selected GPU while the grid has the focus."""
        if not self.grid.has_focus_within or self.grid.cursor is None:
            return None
        row = self.grid.picture.rows.get(self.grid.cursor)
        return row.view if row else None

    def job_of(self, job_id: JobId) -> Job | None:
        """Return the job of that id."""
        return self.queue.rows.jobs.get(job_id)

    def on_descendant_focus(self) -> None:
        """Show the keys of the focused pane."""
        self._show_keys()
        self.jobs.show_match_count()

    def _show_keys(self) -> None:
        if self.filter_line.is_typed:
            self._keys.show(())  # every key is text; the filter line shows the keys that end it
            return
        self._keys.show(*footer(self.panes.focused, self._works))

    def _works(self, command: Command) -> bool:
        return command.works_at(self.log_pane if command in LOG_COMMANDS else self)

    # messages of the widgets and workers

    @on(CursorMoved)
    def _cursor_moved(self) -> None:
        self.jobs.read_on()
        self.logs.follow_cursor_soon()
        self._show_keys()

    @on(TitleClicked)
    def _title_clicked(self, message: TitleClicked) -> None:
        self.jobs.sort_by(message.column)

    @on(TabClicked)
    def _tab_clicked(self, message: TabClicked) -> None:
        self.action_tab(message.name)

    @on(GripMoved)
    def _edge_dragged(self, message: GripMoved) -> None:
        self.panes.drag_edge(message.pane.id, message.rows)

    @on(DividerMoved)
    def _divider_dragged(self, message: DividerMoved) -> None:
        self.panes.widen(message.columns)

    @on(Input.Changed, "#filter")
    def _filter_typed(self, event: Input.Changed) -> None:
        self.jobs.type_filter(event.value)

    @on(Input.Submitted, "#filter")
    def _filter_accepted(self) -> None:
        self.jobs.accept_filter()

    def on_history_read(self, message: HistoryRead) -> None:
        """Show the page of history."""
        self.jobs.take_history(message)

    def on_scores_made(self, message: ScoresMade) -> None:
        """Show the computed scores."""
        self.scores.end()
        self.queue.rows.rank(message.scores)
        self.refresh_time()

    def on_move_found(self, message: MoveFound) -> None:
        """Propose the move that was found."""
        self.editor.take_move(message)

    # other screens

    @property
    def has_detail(self) -> bool:
        """Return whether there is something to open."""
        is_row = bool(self.nodes.chosen) or self.jobs.is_on_fold
        return is_row or self.gpu() is not None or self.subject() is not None

    @on(RowOpened)
    def action_detail(self) -> None:
        """Open the page of the job or of the GPU, or the row that ended jobs share."""
        if self.nodes.chosen:
            self.nodes.fold()
        elif self.jobs.is_on_fold:
            self.jobs.toggle_finished()
        elif job := self.subject():
            self.jobs.look_at(job)
            from gputui.tui.screens.detail import Detail

            self.app.push_screen(Detail(self._services, self._snapshot, job.id, self.logs.open, job))
        elif self.gpu():
            self.action_gpu()

    @on(MenuAsked)
    def list_commands(self, message: MenuAsked) -> None:
        """Open the menu of the row under the pointer, and run the chosen command."""
        from gputui.tui.screens.menu import open_row_menu, row_words

        words = row_words(self.subjects(), self.gpu())
        open_row_menu(self, words, self.panes.focused, self._works, message.at)

    def action_gpu(self) -> None:
        """Open the page of the selected GPU, or of the job's first one."""
        job, view = self.subject(), self.gpu()
        uuid = view.gpu.uuid if view else next(iter(job.gpus), None) if job else None
        if uuid is not None:
            from gputui.tui.screens.gpu import GpuDetailScreen

            self.app.push_screen(GpuDetailScreen(self._services, self._snapshot, uuid, self.logs.open))

    def action_pause(self) -> None:
        """Ask for a reason, then pause the scheduler."""
        self.server.pause()

    def action_unpause(self) -> None:
        """Resume the scheduler's starts."""
        self.server.unpause()

    def action_submit(self) -> None:
        """Open the form of a new job."""
        from gputui.tui.screens.submit import Submit

        self.server.ask("Submit a job to", lambda *scope: self.app.push_screen(Submit(*scope)))

    def action_reserve(self) -> None:
        """Open the form of a new reservation, of the selected GPU if there is one."""
        from gputui.tui.screens.reserve import Reserve

        view = self.gpu()
        self.app.push_screen(Reserve(*self.server.scope, view.gpu.uuid if view else None))

    def action_timeline(self) -> None:
        """Open the timeline."""
        from gputui.tui.screens.timeline import TimelineScreen

        job = self.subject()
        self.app.push_screen(TimelineScreen(*self.server.scope, self.logs.open, job.id if job else None))

    # panes

    def show_log_pane(self) -> None:
        """Show the log pane, even if it is hidden or another one is zoomed, and focus it."""
        self.panes.show("log")

    def action_pane(self, step: int) -> None:
        """Focus the next pane."""
        self.panes.focus_next(step)

    def action_grow(self, step: int) -> None:
        """Give the focused pane more or fewer rows."""
        self.panes.grow(step)

    def action_hide(self) -> None:
        """Hide the focused pane."""
        self.panes.hide()

    def action_all_panes(self) -> None:
        """Show every pane in its default size."""
        self.panes.show_all()

    def action_log_place(self) -> None:
        """Put the log beside the queue, or below it."""
        self.panes.move_log()

    def action_grid(self) -> None:
        """Change the GPU layout."""
        self.panes.change_grid()

    def action_zoom(self) -> None:
        """Give the focused pane the whole screen, or end that."""
        self.panes.zoom()

    # queue

    def action_mark(self) -> None:
        """Mark or unmark the jobs of the row."""
        self.jobs.mark()

    def action_mark_all(self) -> None:
        """Mark all jobs that are shown, or unmark them."""
        self.jobs.mark_all()

    def action_clear_marks(self) -> None:
        """Remove all marks."""
        self.jobs.clear_marks()

    def action_sort(self) -> None:
        """Sort by the next column; nodes by their idleness."""
        if not self.nodes.sort():
            self.jobs.sort_next()

    def action_fold(self) -> None:
        """Unfold the row or the node, or fold it."""
        if not self.nodes.fold():
            self.jobs.fold()

    def action_fold_all(self) -> None:
        """Unfold all rows or nodes, or fold them."""
        if not self.nodes.fold_all():
            self.jobs.fold_all()

    def action_columns(self) -> None:
        """Choose the columns of the queue."""
        self.jobs.choose_columns()

    def action_tab(self, name: str) -> None:
        """Show another tab of the queue."""
        self.jobs.turn_to(name)
        self._update_tabs()
        self.refresh_time()

    def action_finished(self) -> None:
        """Show ended jobs, or hide them."""
        self.jobs.toggle_finished()

    def action_failures_seen(self) -> None:
        """Acknowledge all failures."""
        self.jobs.look_at_all()

    def action_filter(self) -> None:
        """Open the filter line."""
        self.jobs.open_filter()

    def action_clear_filter(self) -> None:
        """Remove the filter."""
        self.jobs.clear_filter()

    def action_move(self, step: int) -> None:
        """Move the job past its neighbour."""
        self.editor.move(step)

    def action_edit(self) -> None:
        """Edit the job's request."""
        self.editor.edit()

    def action_clone(self) -> None:
        """Submit a job like this one."""
        self.editor.clone()

    def action_recur(self) -> None:
        """Submit a job like this one by a schedule."""
        self.editor.recur()

    def action_pause_recurring(self) -> None:
        """Pause the recurring job."""
        self.editor.pause_recurring()

    def action_resume_recurring(self) -> None:
        """Resume the recurring job."""
        self.editor.resume_recurring()

    def action_remove(self) -> None:
        """Remove the recurring job or the reservation."""
        self.editor.remove()

    # log

    def action_follow(self) -> None:
        """Go to the job's log; from the log back to the queue."""
        if self.focused is self.log_pane:
            self.panes.show("queue")
        elif job := self.subject():
            self.logs.open(job.id)

    def action_error(self, step: int) -> None:
        """Go to the first error in the job's log."""
        self.logs.show_error(step)

    def action_attempt(self, step: int) -> None:
        """Show the log of another attempt."""
        self.logs.show_attempt(step)

    def action_pin_log(self) -> None:
        """Pin the job's log, or unpin it."""
        self.logs.toggle_pin()

    def action_logs(self) -> None:
        """Show the pinned logs together."""
        self.logs.show_pinned()

    def action_attempts(self) -> None:
        """Show the last two attempts side by side."""
        self.logs.show_attempts()
