"""Visible rows of a log, and the selection. Wrapped lines take several rows; only visible lines are measured."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence

from msgspec import Struct

from gputui.tui.log.buffer import LogBuffer
from gputui.tui.log.finder import Finder
from gputui.tui.log.pattern import text_of
from gputui.tui.present.log import without_stamp

MOST_CONTEXT = 20


class ShownLines:
    """The shown lines, in order. Lines keep their numbers, even if others are left out."""

    def __init__(self, buffer: LogBuffer) -> None:
        self._buffer = buffer
        self.filter: Finder | None = None
        """Finder of the shown lines; None: all lines are shown."""
        self.context = 0
        """Number of lines shown before and after each match."""
        self._known: tuple[object, ...] = ()
        self._around: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, index: int) -> int:
        """Return the number of the shown line at that index."""
        return self._numbers[index]

    def index(self, number: int) -> int:
        """Return the index of the line among the shown ones; of the next one if it is not shown."""
        numbers = self._numbers
        if isinstance(numbers, range):
            return min(max(number - numbers.start, 0), len(numbers))
        return bisect_left(numbers, number)

    @property
    def end(self) -> int:
        """Number of the next line of the log."""
        return self._buffer.end

    def leave_region(self) -> None:
        """Show the lines in memory again."""
        self._buffer.region = None

    def is_gap_before(self, index: int) -> bool:
        """Return whether lines are left out between that shown line and the previous one."""
        numbers = self._numbers
        return self.context > 0 and 0 < index < len(numbers) and numbers[index - 1] + 1 < numbers[index]

    @property
    def _numbers(self) -> Sequence[int]:
        if self.filter is None:
            return self._whole_lines()
        if self.context or (self.filter.outside is not None and self.filter.outside.numbers):
            return self._filtered(self.filter)
        return self.filter.hits

    @property
    def reaches_end(self) -> bool:
        """Return whether the last shown line is the log's last."""
        region = self._buffer.region
        return self.filter is not None or region is None or region.end >= self._buffer.first

    def _whole_lines(self) -> range:
        """Return the lines in memory, or those of the loaded region and what follows if they meet."""
        buffer, region = self._buffer, self._buffer.region
        if region is None:
            return range(buffer.first, buffer.end)
        return range(min(region.first, buffer.first), buffer.end if region.end >= buffer.first else region.end)

    def _filtered(self, finder: Finder) -> Sequence[int]:
        """Return the available hits, with lines around those in memory; recomputed only after changes."""
        first, end, outside = self._buffer.first, self._buffer.end, finder.outside
        known = (finder, finder.changes, self.context, first, end, outside and outside.changes)
        if known != self._known:
            older = () if outside is None else outside.numbers
            shown = array("q", [number for number in older if number in self._buffer.found])
            self._known, self._around = known, shown + around(finder.hits, self.context, first, end)
        return self._around


def around(hits: Sequence[int], context: int, first: int, end: int) -> array[int]:
    """Return the numbers with those up to `context` away, from `first` up to, but not including, `end`, each once."""
    numbers = array("q")
    last = first - 1
    for hit in hits:
        start, stop = max(hit - context, last + 1), min(hit + context + 1, end)
        numbers.extend(range(start, stop))
        last = max(last, stop - 1)
    return numbers


class VisibleRow(Struct, frozen=True):
    """Visible row of a line."""

    number: int
    """Number of its line."""
    part: int
    """Number of the row within its line, from 0."""


