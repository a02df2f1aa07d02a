"""GPUs down, time across: a table whose one wide column is drawn to a scale that can be moved and zoomed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeAlias

from rich.style import Style
from textual import events
from textual.strip import Strip

from gputui.domain.entries import Names
from gputui.domain.gpu import GpuView
from gputui.domain.job import JobId
from gputui.domain.policy.timeline import Bar, Timeline
from gputui.domain.snapshot import Snapshot
from gputui.tui.present.bars import UNICODE, BarMarks, Drawn, Scale, axis, gpu_row, lanes, step_for, zoomed
from gputui.tui.present.cells import Cell, Column, cell, fitted
from gputui.tui.present.gpu_words import Labels
from gputui.tui.present.style import BLUE, DIM, GPU_STYLES, RAISED
from gputui.tui.present.timeline import whole_span
from gputui.tui.widgets.line_table import CursorMoved, LineTable

BarRowKey: TypeAlias = tuple[str, int]
"""UUID of a GPU and number of its line: jobs that share a GPU have a line each."""
_RAISED = Style(bgcolor=RAISED)
_PAST = 8
"""Divisor of the screen's width: that part shows the past."""


@dataclass(frozen=True)
class TimelineView:
    """Snapshot and plan that are shown."""

    snapshot: Snapshot
    labels: Labels = Labels()
    timeline: Timeline | None = None
    """Timeline that is drawn; None while the plan is being computed."""
    lines: Mapping[str, Sequence[Sequence[Bar]]] = field(default_factory=dict)
    """Bars of each GPU, in lines where they do not overlap."""
    names: Names = field(default_factory=Names)

    @classmethod
    def of(cls, snapshot: Snapshot, timeline: Timeline | None) -> TimelineView:
        """A picture and its plan."""
        by_gpu = timeline.by_gpu if timeline else {}
        lines = {uuid: lanes(bars) for uuid, bars in by_gpu.items()}
        names = Names(snapshot.jobs)
        return cls(snapshot, Labels.of(snapshot), timeline, lines, names)


