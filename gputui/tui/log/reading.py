"""One log as it is read on the screen: its lines, which of them are in sight, and what is looked for in them."""

from __future__ import annotations

from gputui.tui.log.buffer import LogBuffer
from gputui.tui.log.earlier import Earlier
from gputui.tui.log.follower import TAIL
from gputui.tui.log.lines import LogLines
from gputui.tui.log.painter import LogPainter
from gputui.tui.log.pick import LogPick
from gputui.tui.log.search import LogSearch
from gputui.tui.log.window import LogWindow, Row


class LogReading:
    """Made anew for each log that is followed."""

    def __init__(self) -> None:
        self.buffer = LogBuffer()
        self.lines = LogLines(self.buffer)
        self.painter = LogPainter(self.buffer, self.lines)
        self.window = LogWindow(self.lines, self.painter.rows_of)
        self.search = LogSearch(self.buffer, self.lines, self.window)
        self.search.is_stamped = lambda: self.painter.is_stamped
        self.search.is_whole = lambda: self.is_whole
        self.picked = LogPick()
        self.rows: list[Row] = []
        """What is in sight."""
        self._starts = False
        """The oldest line is the log's first."""
        self._first = 0
        self.was_extended = False
        """What came before was loaded once."""
        self.note = ""
        """What is under way with it, or went wrong."""

    def look_like(self, other: LogReading) -> None:
        """Show it the way the other is shown."""
        self.painter.wraps, self.painter.shows_stamps = other.painter.wraps, other.painter.shows_stamps
        self.painter.width, self.window.height = other.painter.width, other.window.height

    @property
    def is_whole(self) -> bool:
        """Whether nothing came before the oldest line."""
        buffer = self.buffer
        return self._starts or (buffer.first == 0 and buffer.end < TAIL and not buffer.skipped)

    def put_before(self, earlier: Earlier) -> None:
        """Add what came before; what is in sight stays there."""
        self.buffer.keeps_earlier = self.was_extended = True
        kept = self.buffer.add_earlier(earlier.lines, earlier.styles)
        self._starts, self._first = earlier.is_start and kept == len(earlier.lines), self.buffer.first

    def settle(self) -> None:
        """Work out anew what is in sight."""
        if self.buffer.keeps_earlier and self.window.follows and self.search.is_done:
            self.buffer.keeps_earlier = False
            self.buffer.trim()
        if self.window.follows:
            self.lines.leave_island()
        self._starts = self._starts and self.buffer.first == self._first
        self.painter.found, self.painter.kept = self.search.pattern, self.search.narrowed
        self.window.settle()
        self.rows = self.window.rows()

    def shown_numbers(self) -> list[int]:
        """The lines that are picked, or else those in sight."""
        if self.picked.is_on:
            numbers = self.picked.numbers(self.lines)
        else:
            numbers = list(dict.fromkeys(row.number for row in self.rows))
        return [number for number in numbers if self.buffer.holds(number)]
