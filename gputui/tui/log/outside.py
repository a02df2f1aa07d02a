"""What a search brings back from the part of a log that is not in memory: its hits, and their surroundings."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.style import Style

MOST_HITS = 1_000_000
"""Hits whose places are kept; older ones are counted."""


@dataclass
class Outside:
    """Numbers of the lines that match, older than those in memory; in order."""

    numbers: array[int] = field(default_factory=lambda: array("q"))
    uncounted: int = 0
    """Older hits whose places are not kept."""
    border: int = 0
    """Number of the first line that was in memory when older ones began to be searched."""
    shift: int | None = None
    """Place of a line from the start of the log, less its number; None while that is not known."""
    progress: str = ""
    """How far the search is, in words; empty when it has ended."""
    fault: str = ""
    """Why older lines are not searched."""
    changes: int = 0
    """Grows whenever hits come."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be found."""
        return not self.progress

    @property
    def count(self) -> int:
        """How many hits there are."""
        return self.uncounted + len(self.numbers)

    def after(self, number: int) -> int | None:
        """Return the first hit behind that line."""
        at = bisect_right(self.numbers, number)
        return self.numbers[at] if at < len(self.numbers) else None

    def before(self, number: int) -> int | None:
        """Return the last hit before that line."""
        at = bisect_left(self.numbers, number)
        return self.numbers[at - 1] if at else None

    def rank(self, number: int) -> int | None:
        """Return which hit it is, from 1; None if it is none."""
        at = bisect_left(self.numbers, number)
        return self.uncounted + at + 1 if at < len(self.numbers) and self.numbers[at] == number else None

    def take_gone(self, hits: Sequence[int]) -> None:
        """Add hits whose lines have just left memory."""
        self.numbers.extend(hits)
        self.changes += 1
        self._limit()

    def finish(self, numbers: array[int], uncounted: int, shift: int) -> None:
        """Take what a search of all older lines has found."""
        self.numbers = numbers + self.numbers  # what left memory meanwhile is newer
        self.uncounted, self.shift, self.progress = uncounted, shift, ""
        self.changes += 1
        self._limit()

    def fail(self, fault: str) -> None:
        """Give the search up."""
        self.fault, self.progress = fault, ""
        self.changes += 1

    def forget_from(self, number: int) -> None:
        """Drop the hits from that line on: they are found in memory."""
        if self.numbers and self.numbers[-1] >= number:
            del self.numbers[bisect_left(self.numbers, number) :]
            self.changes += 1

    def _limit(self) -> None:
        if (excess := len(self.numbers) - MOST_HITS) > 0:
            del self.numbers[:excess]
            self.uncounted += excess


@dataclass(frozen=True)
class Island:
    """A part of the log that lies before the lines in memory."""

    first: int
    """Number of its first line."""
    lines: list[bytes]
    styles: list[Style]
    is_start: bool
    """The log begins with it."""

    @property
    def end(self) -> int:
        """Number of the line behind it."""
        return self.first + len(self.lines)
