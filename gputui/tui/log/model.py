"""Model of one displayed log: its lines, the visible ones, and the searches in them."""

from __future__ import annotations

from collections import OrderedDict

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from gputui.domain.log_errors import error_in
from gputui.domain.text import ELLIPSIS
from gputui.tui.log.buffer import LogBuffer
from gputui.tui.log.follower import TAIL
from gputui.tui.log.pattern import Pattern, TooSlow, impatient
from gputui.tui.log.search import LogSearch
from gputui.tui.log.whole import EarlierLines
from gputui.tui.log.window import LineSelection, LogWindow, ShownLines, VisibleRow
from gputui.tui.present.cells import Span, segments
from gputui.tui.present.log import MOST, highlighted, log_spans, stamp_words, without_stamp
from gputui.tui.present.style import AMBER, DIM, GROUND, PICKED, RED_STRONG, WARN


class LogModel:
    """Lines, window, search and selection of one log; each followed log gets a new one."""

    def __init__(self) -> None:
        self.buffer = LogBuffer()
        self.lines = ShownLines(self.buffer)
        self.painter = LogPainter(self.buffer, self.lines)
        self.window = LogWindow(self.lines, self.painter.rows_of)
        self.search = LogSearch(self.buffer, self.lines, self.window)
        self.search.is_stamped = lambda: self.painter.is_stamped
        self.search.is_whole = lambda: self.is_whole
        self.picked = LineSelection()
        self.rows: list[VisibleRow] = []
        """Visible rows."""
        self._starts = False
        """True if the oldest line is the log's first."""
        self._first = 0
        self.was_extended = False
        """True if earlier lines were loaded."""
        self.note = ""
        """Note for the title: work in progress, or an error."""

    def look_like(self, other: LogModel) -> None:
        """Copy the settings of another view."""
        self.painter.wraps, self.painter.shows_stamps = other.painter.wraps, other.painter.shows_stamps
        self.painter.width, self.window.height = other.painter.width, other.window.height

    @property
    def is_whole(self) -> bool:
        """Return whether the oldest line is the log's first."""
        buffer = self.buffer
        return self._starts or (buffer.first == 0 and buffer.end < TAIL and not buffer.skipped)

    def put_before(self, earlier: EarlierLines) -> None:
        """Add earlier lines; visible lines keep their places."""
        self.buffer.keeps_earlier = self.was_extended = True
        came = len(earlier.lines)
        kept = self.buffer.add_earlier(earlier.lines)
        self._starts, self._first = earlier.is_start and kept == came, self.buffer.first

    def settle(self) -> None:
        """Update the visible rows."""
        if self.buffer.keeps_earlier and self.window.follows and self.search.is_done:
            self.buffer.keeps_earlier = False
            self.buffer.trim()
        if self.window.follows:
            self.lines.leave_region()
        self._starts = self._starts and self.buffer.first == self._first
        self.painter.found, self.painter.kept = self.search.pattern, self.search.narrowed
        self.window.settle()
        self.rows = self.window.rows()

    def shown_numbers(self) -> list[int]:
        """Return the numbers of the selected lines, else of the visible ones."""
        if self.picked.is_on:
            numbers = self.picked.numbers(self.lines)
        else:
            numbers = list(dict.fromkeys(row.number for row in self.rows))
        return [number for number in numbers if self.buffer.holds(number)]


_GROUND = Style(bgcolor=GROUND)
_PICKED = Style(bgcolor=PICKED)
_FOUND = Style(color=GROUND, bgcolor=WARN, bold=True)
_KEPT = Style(underline=True, bold=True)
STRIPS = 500
_MOMENT = 0.02
"""Seconds of CPU time in which hits in one line must be highlighted."""


