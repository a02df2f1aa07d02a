"""Main screen: GPUs, queue, a log, and the lines around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import Screen
from textual.widgets import Input

from gputui.domain.action import Pause, Unpause
from gputui.domain.conditions import pressing
from gputui.domain.gpu import GpuView
from gputui.domain.gpu_history import Steady
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, server_of
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.tui.commands import (
    APP_COMMANDS,
    BY_NAME,
    EDIT_COMMANDS,
    GPU,
    GPU_COMMANDS,
    LOG_COMMANDS,
    LOG_JOB_COMMANDS,
    MAIN_COMMANDS,
    PANE_COMMANDS,
    QUEUE_COMMANDS,
    SUBMIT,
    Command,
    bindings,
    named,
)
from gputui.tui.keymap import keymap_of
from gputui.tui.present.gpu_rows import Labels, holder
from gputui.tui.present.job import JobContext
from gputui.tui.present.status import no_gpu_words, status_line, summary_line
from gputui.tui.progress import Repaints
from gputui.tui.screens.dialogs import Choose, Prompt, ask
from gputui.tui.screens.job_screen import GpuScreen
from gputui.tui.screens.log_pane import LogPane
from gputui.tui.screens.logs import LogController
from gputui.tui.screens.panes import Panes
from gputui.tui.screens.queue_pane import LOOKED_AT, SECTION, MoveFound, QueueController, QueueEditor
from gputui.tui.services import Services
from gputui.tui.widgets.gpu_grid import GpuGrid
from gputui.tui.widgets.job_table import JobTable, TitleClicked
from gputui.tui.widgets.line_table import CursorMoved, Divider, DividerMoved, GripMoved, MenuAsked, RowOpened
from gputui.tui.widgets.queue_folding import LookedAt
from gputui.tui.widgets.queue_rows import ChosenColumns, QueueRows
from gputui.tui.widgets.queue_tabs import HistoryRead, ScoreLoader, ScoresMade
from gputui.tui.widgets.status_bars import FilterLine, KeyBar, StatusBar, SummaryBar, line_of


class GridNodes(Struct, eq=False):
    """Carries out keys of the queue on nodes, while the grid has the focus."""

    _screen: Screen[Any]
    _grid: GpuGrid
    _redraw: Callable[[], None]

    @property
    def has_focus(self) -> bool:
        return self._grid.has_focus_within and self._grid.has_nodes

    @property
    def chosen(self) -> str | None:
        return self._grid.node if self.has_focus and self._grid.cursor in self._grid.table.nodes else None

    def action_sort(self) -> None:
        order = "the idlest first" if self._grid.sort() else "in the order of the cluster"
        self._redraw()
        self._grid.move_to(0)
        self._screen.notify(f"Nodes: {order}")

    def action_fold(self) -> None:
        self._grid.fold()
        self._redraw()
        self._grid.show_whole_node()

    def action_fold_all(self) -> None:
        self._grid.fold_all()
        self._redraw()


class ServerChoice(Struct, eq=False):
    """Chooses the server under the cursor; where there is one queue, nothing is asked and its name is empty."""

    _screen: GpuScreen
    _services: Services

    @property
    def name(self) -> str:
        """Return the server of the selected GPU or job, else the first."""
        snapshot = self._screen.snapshot
        if not snapshot.servers:
            return ""
        view, job = self._screen.gpu(), self._screen.subject()
        found = snapshot.server_of_gpu(view.gpu.uuid) if view else server_of(job.id) if job else ""
        return found or snapshot.servers[0].name

    @property
    def scope(self) -> tuple[Services, Snapshot]:
        return self._services.scoped(self._screen.snapshot, self.name)

    def ask(self, question: str, chosen: Callable[[Services, Snapshot], object]) -> None:
        """Ask for a server, the one under the cursor first."""
        names = [server.name for server in self._screen.snapshot.servers]
        if len(names) < 2:
            chosen(*self.scope)
            return
        first, scoped = self.name, self._services.scoped
        names.sort(key=lambda name: name != first)
        dialog = Choose(question, names, none="")
        ask(self._screen.app, dialog, lambda place: chosen(*scoped(self._screen.snapshot, names[place])))

    def action_pause(self) -> None:
        server = self.name
        question = Prompt(f"Pause {server or 'the scheduler'}", "Reason", "Running jobs continue; no new starts.")
        ask(self._screen.app, question, lambda reason: self._screen.request(Pause(reason), server=server))

    def action_unpause(self) -> None:
        self._screen.request(Unpause(), server=self.name)


_OF_LOG = (
    *named("log_next clear_log log_search error log_only pause_log"),
    replace(BY_NAME["follow"], title="queue"),
    *(command for command in LOG_COMMANDS if command.in_footer),
    BY_NAME["pin_log"],
)
"""Commands of the log: those of a search, which exist only during one, come first."""
_OF_GPUS = (GPU, *GPU_COMMANDS, *named("follow reserve gpu_view"))
_FIRST = {"gpus": _OF_GPUS, "log": tuple(dict.fromkeys(_OF_LOG))}
"""Commands of each pane that come first; in the queue, those about jobs do anyway."""
_OTHERS = tuple(c for c in (*MAIN_COMMANDS, *EDIT_COMMANDS, *QUEUE_COMMANDS) if c.in_footer and c is not SUBMIT)
_ALWAYS = tuple(c for c in (SUBMIT, *APP_COMMANDS) if c.in_footer)


def footer(pane: str | None, works: Callable[[Command], bool]) -> tuple[tuple[Command, ...], tuple[Command, ...]]:
    """Return the commands available while a pane has the focus, and the permanent ones at the right end."""
    wanted: dict[str, Command] = {}
    for command in (*_FIRST.get(pane or "", ()), *_OTHERS):
        wanted.setdefault(command.name, command)
    return tuple(filter(works, wanted.values())), tuple(filter(works, _ALWAYS))


class Main(GpuScreen):
    """Overview of everything. Commands act on the selection of the focused pane.

    The screen owns the widgets and the snapshot. Its parts have the actions: `panes` the sizes, `jobs` the queue,
    `editor` the changes made in the queue, `logs` the followed log, `nodes` those of a cluster, `server` what is for
    one of several.
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
        looked_at = LookedAt(services.preferences.get(LOOKED_AT))
        services.conditions.is_acknowledged = looked_at.has
        chosen = ChosenColumns.of(services.preferences.get(SECTION), services.settings.console.columns)
        rows = QueueRows(looked_at)
        self.queue = JobTable(rows, context, id="queue", chosen=chosen, lacking=lambda: services.lacking)
        self.filter_line = FilterLine()
        self.log_pane = LogPane(id="log")
        self._bar = StatusBar(id="status")
        self._summary = SummaryBar(id="summary")
        self._steady: Steady[tuple[str, str]] = Steady()
        self._keys = KeyBar(id="keys")
        self.panes = Panes(self, services, self.refresh_time)
        self.jobs = QueueController(self, services, self.queue, self.filter_line, self.refresh_time)
        self.editor = QueueEditor(self, services, self.jobs)
        self.nodes = GridNodes(self, self.grid, self.refresh_time)
        self.server = ServerChoice(self, services)
        self.scores = ScoreLoader(services.settings, services.clock, self.post_message)
        show_log = partial(self.panes.show, "log")
        self.logs = LogController(self, services, self.log_pane, self.job_of, show_log, self.jobs.look_at)
        self.conditions |= {
            **self.jobs.conditions,
            **self.editor.conditions,
            **self.logs.conditions,
            "pause": lambda _: not self._snapshot.of_server(self.server.name).controls.paused,
            "unpause": lambda _: self._snapshot.of_server(self.server.name).controls.paused,
            "gpu": lambda _: self.gpu() is not None or bool((job := self.subject()) and job.gpus),
            **dict.fromkeys(("fold", "fold_all", "sort"), lambda _: self.nodes.has_focus or self.jobs.may_fold),
            "detail": lambda _: bool(
                self.nodes.chosen or self.jobs.is_on_fold or self.gpu() is not None or self.subject() is not None
            ),
        }
        self._repaints = Repaints(services.pace.tick)
        self._is_ready = False
        """True once the widgets are mounted; a snapshot may arrive before that."""

    def compose(self) -> ComposeResult:
        yield self._bar
        with Vertical():
            yield self.grid
            yield self._summary
            with Vertical(id="work"):
                with Vertical(id="list"):
                    yield self.queue
                    yield self.filter_line
                yield Divider()
                yield self.log_pane
        yield self._keys

    def on_mount(self) -> None:
        self.panes.lay_out()
        shown = self.panes.layout.shown
        self.panes.pane("queue" if "queue" in shown else shown[0]).focus()
        self._is_ready = True
        self.set_interval(self._services.pace.tick, self.tick)
        self.show_snapshot(self._snapshot)

    def on_unmount(self) -> None:
        self.jobs.history.close()
        self.editor.mover.close()
        self.scores.close()

    @property
    def parts(self) -> Sequence[object]:
        """Objects that carry out commands; the nodes of a cluster come first while they have the focus."""
        nodes = (self.nodes,) if self.nodes.has_focus else ()
        return (*nodes, self.jobs, self.editor, self.logs, self.panes, self.server)

    # what is shown

    def show_snapshot(self, snapshot: Snapshot) -> None:
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
        """Show the snapshot as of now; pauses while a page covers this screen. Only changed cells are sent."""
        if not self._is_ready or not self.is_in_sight:
            return
        self._repaints.note()
        now, snapshot = self._services.clock.now(), self._snapshot
        self.queue.rows.update(snapshot)
        self.jobs.match_later()
        self.jobs.update_tabs()
        if "score" in self.queue.live.chosen.keys or self.queue.rows.sorting.column == "score":
            self.scores.load(snapshot)
        services = self._services
        found = services.conditions.look(snapshot, now)
        key = keymap_of(self).key("notices")
        status = status_line(
            snapshot, services.about.host, self._bar.room, found=found, read_only=services.is_read_only, key=key
        )
        self._bar.show(status, f"{now.astimezone():{services.pace.clock}}")
        # on a low screen a few words of the summary join the title of the log
        has_room = self._summary.has_room
        line = summary_line(snapshot, now, self._summary.room // (1 if has_room else 2), self._steady)
        self._summary.show(line if has_room else ())
        self.log_pane.show_aside(() if has_room else line)
        line_of(self).show(pressing(snapshot, now), services.hint.text)
        rows_around = 3 + self._summary.rows
        picture = services.gpus.of(snapshot, self.queue.rows.jobs, now)
        is_idle = self.logs.followed is None and self.jobs.is_empty
        room = self.panes.room_for_gpus(self.size.height - rows_around, is_idle=is_idle)
        self.grid.show(picture, no_gpu_words(snapshot, self.size.width - 2), room)
        grid_rows = self.grid.arrangement.rows if "gpus" in self.panes.layout.shown else 0
        self.panes.settle(self.size.height - rows_around - grid_rows, self.jobs.rows_wanted)
        names = Labels.of(snapshot).by_uuid
        self.queue.show(JobContext.of(snapshot, now, names, self.queue.rows.scores))
        self._show_keys()

    def on_screen_resume(self) -> None:
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
        return self.jobs.subjects() if self.jobs.has_focus else super().subjects()

    def drained_node(self) -> str | None:
        return self.nodes.chosen or super().drained_node()

    def gpu(self) -> GpuView | None:
        if not self.grid.has_focus_within or self.grid.cursor is None:
            return None
        row = self.grid.picture.rows.get(self.grid.cursor)
        return row.view if row else None

    def job_of(self, job_id: JobId) -> Job | None:
        return self.queue.rows.jobs.get(job_id)

    def on_descendant_focus(self) -> None:
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
        self.jobs.take_history(message)

    def on_scores_made(self, message: ScoresMade) -> None:
        self.scores.end()
        self.queue.rows.rank(message.scores)
        self.refresh_time()

    def on_move_found(self, message: MoveFound) -> None:
        self.editor.take_move(message)

    # other screens

    @on(RowOpened)
    def action_detail(self) -> None:
        if self.nodes.chosen:
            self.nodes.action_fold()
        elif self.jobs.is_on_fold:
            self.jobs.action_finished()
        elif job := self.subject():
            self.jobs.look_at(job)
            from gputui.tui.screens.pages import Detail

            self.app.push_screen(Detail(self._services, self._snapshot, job.id, self.logs.open, job))
        elif self.gpu():
            self.action_gpu()

    @on(MenuAsked)
    def list_commands(self, message: MenuAsked) -> None:
        from gputui.tui.screens.menu import open_row_menu

        open_row_menu(self, self.subjects(), self.gpu(), self.panes.focused, self._works, message.at)

    def action_gpu(self) -> None:
        job, view = self.subject(), self.gpu()
        uuid = view.gpu.uuid if view else next(iter(job.gpus), None) if job else None
        if uuid is not None:
            from gputui.tui.screens.pages import GpuDetailScreen

            self.app.push_screen(GpuDetailScreen(self._services, self._snapshot, uuid, self.logs.open))

    def action_submit(self) -> None:
        from gputui.tui.screens.forms import Submit

        self.server.ask("Submit a job to", lambda *scope: self.app.push_screen(Submit(*scope)))

    def action_reserve(self) -> None:
        from gputui.tui.screens.forms import Reserve

        view = self.gpu()
        self.app.push_screen(Reserve(*self.server.scope, view.gpu.uuid if view else None))

    def action_timeline(self) -> None:
        from gputui.tui.screens.timeline import TimelineScreen

        job = self.subject()
        self.app.push_screen(TimelineScreen(*self.server.scope, self.logs.open, job.id if job else None))

    # log

    def action_follow(self) -> None:
        if self.focused is self.log_pane:
            self.panes.show("queue")
        elif job := self.subject():
            self.logs.open(job.id)
