"""Bars of time as characters: told apart by their shapes, so that they read without colours and in ASCII too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from rich.style import Style

from gputui.domain.gpu import GpuState, GpuView, HealthCode
from gputui.domain.job import JobId
from gputui.domain.policy.durations import Source
from gputui.domain.policy.timeline import Bar, BarKind, KeptWindow
from gputui.domain.text import fit, plain, width
from gputui.tui.present.cells import Cell, Span
from gputui.tui.present.scale import Scale
from gputui.tui.present.style import (
    AMBER,
    BAD,
    DIM,
    GOOD,
    HEAD,
    INK,
    OTHER,
    OVERRUN,
    PLAIN,
    PLANNED,
    RUNS,
    TRACK,
    WARN,
)


@dataclass(frozen=True)
class Shape:
    """How a bar begins, goes on and ends."""

    begin: str
    fill: str
    end: str


@dataclass(frozen=True)
class Marks:
    """The characters of all there is to draw."""

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
    """Goes on beyond the right edge."""
    now: str = "│"
    tick: str = "·"


UNICODE = Marks()
ASCII = Marks(
    Shape("[", "=", "]"),
    Shape("[", "~", "~"),
    Shape("[", "!", "!"),
    Shape("(", "-", ")"),
    Shape("(", ".", "."),
    Shape("{", "#", "}"),
    window=":",
    drained="x",
    foreign="%",
    more=">",
    now="|",
    tick="'",
)
_RUNS = Style(color=GOOD, bgcolor=RUNS)
_OVERRUN = Style(color=BAD, bgcolor=OVERRUN)
_PLANNED = Style(color=INK, bgcolor=PLANNED)
_HEAD = Style(color=WARN, bgcolor=HEAD)
_WINDOW = Style(color=OTHER)
_NOW = Style(color=WARN)


@dataclass(frozen=True)
class Drawn:
    """What rows of bars are drawn from, besides the bars."""

    scale: Scale
    now: datetime
    windows: tuple[KeptWindow, ...] = ()
    names: Mapping[JobId, str] = field(default_factory=dict)
    marks: Marks = UNICODE
    picked: JobId | None = None
    """The job whose bar is selected."""


def gpu_row(drawn: Drawn, bars: Iterable[Bar], view: GpuView | None = None) -> Cell:
    """A GPU's time: what it is kept for, what is against it, and its bars upon that."""
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


def shape_of(bar: Bar, marks: Marks) -> Shape:
    """The characters of its kind."""
    if bar.is_overrun:
        return marks.overrun
    known = bar.source is Source.LIMIT
    if bar.kind is BarKind.RUNNING:
        return marks.limit if known else marks.guess
    if bar.kind is BarKind.HEAD:
        return marks.head if known else Shape(marks.head.begin, marks.head.fill, marks.head.fill)
    return marks.planned if known else marks.planned_guess


def style_of(bar: Bar) -> Style:
    """The colour of its kind."""
    if bar.is_overrun:
        return _OVERRUN
    return {BarKind.RUNNING: _RUNS, BarKind.PLANNED: _PLANNED, BarKind.HEAD: _HEAD}[bar.kind]


def axis(scale: Scale, now: int | None = None, marks: Marks = UNICODE) -> Cell:
    """The times above the rows; the present one marked."""
    canvas = _Canvas(scale.cells)
    for x, words in scale.ticks():
        hidden = now is not None and x < now + 6 and now - 1 < x + len(words)
        if x + len(words) <= scale.cells and not hidden:
            canvas.write(x, words, DIM)
    if now is not None:
        canvas.write(now, f"{marks.now}now", _NOW)
    return canvas.spans()


def legend(marks: Marks = UNICODE, room: int = 10_000) -> Cell:
    """What the characters mean; as much of it as there is room for."""
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
    number = str(bar.job_id)
    if room >= len(number):
        label = f"{number} {plain(name, 60)}".strip() if room > len(number) + 2 else number
        canvas.write(begin, label if width(label) <= room else fit(label, room), style)


def _against(view: GpuView, marks: Marks) -> tuple[str, str] | None:
    """Why no job starts there, as a character and in words; None where one may, or runs."""
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
    """A line of cells that is painted over."""

    def __init__(self, cells: int) -> None:
        self._cells: list[Span] = [(" ", PLAIN)] * cells

    def put(self, x: int, character: str, style: Style) -> None:
        """One character of one cell; nothing where that is out of sight."""
        if 0 <= x < len(self._cells):
            self._break_wide(x)
            self._cells[x] = (character, style)

    def fill(self, first: int, last: int, character: str, style: Style, label: str = "", ink: Style = PLAIN) -> None:
        """The same character from `first` up to `last`, with words upon it where there is room."""
        for x in range(max(0, first), min(last, len(self._cells))):
            self.put(x, character, style)
        begin, room = max(0, first), min(last, len(self._cells)) - max(0, first)
        if label and room >= min(width(label), 8):
            self.write(begin, label if width(label) <= room else fit(label, room), ink)

    def write(self, x: int, words: str, style: Style) -> None:
        """Words, from a cell on; wide characters take two."""
        for character in words:
            cells = width(character)
            if cells and x + cells <= len(self._cells):
                self.put(x, character, style)
                if cells == 2:
                    self.put(x + 1, " ", style)
                    self._cells[x + 1] = ("", style)
            x += cells

    def _break_wide(self, x: int) -> None:
        """What is painted upon half of a wide character leaves a blank of the other half."""
        if self._cells[x][0] == "" and x:
            self._cells[x - 1] = (" ", self._cells[x - 1][1])
        if x + 1 < len(self._cells) and self._cells[x + 1][0] == "":
            self._cells[x + 1] = (" ", self._cells[x + 1][1])

    def spans(self) -> Cell:
        """Runs of one style."""
        found: list[tuple[list[str], Style]] = []
        for character, style in self._cells:
            if found and found[-1][1] == style:
                found[-1][0].append(character)
            else:
                found.append(([character], style))
        return tuple(("".join(characters), style) for characters, style in found)


def lanes(bars: Iterable[Bar]) -> list[list[Bar]]:
    """The bars of one GPU in as few lines as keep them apart: one, unless jobs share it."""
    found: list[list[Bar]] = []
    for bar in sorted(bars, key=lambda bar: bar.start):
        lane = next((lane for lane in found if lane[-1].end <= bar.start), None)
        if lane is None:
            found.append([bar])
        else:
            lane.append(bar)
    return found or [[]]
