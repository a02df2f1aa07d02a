"""Which lines of a log are shown: all that are kept, or those that match with some around them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from gputui.tui.log.buffer import LogBuffer
from gputui.tui.log.finder import Finder

MOST_CONTEXT = 20


class LogLines:
    """The shown lines, in order. A line is known by its number, whatever is left out."""

    def __init__(self, buffer: LogBuffer) -> None:
        self._buffer = buffer
        self.filter: Finder | None = None
        """Only what it finds is shown."""
        self.context = 0
        """Lines shown before and after each that matches."""
        self._known: tuple[object, ...] = ()
        self._around: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, index: int) -> int:
        """The number of the line that is shown at that place."""
        return self._numbers[index]

    def index(self, number: int) -> int:
        """Where that line is shown; if it is not, the next that is."""
        numbers = self._numbers
        if isinstance(numbers, range):
            return min(max(number - numbers.start, 0), len(numbers))
        return bisect_left(numbers, number)

    @property
    def end(self) -> int:
        """Number of the line that comes next in the log."""
        return self._buffer.end

    def leave_island(self) -> None:
        """Show the lines in memory again."""
        self._buffer.island = None

    def is_gap_before(self, index: int) -> bool:
        """Whether lines are left out just before that one, between it and another that is shown."""
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
        """Whether the last line shown is the log's last."""
        island = self._buffer.island
        return self.filter is not None or island is None or island.end >= self._buffer.first

    def _whole_lines(self) -> range:
        """Return the lines in memory; else those of the part that is looked at, and what follows where they meet."""
        buffer, island = self._buffer, self._buffer.island
        if island is None:
            return range(buffer.first, buffer.end)
        return range(min(island.first, buffer.first), buffer.end if island.end >= buffer.first else island.end)

    def _filtered(self, finder: Finder) -> Sequence[int]:
        """Return the hits whose text is here, with lines around those in memory; made anew only when any change."""
        first, end, outside = self._buffer.first, self._buffer.end, finder.outside
        known = (finder, finder.changes, self.context, first, end, outside and outside.changes)
        if known != self._known:
            older = [] if outside is None else [number for number in outside.numbers if number in self._buffer.found]
            self._known, self._around = known, [*older, *around(finder.hits, self.context, first, end)]
        return self._around


def around(hits: Sequence[int], context: int, first: int, end: int) -> list[int]:
    """The numbers with those up to `context` away, from `first` to before `end`, each once."""
    numbers: list[int] = []
    last = first - 1
    for hit in hits:
        start, stop = max(hit - context, last + 1), min(hit + context + 1, end)
        numbers.extend(range(start, stop))
        last = max(last, stop - 1)
    return numbers
