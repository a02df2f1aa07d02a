"""Finds the lines of a log that have something in them, a little at a time."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable

from gputui.tui.log.buffer import LogBuffer
from gputui.tui.log.outside import Outside
from gputui.tui.log.pattern import TooSlow, impatient, text_of
from gputui.tui.present.log_stamp import without_stamp

_BLOCK = 200
"""Lines between two looks at the clock."""


class Finder:
    """The numbers of the lines for which a test holds; it keeps up with a log that grows at both ends."""

    def __init__(self, test: Callable[[str], bool], start: int, is_stamped: Callable[[], bool] = lambda: False) -> None:
        self._test = test
        self._is_stamped = is_stamped
        self.hits: list[int] = []
        """In order."""
        self.fault = ""
        """Why it looks no further."""
        self.changes = 0
        """Grows whenever hits come or go."""
        self.outside: Outside | None = None
        """Hits before the lines in memory; None while all of the log is in memory."""
        self.missed = 0
        """Lines that left memory before they were looked at."""
        self._low = self._high = start
        self._first: int | None = None
        """Number of the oldest line in memory when it was last looked."""

    def is_done(self, buffer: LogBuffer) -> bool:
        """Whether every line that is kept was looked at."""
        return bool(self.fault) or (self._low <= buffer.first and self._high >= buffer.end)

    def step(self, buffer: LogBuffer, seconds: float) -> bool:
        """Look at lines for so long at most; whether hits came or went."""
        before = self.changes
        self._drop(buffer.first)
        deadline = time.monotonic() + seconds
        try:
            with impatient():
                while not self.is_done(buffer) and time.monotonic() < deadline:
                    self._look(buffer)
        except TooSlow:
            self.fault = "takes too long"
        return self.changes != before

    @property
    def count(self) -> int:
        """How many hits are known, in memory and before."""
        return len(self.hits) + (self.outside.count if self.outside is not None else 0)

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be found before the lines in memory."""
        return self.outside is None or self.outside.is_over

    def next_hit(self, buffer: LogBuffer, start: int, step: int) -> tuple[int | None, bool]:
        """Return the nearest hit behind that line, or before it; and whether it is known to be that."""
        return self._behind(buffer, start) if step > 0 else self._before(buffer, start)

    def _behind(self, buffer: LogBuffer, start: int) -> tuple[int | None, bool]:
        if self.outside is not None and start < buffer.first - 1:
            if not self.outside.is_over:
                return None, False
            if (hit := self.outside.after(start)) is not None:
                return hit, True
        at = bisect_right(self.hits, start)
        hit = self.hits[at] if at < len(self.hits) else None
        is_nearest = hit is not None and self._low <= max(start + 1, buffer.first)
        return hit, is_nearest or self.is_done(buffer)

    def _before(self, buffer: LogBuffer, start: int) -> tuple[int | None, bool]:
        if at := bisect_left(self.hits, start):
            return self.hits[at - 1], self._high >= min(start, buffer.end) or self.is_done(buffer)
        if not self.is_done(buffer) or not self.is_over:
            return None, False
        return (None if self.outside is None else self.outside.before(start)), True

    def rank(self, number: int) -> int | None:
        """Which hit it is, from 1; None if it is none."""
        outside = self.outside
        if outside is not None and (rank := outside.rank(number)) is not None:
            return rank
        at = bisect_left(self.hits, number)
        known = at < len(self.hits) and self.hits[at] == number
        return at + 1 + (outside.count if outside is not None else 0) if known else None

    def _look(self, buffer: LogBuffer) -> None:
        """Look at the next lines: newer ones first."""
        if self._high < buffer.end:
            until = min(self._high + _BLOCK, buffer.end)
            found = self._found(buffer, self._high, until)
            self._high = until
            self.hits += found
        else:
            start = max(buffer.first, self._low - _BLOCK)
            found = self._found(buffer, start, self._low)
            self._low = start
            self.hits[:0] = found
        self.changes += bool(found)

    def _found(self, buffer: LogBuffer, start: int, end: int) -> list[int]:
        test = self._test
        if self._is_stamped():
            return [number for number, raw in buffer.between(start, end) if test(text_of(without_stamp(raw)))]
        return [number for number, raw in buffer.between(start, end) if test(text_of(raw))]

    def _drop(self, first: int) -> None:
        """Take the hits of lines that have left memory for hits before it."""
        self._count_missed(first)
        self._low, self._high = max(self._low, first), max(self._high, first)
        if gone := bisect_left(self.hits, first):
            if self.outside is None:
                self.outside = Outside()
            self.outside.take_gone(self.hits[:gone])
            del self.hits[:gone]
            self.changes += 1
        if self.outside is not None:
            self.outside.forget_from(self._low)

    def _count_missed(self, first: int) -> None:
        """Count the lines that have left memory before they were looked at, and that no search of older ones finds."""
        if self._first is not None:
            start = self._first if self.outside is None else max(self._first, self.outside.border)
            self.missed += max(0, min(first, self._low) - start)
        self._first = first