class TimelineTable(LineTable[BarRowKey]):
    """Table of GPUs with their bars; the cursor is on a GPU and on one of its bars."""

    NOUN = "GPU"

    def __init__(self, *, id: str, now: datetime, marks: BarMarks = UNICODE) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.picked: JobId | None = None
        """Id of the job whose bar is selected."""
        self._marks = marks
        self._view = TimelineView(Snapshot())
        self._gpus: Mapping[str, GpuView] = {}
        self._now = now
        self._start: datetime | None = None
        """Left edge chosen by the operator; None: it follows the present."""
        self._step: timedelta | None = None
        """Time per cell chosen by the operator; None: the whole plan is visible."""
        self._at = now
        """Current moment, at which the next row's bar is looked for."""

    def on_unmount(self) -> None:
        """Release the plan."""
        self._view, self._gpus = TimelineView(Snapshot()), {}

    def columns(self) -> tuple[Column, ...]:
        """Return the columns: the GPU and its time."""
        return (
            Column("gpu", "GPU", max(3, self._view.labels.width), right=True),
            Column("bars", "", 10, flex=1),
        )

    @property
    def scale(self) -> Scale:
        """Scale of the cells."""
        cells = max(1, next((p.width for p in self.placed if p.column.key == "bars"), 1))
        timeline = self._view.timeline
        past = cells // _PAST
        whole = whole_span(timeline, self._now) if timeline else timedelta(hours=1)
        step = self._step or step_for(whole, cells - past)
        start = self._start or self._now - step * past
        aligned = start - timedelta(seconds=start.timestamp() % step.total_seconds())  # so that it moves by whole cells
        return Scale(aligned, step, cells)

    def show(self, view: TimelineView, now: datetime) -> None:
        """Show the plan as of now."""
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
        """GPU under the cursor."""
        return self._gpus.get(self.cursor[0]) if self.cursor else None

    @property
    def bars(self) -> Sequence[Bar]:
        """Bars of the row under the cursor."""
        return self._bars(self.cursor) if self.cursor else ()

    @property
    def bar(self) -> Bar | None:
        """Bar under the cursor."""
        return min((bar for bar in self.bars if bar.job_id == self.picked), key=self._apart, default=None)

    def cell_of(self, key: BarRowKey, column: str, room: int) -> Cell:
        """Return the content of a cell."""
        view = self._gpus[key[0]]
        if column == "gpu":
            first = self._view.labels.by_uuid.get(key[0], "?")
            return cell(first if key[1] == 0 else "", GPU_STYLES[view.state])
        windows = self._view.timeline.windows if self._view.timeline else ()
        names = self._view.names
        drawn = Drawn(self.scale, self._now, windows, names, self._marks, self.picked, names.shown)
        return gpu_row(drawn, self._bars(key), view if key[1] == 0 else None)

    def move_to(self, row: int) -> None:
        """Move the cursor to a row, and to the bar nearest in time."""
        super().move_to(row)
        self._pick_near()
        self._redraw_all()

    def select(self, job_id: JobId) -> None:
        """Select the first bar of a job, if it has one."""
        for row, key in enumerate(self.keys):
            bar = next((bar for bar in self._bars(key) if bar.job_id == job_id), None)
            if bar is not None:
                super().move_to(row)
                self._pick(bar)
                self._redraw_all()
                return

    def next_bar(self, step: int) -> None:
        """Select the next bar of this row, or the previous one, and show it."""
        bars = list(self.bars)
        if not bars:
            return
        here = bars.index(self.bar) if self.bar is not None else -1
        self._pick(bars[max(0, min(len(bars) - 1, here + step))])
        self._redraw_all()
        self.post_message(CursorMoved())

    def look(self, step: int) -> None:
        """Scroll by half a screen."""
        scale = self.scale
        self._start = scale.start + scale.step * (scale.cells // 2) * step
        self._redraw_all()

    def zoom(self, finer: int) -> None:
        """Zoom; the selected bar stays visible."""
        scale = self.scale
        self._step = zoomed(scale.step, finer)
        if self._start is not None:
            middle = scale.start + scale.step * (scale.cells // 2)
            self._start = middle - self._step * (scale.cells // 2)
        self._redraw_all()

    def present(self) -> None:
        """Return to the present, with the whole plan visible."""
        self._start = self._step = None
        self._redraw_all()

    def on_click(self, event: events.Click) -> None:
        """Select the bar under the pointer too."""
        place = next((p for p in self.placed if p.column.key == "bars"), None)
        is_row = self.head <= event.y < self.head + len(self.keys) - self.top
        if is_row and place is not None and place.x <= event.x < place.x + place.width:
            self._at = self.scale.start + self.scale.step * (event.x - place.x)
            self.picked = None  # whichever was selected before; Textual goes on to the table's own

    def _bars(self, key: BarRowKey) -> Sequence[Bar]:
        lines = self._view.lines.get(key[0], ())
        return lines[key[1]] if key[1] < len(lines) else ()

    def _pick_near(self) -> None:
        """Select the same job's bar in this row, else the one nearest to the moment looked at."""
        near = min(self.bars, key=lambda bar: (bar.job_id != self.picked, self._apart(bar)), default=None)
        self.picked = near.job_id if near is not None else None

    def _apart(self, bar: Bar) -> tuple[bool, timedelta]:
        """Return the distance from the current moment: a job that is stopped and starts again has two bars."""
        apart = max(bar.start - self._at, self._at - bar.end, timedelta(0))
        return (not bar.start <= self._at < bar.end, apart)

    def _pick(self, bar: Bar) -> None:
        """Select a bar, and show its beginning."""
        self.picked = bar.job_id
        self._at = max(bar.start, min(self._now, bar.end))
        self._show_moment()

    def _show_moment(self) -> None:
        """Show the current moment, once there is room."""
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
        """Render the time axis."""
        scale = self.scale
        label = fitted((("GPU", BLUE if self.has_focus else DIM),), self.placed[0].width if self.placed else 3)
        strip = self._strip(
            [("▌" if self.has_focus else " ", BLUE)],
            [label, axis(scale, scale.cell(self._now), self._marks)],
            _RAISED,
        )
        return self._with_position(strip)
