"""Timeline screen: the plan as a chart, GPUs down, time across."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, TypeAlias

from msgspec import Struct, field
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.message import Message
from textual.strip import Strip

from gputui.domain.arrays import Entries, Names
from gputui.domain.gpu import GpuView
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.policy.whatif import Bar, Timeline, timeline
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.tui.commands import APP_COMMANDS, BACK, GPU_COMMANDS, JOB_COMMANDS, TIMELINE_COMMANDS, bindings
from gputui.tui.present.cells import BLUE, DIM, GPU_STYLES, GROUND, ON_RAISED, RED, Cell, Column, cell, fitted
from gputui.tui.present.gpu_detail import several_graph_lines
from gputui.tui.present.gpu_rows import Labels
from gputui.tui.present.timeline import (
    Drawn,
    Scale,
    agenda_lines,
    axis,
    bar_lines,
    bare_gpu_lines,
    gpu_row,
    heading,
    lanes,
    legend,
    step_for,
    whole_span,
    zoomed,
)
from gputui.tui.progress import IsWanted, LatestWorker, Throttle, are_alike, failure_words
from gputui.tui.screens.job_screen import OverlayScreen
from gputui.tui.services import Services
from gputui.tui.widgets.line_table import CellLines, CursorMoved, LineTable
from gputui.tui.widgets.status_bars import KeyBar

BarRowKey: TypeAlias = tuple[str, int]
"""UUID of a GPU and number of its line, since jobs that share a GPU have a line each."""
_PAST = 8
"""Fraction of the width that shows the past, as a divisor."""


class TimelineView(Struct, frozen=True):
    snapshot: Snapshot
    labels: Labels = Labels()
    timeline: Timeline | None = None
    """Displayed timeline; None while the plan is being computed."""
    lines: Mapping[str, Sequence[Sequence[Bar]]] = field(default_factory=dict)
    """Bars of each GPU, in lines where they do not overlap."""
    names: Names = field(default_factory=Names)

    @classmethod
    def of(cls, snapshot: Snapshot, timeline: Timeline | None) -> TimelineView:
        by_gpu = timeline.by_gpu if timeline else {}
        lines = {uuid: lanes(bars) for uuid, bars in by_gpu.items()}
        names = Names(snapshot.jobs)
        return cls(snapshot, Labels.of(snapshot), timeline, lines, names)


class TimelineTable(LineTable[BarRowKey]):
    """Table of GPUs with their bars; the cursor is on a GPU and on one of its bars."""

    noun = "GPU"

    def __init__(self, *, id: str, now: datetime) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.picked: JobId | None = None
        """Id of the job whose bar is selected."""
        self._view = TimelineView(Snapshot())
        self._gpus: Mapping[str, GpuView] = {}
        self._now = now
        self._start: datetime | None = None
        """Left edge chosen by the operator; None: it follows the present."""
        self._step: timedelta | None = None
        """Time per cell chosen by the operator; None: the whole plan is visible."""
        self._at = now
        """Current moment, at which the next row's bar is searched."""

    def on_unmount(self) -> None:
        self._view, self._gpus = TimelineView(Snapshot()), {}

    def columns(self) -> tuple[Column, ...]:
        return (Column("gpu", "GPU", max(3, self._view.labels.width), right=True), Column("bars", "", 10, flex=1))

    @property
    def scale(self) -> Scale:
        cells = max(1, next((p.width for p in self.placed if p.column.key == "bars"), 1))
        timeline = self._view.timeline
        past = cells // _PAST
        whole = whole_span(timeline, self._now) if timeline else timedelta(hours=1)
        step = self._step or step_for(whole, cells - past)
        start = self._start or self._now - step * past
        aligned = start - timedelta(seconds=start.timestamp() % step.total_seconds())  # so that it moves by whole cells
        return Scale(aligned, step, cells)

    def show(self, view: TimelineView, now: datetime) -> None:
        relaid = view.labels.width != self._view.labels.width
        self._view, self._now = view, now
        self._gpus = {gpu.gpu.uuid: gpu for gpu in view.snapshot.gpus}
        keys = [(uuid, lane) for uuid in self._gpus for lane in range(max(1, len(view.lines.get(uuid, ()))))]
        empty = () if keys else (cell("There is no GPU to show a plan of.", DIM),)
        if relaid and self.placed:  # a plan may be there before the widget has its size
            self.lay_out()
        self.show_rows(keys, {key: row for row, key in enumerate(keys)}, empty)
        if self.bar is None:
            self._pick_near()
        self._redraw_all()

    @property
    def gpu(self) -> GpuView | None:
        return self._gpus.get(self.cursor[0]) if self.cursor else None

    @property
    def bars(self) -> Sequence[Bar]:
        return self._bars(self.cursor) if self.cursor else ()

    @property
    def bar(self) -> Bar | None:
        return min((bar for bar in self.bars if bar.job_id == self.picked), key=self._apart, default=None)

    def cell_of(self, key: BarRowKey, column: str, room: int) -> Cell:
        view = self._gpus[key[0]]
        if column == "gpu":
            first = self._view.labels.by_uuid.get(key[0], "?")
            return cell(first if key[1] == 0 else "", GPU_STYLES[view.state])
        windows = self._view.timeline.windows if self._view.timeline else ()
        names = self._view.names
        drawn = Drawn(self.scale, self._now, windows, names, self.picked, names.shown)
        return gpu_row(drawn, self._bars(key), view if key[1] == 0 else None)

    def move_to(self, row: int) -> None:
        """Move the cursor to a row, and to the bar nearest in time."""
        super().move_to(row)
        self._pick_near()
        self._redraw_all()

    def select(self, job_id: JobId) -> None:
        for row, key in enumerate(self.keys):
            bar = next((bar for bar in self._bars(key) if bar.job_id == job_id), None)
            if bar is not None:
                super().move_to(row)
                self._pick(bar)
                self._redraw_all()
                return

    def action_bar(self, step: int) -> None:
        bars = list(self.bars)
        if not bars:
            return
        here = bars.index(self.bar) if self.bar is not None else -1
        self._pick(bars[max(0, min(len(bars) - 1, here + step))])
        self._redraw_all()
        self.post_message(CursorMoved())

    def action_look(self, step: int) -> None:
        scale = self.scale
        self._start = scale.start + scale.step * (scale.cells // 2) * step
        self._redraw_all()

    def action_zoom_time(self, finer: int) -> None:
        """Zoom; the selected bar stays visible."""
        scale = self.scale
        self._step = zoomed(scale.step, finer)
        if self._start is not None:
            middle = scale.start + scale.step * (scale.cells // 2)
            self._start = middle - self._step * (scale.cells // 2)
        self._redraw_all()
        self.post_message(CursorMoved())

    def action_present(self) -> None:
        self._start = self._step = None
        self._redraw_all()
        self.post_message(CursorMoved())

    def on_click(self, event: events.Click) -> None:
        place = next((p for p in self.placed if p.column.key == "bars"), None)
        is_row = self.head <= event.y < self.head + len(self.keys) - self.top
        if is_row and place is not None and place.x <= event.x < place.x + place.width:
            self._at = self.scale.start + self.scale.step * (event.x - place.x)
            self.picked = None  # Textual continues with the table's own handler

    def _bars(self, key: BarRowKey) -> Sequence[Bar]:
        lines = self._view.lines.get(key[0], ())
        return lines[key[1]] if key[1] < len(lines) else ()

    def _pick_near(self) -> None:
        """Select the same job's bar in this row, else the one nearest to the current moment."""
        near = min(self.bars, key=lambda bar: (bar.job_id != self.picked, self._apart(bar)), default=None)
        self.picked = near.job_id if near is not None else None

    def _apart(self, bar: Bar) -> tuple[bool, timedelta]:
        """Return the distance from the current moment: a job that is preempted and restarted has two bars."""
        apart = max(bar.start - self._at, self._at - bar.end, timedelta(0))
        return (not bar.start <= self._at < bar.end, apart)

    def _pick(self, bar: Bar) -> None:
        self.picked = bar.job_id
        self._at = max(bar.start, min(self._now, bar.end))
        self._show_moment()

    def _show_moment(self) -> None:
        scale = self.scale
        if self.placed and not 0 <= scale.cell(self._at) < scale.cells - 3:
            self._start = self._at - scale.step * (scale.cells // 4)

    def lay_out(self) -> None:
        """Lay out for the current size; the selected bar is visible once there is room."""
        had_room = bool(self.placed)
        super().lay_out()
        if not had_room and self.bar is not None:
            self._show_moment()

    def _redraw_all(self) -> None:
        self._refresh_titles()
        self.redraw()

    def _titles(self) -> Strip:
        scale = self.scale
        label = fitted((("GPU", BLUE if self.has_focus else DIM),), self.placed[0].width if self.placed else 3)
        strip = self._strip(
            [("▌" if self.has_focus else " ", BLUE)], [label, axis(scale, scale.cell(self._now))], ON_RAISED
        )
        return self._with_position(strip)


_OTHERS = 6
"""Lines of the screen that are neither GPUs nor agenda: heading, selection, legend, messages, keys."""
_AGED = timedelta(seconds=15)


@dataclass(eq=False)
class TimelineMade(Message, bubble=False):
    view: TimelineView | None
    failure: str = ""


class TimelineScreen(OverlayScreen):
    """Timeline of the plan. Commands act on the job whose bar is selected."""

    BINDINGS: ClassVar = [
        *bindings((*JOB_COMMANDS, *TIMELINE_COMMANDS, *GPU_COMMANDS, BACK)),
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
        """Id of the job to select once its bar exists."""
        self.view = TimelineView.of(snapshot, None)
        self._failure = ""
        self._jobs = Entries({job.id: job for job in snapshot.jobs})
        self._newest = LatestWorker(self.post_message, lambda error: TimelineMade(None, failure_words(error)))
        self.pace = Throttle(rest=9)
        self.table = TimelineTable(id="rows", now=services.clock.now())
        self.parts = (self.table,)

    def compose(self) -> ComposeResult:
        yield CellLines(id="heading")
        yield self.table
        yield CellLines(id="agenda", background=GROUND)
        yield CellLines(id="about")
        yield CellLines(id="legend")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        self.table.focus()
        self.set_interval(self._services.pace.tick, self.tick)
        self._ask()
        self.call_after_refresh(self._draw)

    def on_unmount(self) -> None:
        self._newest.close()
        self.view, self._jobs = TimelineView(EMPTY), Entries({})

    @property
    def timeline(self) -> Timeline | None:
        """Displayed plan; None while it is being computed."""
        return self.view.timeline

    def subject(self) -> Job | None:
        return None if self.table.picked is None else self._jobs.get(self.table.picked)

    def gpu(self) -> GpuView | None:
        return self.table.gpu

    def show_snapshot(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot.of_server(self._snapshot.server_name)
        self.tick()

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    @on(events.ScreenResume)
    def tick(self) -> None:
        if not self.is_in_sight:
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
        self.pace.end()
        self._failure = message.failure
        if message.view is not None:
            self.view = message.view
            self._jobs = Entries({job.id: job for job in message.view.snapshot.jobs})
        self._draw()
        if self._wanted is not None and message.view is not None:
            if self.table.is_attached:  # the plan may arrive while the screen closes
                self.table.select(self._wanted)
            self._wanted = None

    def _draw(self) -> None:
        if not self.is_mounted or not self.is_in_sight:
            return
        self.table.show(self.view, self._services.clock.now())
        self.query_one("#legend", CellLines).show([((" ", DIM), *legend(room=self.size.width - 2))])
        self._show_selected()

    @on(CursorMoved)
    def _show_selected(self) -> None:
        view, table = self.view, self.table
        room = self.size.height - _OTHERS - max(1, len(table.keys)) - table.head
        now = self._services.clock.now()
        lines = agenda_lines(view.timeline, view.snapshot, view.labels, now, room - 1)
        if lines and self._services.pace.has_graphs:
            # the past of all GPUs, or where there is less room that of the selected bar's GPUs
            gpus = self._services.gpus.of(self._snapshot, {}, now).rows
            picked = table.bar.gpus if table.bar else (table.gpu.gpu.uuid,) if table.gpu else ()
            choices = (list(gpus.values()), [gpus[uuid] for uuid in picked if uuid in gpus])
            graphs = several_graph_lines(choices, self.size.width - 2, room - len(lines) - 2)
            lines += [(), *graphs] if graphs else []
        agenda = self.query_one("#agenda", CellLines)
        agenda.styles.height = room if lines else 0
        agenda.show([(), *(((" ", DIM), *line) for line in lines)])
        head = heading(view.timeline, self._snapshot, view.labels, table.scale, now)
        if self._failure:
            head = cell(f"The forecast failed: {self._failure}", RED)
        self.query_one("#heading", CellLines).show([((" ", DIM), *head)])
        about: tuple[Cell, ...] = ()
        if (bar := table.bar) is not None:
            promise = view.timeline.promise if view.timeline else None
            about = bar_lines(bar, self._jobs.get(bar.job_id), promise, view.labels, now)
        elif (gpu := table.gpu) is not None:
            about = bare_gpu_lines(gpu, view.timeline.windows if view.timeline else (), view.labels, now)
        self.query_one("#about", CellLines).show([((" ", DIM), *line) for line in about])
        commands = (c for c in (*JOB_COMMANDS, *TIMELINE_COMMANDS, *GPU_COMMANDS) if c.in_footer and c.works_at(self))
        self.query_one(KeyBar).show(tuple(commands), (BACK, APP_COMMANDS[0]))
