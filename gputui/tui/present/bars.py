"""Time axes and bars as characters whose shapes can be distinguished without colours and in ASCII."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct, field
from rich.style import Style

from gputui.domain.gpu import GpuState, GpuView, HealthCode
from gputui.domain.job_spec import JobId
from gputui.domain.policy.planning_context import DurationSource
from gputui.domain.policy.whatif import Bar, BarKind, KeptWindow
from gputui.domain.text import fit, plain, width
from gputui.tui.present.cells import Cell, Span
from gputui.tui.present.style import AMBER, BAD, DIM, GOOD, HEAD, INK, OTHER, OVERRUN, PLAIN, PLANNED, RUNS, TRACK, WARN

_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
STEPS = tuple(timedelta(seconds=seconds) for seconds in _SECONDS)
"""Durations that a cell may represent, finest first."""
_TICKS = (*STEPS, *(timedelta(days=days) for days in (2, 7, 14, 28)))
_APART = 9
"""Minimum distance in cells between two labels of the axis."""


class Scale(Struct, frozen=True):
    """Time axis: `cells` cells from `start` on, each `step` long."""

    start: datetime
    step: timedelta
    cells: int

    @property
    def end(self) -> datetime:
        return self.start + self.step * self.cells

    def cell(self, at: datetime) -> int:
        """Return the cell of a time: below 0 before the first, from `cells` on after the last."""
        return (at - self.start) // self.step

    def ticks(self) -> list[tuple[int, str]]:
        apart = next((tick for tick in _TICKS if tick / self.step >= _APART), _TICKS[-1])
        midnight = self.start.astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
        at = midnight + apart * ((self.start - midnight) // apart)
        found = []
        while (cell := self.cell(at)) < self.cells:
            local, is_short = at.astimezone(), apart < timedelta(minutes=1)
            is_midnight = local.hour == local.minute == local.second == 0
            words = f"{local:%H:%M:%S}" if is_short else f"{local:%a} {local.day}" if is_midnight else f"{local:%H:%M}"
            found += [(cell, words)] if cell >= 0 else []
            at += apart
        return found


def step_for(span: timedelta, cells: int) -> timedelta:
    """Return the finest step with which the span fits into that many cells."""
    return next((step for step in STEPS if step * cells >= span), STEPS[-1])


def zoomed(step: timedelta, finer: int) -> timedelta:
    """Return the step that is `finer` levels finer, or coarser if it is negative."""
    here = next((number for number, known in enumerate(STEPS) if known >= step), len(STEPS) - 1)
    return STEPS[max(0, min(len(STEPS) - 1, here - finer))]


class Shape(Struct, frozen=True):
    """Characters at the beginning, inside and at the end of a bar."""

    begin: str
    fill: str
    end: str


class BarMarks(Struct, frozen=True):
    """Characters of all elements of the drawing."""

    limit: Shape = Shape("┣", "━", "┫")
    guess: Shape = Shape("┣", "╍", "╍")
    overrun: Shape = Shape("┣", "≈", "≈")
    planned: Shape = Shape("├", "─", "┤")
    planned_guess: Shape = Shape("├", "╌", "╌")
    head: Shape = Shape("╞", "═", "╡")
    window: str = "░"
    drained: str = "×"
    unknown: str = "?"
    foreign: str = "▒"
    more: str = "▸"
    """Mark of a bar that continues beyond the right edge."""
    now: str = "│"
    tick: str = "·"


UNICODE = BarMarks()
ASCII = BarMarks(
    Shape("[", "=", "]"),
    Shape("[", "~", "~"),
    Shape("[", "!", "!"),
    Shape("(", "-", ")"),
    Shape("(", ".", "."),
    Shape("{", "#", "}"),
    window=":",
    drained="x",
    foreign="%",
    more="+",
    now="|",
    tick="'",
)
_RUNS = Style(color=GOOD, bgcolor=RUNS)
_OVERRUN = Style(color=BAD, bgcolor=OVERRUN)
_PLANNED = Style(color=INK, bgcolor=PLANNED)
_HEAD = Style(color=WARN, bgcolor=HEAD)
_WINDOW = Style(color=OTHER)
_NOW = Style(color=WARN)


class Drawn(Struct, frozen=True):
    """Parameters of drawing rows of bars."""

    scale: Scale
    now: datetime
    windows: tuple[KeptWindow, ...] = ()
    names: Mapping[JobId, str] = field(default_factory=dict)
    marks: BarMarks = UNICODE
    picked: JobId | None = None
    """Id of the job whose bar is selected."""
    shown_id: Callable[[JobId], str] = str


def gpu_row(drawn: Drawn, bars: Iterable[Bar], view: GpuView | None = None) -> Cell:
    """Return the row of a GPU: reservations, obstacles, and its bars over them."""
    canvas = _Canvas(drawn.scale.cells)
    scale, marks, now = drawn.scale, drawn.marks, drawn.scale.cell(drawn.now)
    for x, _ in scale.ticks():
        canvas.put(x, marks.tick, TRACK)
    if view is not None and (against := _against(view, marks)):
        canvas.fill(now + 1, scale.cells, against[0], DIM, f" {against[1]} ", AMBER)
    for window in drawn.windows:
        if view is not None and view.gpu.uuid in window.gpus:
            first, last = scale.cell(window.start), scale.cell(window.end)
            canvas.fill(first, last, marks.window, _WINDOW, f" {plain(window.name, 40)} ", _WINDOW)
    canvas.put(now, marks.now, _NOW)
    for bar in bars:
        _paint(canvas, drawn, bar)
    return canvas.spans()


def shape_of(bar: Bar, marks: BarMarks) -> Shape:
    if bar.is_overrun:
        return marks.overrun
    known = bar.source is DurationSource.LIMIT
    if bar.kind is BarKind.RUNNING:
        return marks.limit if known else marks.guess
    if bar.kind is BarKind.HEAD:
        return marks.head if known else Shape(marks.head.begin, marks.head.fill, marks.head.fill)
    return marks.planned if known else marks.planned_guess


def style_of(bar: Bar) -> Style:
    if bar.is_overrun:
        return _OVERRUN
    return {BarKind.RUNNING: _RUNS, BarKind.PLANNED: _PLANNED, BarKind.HEAD: _HEAD}[bar.kind]


def axis(scale: Scale, now: int | None = None, marks: BarMarks = UNICODE) -> Cell:
    canvas = _Canvas(scale.cells)
    for x, words in scale.ticks():
        hidden = now is not None and x < now + 6 and now - 1 < x + len(words)
        if x + len(words) <= scale.cells and not hidden:
            canvas.write(x, words, DIM)
    if now is not None:
        canvas.write(now, f"{marks.now}now", _NOW)
    return canvas.spans()


def legend(marks: BarMarks = UNICODE, room: int = 10_000) -> Cell:
    parts: list[tuple[str, Style, str]] = [
        (marks.limit.fill * 2 + marks.limit.end, _RUNS, "runs to limit"),
        (marks.guess.fill * 3, _RUNS, "guessed end"),
        (marks.planned.begin + marks.planned.fill * 2, _PLANNED, "planned"),
        (marks.head.begin + marks.head.fill * 2, _HEAD, "head's reservation"),
        (marks.overrun.fill * 2, _OVERRUN, "overrun"),
        (marks.window * 2, _WINDOW, "window"),
        (marks.drained * 2, DIM, "drained"),
        (marks.foreign * 2, DIM, "others"),
        (marks.unknown * 2, DIM, "unknown"),
    ]
    spans: list[Span] = []
    used = 0
    for shown, style, words in parts:
        used += len(shown) + len(words) + 1 + (2 if spans else 0)
        if used > room:
            break
        spans += [("  " if spans else "", DIM), (shown, style), (f" {words}", DIM)]
    return tuple(spans)


def _paint(canvas: _Canvas, drawn: Drawn, bar: Bar) -> None:
    scale, marks = drawn.scale, drawn.marks
    first = scale.cell(bar.start)
    last = max(first + 1, scale.cell(bar.end))
    if first >= scale.cells or last <= 0:
        return
    shape, style = shape_of(bar, marks), style_of(bar)
    if drawn.picked == bar.job_id:
        style += Style(reverse=True, bold=True)
    canvas.fill(first, last, shape.fill, style)
    if last - first > 1 and last <= scale.cells:
        canvas.put(last - 1, shape.end, style)
    if last > scale.cells:
        canvas.put(scale.cells - 1, marks.more, style)
    canvas.put(first, shape.begin, style)
    name = drawn.names.get(bar.job_id, "")
    begin, room = max(0, first + 1), min(last, scale.cells) - max(0, first + 1) - 1
    number = drawn.shown_id(bar.job_id)
    if room >= len(number):
        label = f"{number} {plain(name, 60)}".strip() if room > len(number) + 2 else number
        canvas.write(begin, label if width(label) <= room else fit(label, room), style)


def _against(view: GpuView, marks: BarMarks) -> tuple[str, str] | None:
    """Return why no job can start there, as a character and text; None if one may, or one runs."""
    if view.health.code not in {HealthCode.OK, HealthCode.REMAP_PENDING, HealthCode.UNKNOWN}:
        return marks.unknown, plain(view.health.text or view.health.code, 80)
    if view.drain is not None or view.state is GpuState.DRAINED:
        reason = f": {plain(view.drain.reason, 60)}" if view.drain and view.drain.reason else ""
        return marks.drained, f"drained{reason}"
    if view.state is GpuState.UNKNOWN:
        return marks.unknown, plain(f"unknown: {view.why}" if view.why else "unknown", 80)
    if view.state is GpuState.FOREIGN:
        names = ", ".join(plain(holder.name, 30) for holder in view.holders)
        return marks.foreign, f"used by {names}" if names else "used by others"
    return None


class _Canvas:
    """Line of cells to draw on."""

    def __init__(self, cells: int) -> None:
        self._cells: list[Span] = [(" ", PLAIN)] * cells

    def put(self, x: int, character: str, style: Style) -> None:
        """Put one character into a cell, if it is visible."""
        if 0 <= x < len(self._cells):
            if self._cells[x][0] == "" and x:  # half of a wide character: the other half becomes blank
                self._cells[x - 1] = (" ", self._cells[x - 1][1])
            if x + 1 < len(self._cells) and self._cells[x + 1][0] == "":
                self._cells[x + 1] = (" ", self._cells[x + 1][1])
            self._cells[x] = (character, style)

    def fill(self, first: int, last: int, character: str, style: Style, label: str = "", ink: Style = PLAIN) -> None:
        """Fill cells from `first` up to `last` with a character, and write a label there if it fits."""
        for x in range(max(0, first), min(last, len(self._cells))):
            self.put(x, character, style)
        begin, room = max(0, first), min(last, len(self._cells)) - max(0, first)
        if label and room >= min(width(label), 8):
            self.write(begin, label if width(label) <= room else fit(label, room), ink)

    def write(self, x: int, words: str, style: Style) -> None:
        """Write text from a cell on; wide characters take two cells."""
        for character in words:
            cells = width(character)
            if cells and x + cells <= len(self._cells):
                self.put(x, character, style)
                if cells == 2:
                    self.put(x + 1, " ", style)
                    self._cells[x + 1] = ("", style)
            x += cells

    def spans(self) -> Cell:
        found: list[tuple[list[str], Style]] = []
        for character, style in self._cells:
            if found and found[-1][1] == style:
                found[-1][0].append(character)
            else:
                found.append(([character], style))
        return tuple(("".join(characters), style) for characters, style in found)


def lanes(bars: Iterable[Bar]) -> list[list[Bar]]:
    """Return the bars of one GPU in as few lines as keep them apart: one, unless jobs share it."""
    found: list[list[Bar]] = []
    for bar in sorted(bars, key=lambda bar: bar.start):
        lane = next((lane for lane in found if lane[-1].end <= bar.start), None)
        if lane is None:
            found.append([bar])
        else:
            lane.append(bar)
    return found or [[]]