class LogPainter:
    """Renders rows as strips. Its owner sets the attributes that affect rendering, then calls `forget`."""

    def __init__(self, buffer: LogBuffer, lines: ShownLines) -> None:
        self._buffer = buffer
        self._lines = lines
        self.width = 0
        self.left = 0
        self.wraps = False
        self.is_stamped = False
        """True if the lines begin with a time."""
        self.shows_stamps = False
        self.found: Pattern | None = None
        """Pattern of the search, highlighted."""
        self.kept: Pattern | None = None
        """Pattern of the filter, underlined."""
        self.strips: OrderedDict[tuple[int, bool], tuple[Strip, bool]] = OrderedDict()
        """Cache of rendered lines, each with whether it reports an error, by number and selection."""

    def forget(self) -> None:
        """Clear the cache: all lines are rendered again."""
        self.strips.clear()

    def rows_of(self, number: int) -> int:
        """Return the number of rows that the line takes."""
        if not self.wraps or self._room <= 0:
            return 1
        strip, _ = self._drawn(number, picked=False)
        return max(1, -(-strip.cell_length // self._room))

    def row(self, row: VisibleRow, *, picked: bool, marked: bool) -> Strip:
        """Return one row of a line, as wide as the pane."""
        ground = _PICKED if picked else _GROUND
        if not self._buffer.holds(row.number):
            return Strip.blank(self.width, _GROUND)
        strip, is_error = self._drawn(row.number, picked=picked)
        start = row.part * self._room if self.wraps else self.left
        shown = strip.crop(start, start + self._room) if self._room > 0 else strip
        if not self.wraps and 0 < self._room < strip.cell_length - start:
            kept = shown.crop(0, self._room - 1).adjust_cell_length(self._room - 1, ground)
            shown = Strip([*kept, Segment(ELLIPSIS, ground + DIM)], self._room)
        sign = self._sign(row, is_error=is_error, marked=marked)
        return Strip([Segment(sign[0], ground + sign[1]), *shown]).adjust_cell_length(self.width, ground)

    def rest(self, line: bytes) -> Strip:
        """Return the row of a line that has not ended yet; long ones are cut."""
        spans = [(" ", DIM), *log_spans(without_stamp(line) if self.is_stamped else line)]
        return Strip(segments(spans, _GROUND)).adjust_cell_length(self.width, _GROUND)

    @property
    def _room(self) -> int:
        return self.width - 1

    def _sign(self, row: VisibleRow, *, is_error: bool, marked: bool) -> Span:
        """Return the sign before the line: the current hit, an error, or a gap above."""
        if row.part:
            return " ", DIM
        if marked:
            return "▶", AMBER
        if is_error:
            return "✗", RED_STRONG
        return ("┄" if self._lines.is_gap_before(self._lines.index(row.number)) else " "), DIM

    def _drawn(self, number: int, *, picked: bool) -> tuple[Strip, bool]:
        known = self.strips.get((number, picked))
        if known is None:
            known = self.strips[number, picked] = self._draw(number, picked=picked)
            while len(self.strips) > STRIPS:
                self.strips.popitem(last=False)
        return known

    def _draw(self, number: int, *, picked: bool) -> tuple[Strip, bool]:
        raw = self._buffer.line(number)
        content = without_stamp(raw) if self.is_stamped else raw
        spans = log_spans(content, self._buffer.style_before(number))
        text = "".join(value for value, _ in spans)
        for pattern, style in ((self.kept, _KEPT), (self.found, _FOUND)):
            spans = highlighted(spans, _places(pattern, text), style)
        if self.is_stamped and self.shows_stamps:
            spans.insert(0, (stamp_words(raw), DIM))
        if len(raw) >= MOST:  # the rest was not kept
            spans.append((ELLIPSIS, DIM))
        return Strip(segments(spans, _PICKED if picked else _GROUND)), error_in(text) is not None


def _places(pattern: Pattern | None, text: str) -> list[tuple[int, int]]:
    if pattern is None:
        return []
    try:
        with impatient(_MOMENT):
            return pattern.places(text)
    except TooSlow:
        return []
