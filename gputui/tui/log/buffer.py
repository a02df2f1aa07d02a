"""The lines of a log that are kept: bounded, and each within reach by its number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.style import Style

from gputui.tui.log.outside import Island
from gputui.tui.present.log import styles_before
from gputui.tui.present.style import PLAIN

KEPT_LINES = 20_000
KEPT_BYTES = 8 * 1024**2
EARLIER = 6
"""So many times as much is kept while earlier output is looked at."""


class LogBuffer:
    """The last lines of a log, bounded in number and in bytes. Lines keep their numbers when older ones go.

    Number 0 is the first line that was added; those loaded before it count down. Beside them it holds what a search
    brought back from the rest of the log: a part of it, and single lines.
    """

    def __init__(self, lines: int = KEPT_LINES, size: int = KEPT_BYTES) -> None:
        self._lines: list[bytes] = []
        self._gone = 0
        """Entries at the head of the list that are dropped already: a list is slow at its head."""
        self._most_lines = lines
        self._most_bytes = size
        self._bytes = 0
        self._styles: list[Style] = []
        """In which style each line begins."""
        self.island: Island | None = None
        """A part of the log before these lines."""
        self.found: dict[int, bytes] = {}
        """Lines before these that a filter shows, by number."""
        self.on_leave: Callable[[int, Sequence[bytes]], None] | None = None
        """Called with the lines that make room, and the number of the first."""
        self.gap: int | None = None
        """Number of the line before which others were skipped last."""
        self.first = 0
        """Number of the oldest line that is kept."""
        self.skipped = 0
        """Lines that came faster than they could be taken."""
        self.keeps_earlier = False
        """More is kept for now: somebody looks at what was loaded from before."""

    @property
    def end(self) -> int:
        """Number of the line that comes next."""
        return self.first + len(self._lines) - self._gone

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return self._bytes

    @property
    def room(self) -> int:
        """How many earlier lines may be put before these."""
        return max(0, self._most_lines * EARLIER - (self.end - self.first))

    def add(self, lines: list[bytes], skipped: int = 0, styles: Sequence[Style] | None = None) -> None:
        """Append lines, with the style in which each begins; the oldest make room."""
        self.skipped += skipped
        if skipped:
            self.gap = self.end
        self._styles.extend(styles_before(lines) if styles is None else styles)
        self._lines.extend(lines)
        self._bytes += sum(map(len, lines))
        self.trim()

    def add_earlier(self, lines: Sequence[bytes], styles: Sequence[Style] | None = None) -> int:
        """Put lines before the oldest, as many as there is room for; how many that were."""
        kept = self._fitting(lines)
        start = len(lines) - kept
        taken = list(lines[start:])
        self._lines[: self._gone] = taken
        self._styles[: self._gone] = styles_before(taken) if styles is None else styles[start:]
        self._gone = 0
        self._bytes += sum(map(len, taken))
        self.first -= kept
        return kept

    def _fitting(self, lines: Sequence[bytes]) -> int:
        """Return how many of the lines, from the last, there is room for."""
        room, most = self._most_bytes * EARLIER - self._bytes, min(self.room, len(lines))
        if sum(map(len, lines)) <= room:
            return most
        kept = 0
        while kept < most and (room := room - len(lines[-kept - 1])) >= 0:
            kept += 1
        return kept

    def trim(self) -> None:
        """Let the oldest go until the rest is within bounds."""
        most = EARLIER if self.keeps_earlier else 1
        excess = max(0, self.end - self.first - self._most_lines * most)
        too_much = self._bytes - self._most_bytes * most
        at = self._gone + excess
        too_much -= sum(map(len, self._lines[self._gone : at]))
        while too_much > 0 and at < len(self._lines):
            too_much -= len(self._lines[at])
            at += 1
        self._drop(at - self._gone)

    def drop_before_gap(self) -> None:
        """Let go of what came before the last lines that were skipped: it is read anew where it is wanted."""
        if self.gap is not None and self.gap > self.first:
            self._drop(self.gap - self.first)
        self.gap = None

    def _drop(self, count: int) -> None:
        """Let so many of the oldest go."""
        if count <= 0:
            return
        start, end = self._gone, self._gone + count
        if self.on_leave is not None:
            self.on_leave(self.first, self._lines[start:end])
        self._bytes -= sum(map(len, self._lines[start:end]))
        self._lines[start:end] = [b""] * count
        self._gone, self.first = end, self.first + count
        if self._gone * 2 > len(self._lines):
            del self._lines[: self._gone], self._styles[: self._gone]
            self._gone = 0

    def holds(self, number: int) -> bool:
        """Return whether the line is here."""
        return self.first <= number < self.end or self.is_on_island(number) or number in self.found

    def holds_around(self, number: int) -> bool:
        """Return whether the line is here among its neighbours."""
        return self.first <= number < self.end or self.is_on_island(number)

    def is_on_island(self, number: int) -> bool:
        """Return whether the line is in the part that was loaded from before."""
        return self.island is not None and self.island.first <= number < self.island.end

    def style_before(self, number: int) -> Style:
        """What the lines before it left switched on: colours last until they are reset, as on a terminal."""
        if self.first <= number < self.end:
            return self._styles[self._gone + number - self.first]
        island = self.island
        if island is not None and island.first <= number < island.end:
            return island.styles[number - island.first]
        return PLAIN

    def line(self, number: int) -> bytes:
        """The line of that number; it must be kept."""
        if number >= self.first:
            return self._lines[self._gone + number - self.first]
        island = self.island
        if island is not None and island.first <= number < island.end:
            return island.lines[number - island.first]
        return self.found[number]

    def between(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """The lines from number `start` to before `end`, with their numbers."""
        start, end = max(start, self.first), min(end, self.end)
        if start >= end:
            return iter(())
        offset = self._gone - self.first
        return iter(list(enumerate(self._lines[start + offset : end + offset], start)))
