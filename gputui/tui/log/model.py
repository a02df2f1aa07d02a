"""Model of one log on the screen: its lines, which of them are visible, and the searches in them."""

from __future__ import annotations

from gputui.tui.log.buffer import LogBuffer
from gputui.tui.log.follower import TAIL
from gputui.tui.log.painter import LogPainter
from gputui.tui.log.search import LogSearch
from gputui.tui.log.whole import EarlierLines
from gputui.tui.log.window import LineSelection, LogWindow, ShownLines, VisibleRow


class LogModel:
    """Lines, window, search and selection of one log; a new one is made for each log that is followed."""

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
        """The oldest line is the log's first."""
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
        """Return whether nothing came before the oldest line."""
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
        """Return the numbers of the selected lines, or else of the visible ones."""
        if self.picked.is_on:
            numbers = self.picked.numbers(self.lines)
        else:
            numbers = list(dict.fromkeys(row.number for row in self.rows))
        return [number for number in numbers if self.buffer.holds(number)]
