"""Finds the lines of a log that have something in them, a little at a time."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable

from gputui.tui.log.buffer import LogBuffer
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
        self._low = self._high = start

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

    def knows(self, number: int, step: int) -> bool:
        """Whether a hit that it has on that side of the line is the nearest one."""
        return self._low <= number + 1 if step > 0 else self._high >= number

    def after(self, number: int) -> int | None:
        """The first hit behind that line."""
        at = bisect_right(self.hits, number)
        return self.hits[at] if at < len(self.hits) else None

    def before(self, number: int) -> int | None:
        """The last hit before that line."""
        at = bisect_left(self.hits, number)
        return self.hits[at - 1] if at else None

    def rank(self, number: int) -> int | None:
        """Which hit it is, from 1; None if it is none."""
        at = bisect_left(self.hits, number)
        return at + 1 if at < len(self.hits) and self.hits[at] == number else None

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
        """Forget the lines that are not kept any more."""
        self._low, self._high = max(self._low, first), max(self._high, first)
        if gone := bisect_left(self.hits, first):
            del self.hits[:gone]
            self.changes += 1