class LogWindow:
    """The visible part of the shown lines; stays on the same line when others are added, dropped or filtered."""

    def __init__(self, lines: ShownLines, rows_of: Callable[[int], int]) -> None:
        self.lines = lines
        self._rows_of = rows_of
        self.height = 0
        self.follows = True
        """True if the end stays visible."""
        self.top = 0
        """Number of the first visible line."""
        self.part = 0
        """Number of that line's first visible row."""

    def move(self, rows: int) -> None:
        """Scroll; following resumes at the end."""
        index, part = self._index, self.part + rows
        while part < 0 and index > 0:
            index -= 1
            part += self._rows(index)
        while index < len(self.lines) - 1 and part >= self._rows(index):
            part -= self._rows(index)
            index += 1
        self._stand(index, max(0, part))
        self._judge()

    def to_first(self) -> None:
        """Go to the oldest line."""
        self._stand(0, 0)
        self._judge()

    def to_last(self) -> None:
        """Go to the end and follow it."""
        self.lines.leave_region()
        self.follows = True
        self.settle()

    def show(self, number: int) -> None:
        """Show a line at a third of the window's height, unless it is already well inside."""
        index = self.lines.index(number)
        if number in {row.number for row in self.rows()[1:-1]}:
            self.follows = False
            return
        self._stand(min(index, max(0, len(self.lines) - 1)), 0)
        self.follows = False
        self.move(-(self.height // 3))
        self.follows = False
        self.settle()

    def settle(self) -> None:
        """Keep the window between the oldest line and the last page."""
        if not self.lines:
            self.top = self.part = 0
            return
        if self.height <= 0:
            return
        index, part = self._last_page()
        if not self.follows and (self._index, self.part) <= (index, part):
            if self.lines.number(self._index) != self.top:
                self._stand(self._index, 0)
            return
        self._stand(index, part)

    def rows(self) -> list[VisibleRow]:
        """Return the visible rows from the top."""
        rows: list[VisibleRow] = []
        index, part = self._index, self.part
        while index < len(self.lines) and len(rows) < self.height:
            number = self.lines.number(index)
            count = self._rows(index)
            rows += [VisibleRow(number, i) for i in range(min(part, count - 1), count)]
            index, part = index + 1, 0
        return rows[: self.height]

    @property
    def below(self) -> int:
        """Number of lines that begin below the window."""
        rows = self.rows()
        if rows and not self.lines.reaches_end:
            return self.lines.end - rows[-1].number - 1
        return len(self.lines) - self.lines.index(rows[-1].number) - 1 if rows else 0

    @property
    def is_at_first(self) -> bool:
        """Return whether nothing is above the window."""
        return self._index == 0 and self.part == 0

    @property
    def is_at_last(self) -> bool:
        """Return whether nothing is below."""
        return (self._index, self.part) >= self._last_page()

    @property
    def _index(self) -> int:
        return self.lines.index(self.top)

    def _rows(self, index: int) -> int:
        return max(1, self._rows_of(self.lines.number(index)))

    def _stand(self, index: int, part: int) -> None:
        self.top = self.lines.number(index) if index < len(self.lines) else 0
        self.part = part

    def _judge(self) -> None:
        """Follow the end if the window is at it."""
        self.follows = self.is_at_last and self.lines.reaches_end
        self.settle()

    def _last_page(self) -> tuple[int, int]:
        """Return the position at which the last line is the last visible one."""
        index, room = len(self.lines), self.height
        while index > 0 and room > 0:
            index -= 1
            room -= self._rows(index)
        return index, max(0, -room)


MOST_COPIED = 100_000
"""Maximum number of bytes that are copied: terminals drop longer sequences completely."""


class LineSelection:
    """Selection from one shown line to another."""

    def __init__(self) -> None:
        self.start: int | None = None
        self.head = 0

    def begin(self, number: int) -> None:
        """Start the selection at a line."""
        self.start = self.head = number

    def extend(self, number: int) -> None:
        """Extend the selection to a line."""
        if self.start is None:
            self.start = number
        self.head = number

    def drop(self) -> None:
        """End the selection."""
        self.start = None

    @property
    def is_on(self) -> bool:
        """Return whether any line is selected."""
        return self.start is not None

    def has(self, number: int) -> bool:
        """Return whether the line is selected."""
        return self.start is not None and min(self.start, self.head) <= number <= max(self.start, self.head)

    def numbers(self, lines: ShownLines) -> list[int]:
        """Return the numbers of the lines that are both shown and selected."""
        if self.start is None:
            return []
        first, last = sorted((self.start, self.head))
        return [number for i in range(lines.index(first), len(lines)) if (number := lines.number(i)) <= last]


def copied_text(buffer: LogBuffer, numbers: list[int], *, is_stamped: bool) -> tuple[str, int]:
    """Return the lines without colours, and the number of lines that fit into the clipboard's limit."""
    kept: list[str] = []
    room = MOST_COPIED
    for number in numbers:
        raw = buffer.line(number)
        text = text_of(without_stamp(raw) if is_stamped else raw)
        room -= len(text.encode("utf-8", "replace")) + 1
        if room < 0:
            break
        kept.append(text)
    return "\n".join(kept), len(kept)
