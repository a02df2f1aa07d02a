"""The lines of a log that are kept: bounded, and each within reach by its number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.style import Style

from gputui.tui.present.log import style_after
from gputui.tui.present.style import PLAIN

KEPT_LINES = 20_000
KEPT_BYTES = 8 * 1024**2
EARLIER = 6
"""So many times as much is kept while earlier output is looked at."""


class LogBuffer:
    """The last lines of a log, bounded in number and in bytes. Lines keep their numbers when older ones go.

    Number 0 is the first line that was added; those loaded before it count down.
    """

    def __init__(self, lines: int = KEPT_LINES, size: int = KEPT_BYTES) -> None:
        self._lines: list[bytes] = []
        self._gone = 0
        """Entries at the head of the list that are dropped already: a list is slow at its head."""
        self._most_lines = lines
        self._most_bytes = size
        self._bytes = 0
        self._styles: dict[int, Style] = {}
        self._style = PLAIN
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

    def add(self, lines: list[bytes], skipped: int = 0) -> None:
        """Append lines; the oldest make room."""
        self.skipped += skipped
        if skipped:
            self._style = PLAIN
        for number, line in enumerate(lines, self.end):
            self._note_style(number, line)
        self._lines.extend(lines)
        self._bytes += sum(map(len, lines))
        self.trim()

    def add_earlier(self, lines: Sequence[bytes]) -> int:
        """Put lines before the oldest, as many as there is room for; how many that were."""
        room, kept = self._most_bytes * EARLIER - self._bytes, 0
        for line in reversed(lines[-self.room :] if self.room else ()):
            room -= len(line)
            if room < 0:
                break
            kept += 1
        taken = list(lines[len(lines) - kept :])
        self._lines[: self._gone] = taken
        self._gone = 0
        self._bytes += sum(map(len, taken))
        self.first -= kept
        self._note_earlier_styles(taken)
        return kept

    def trim(self) -> None:
        """Let the oldest go until the rest is within bounds."""
        most = EARLIER if self.keeps_earlier else 1
        gone = self._gone
        while len(self._lines) - gone > self._most_lines * most or (
            self._bytes > self._most_bytes * most and gone < len(self._lines)
        ):
            self._bytes -= len(self._lines[gone])
            self._lines[gone] = b""
            self._styles.pop(self.first, None)
            self.first += 1
            gone += 1
        self._gone = gone
        if gone * 2 > len(self._lines):
            del self._lines[:gone]
            self._gone = 0

    def style_before(self, number: int) -> Style:
        """What the lines before it left switched on: colours last until they are reset, as on a terminal."""
        return self._styles.get(number, PLAIN)

    def line(self, number: int) -> bytes:
        """The line of that number; it must be kept."""
        return self._lines[self._gone + number - self.first]

    def between(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """The lines from number `start` to before `end`, with their numbers."""
        start, end = max(start, self.first), min(end, self.end)
        if start >= end:
            return iter(())
        offset = self._gone - self.first
        return iter(list(enumerate(self._lines[start + offset : end + offset], start)))

    def _note_style(self, number: int, line: bytes) -> None:
        if self._style is not PLAIN:
            self._styles[number] = self._style
        if b"\x1b" in line:
            self._style = style_after(line, self._style)

    def _note_earlier_styles(self, lines: list[bytes]) -> None:
        """As if they had been there before; what they leave on ends where the lines begin that were there first."""
        style = PLAIN
        for number, line in enumerate(lines, self.first):
            if style is not PLAIN:
                self._styles[number] = style
            if b"\x1b" in line:
                style = style_after(line, style)
