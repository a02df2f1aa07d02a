"""Which rows of a log are in sight. Wrapped lines take several rows; nothing out of sight is ever measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gputui.tui.log.lines import LogLines


@dataclass(frozen=True)
class Row:
    """A row in sight."""

    number: int
    """Of its line."""
    part: int
    """Which row of that line, from 0."""


class LogWindow:
    """Stands on a line by its number, so that it stays there whatever comes, goes or is left out."""

    def __init__(self, lines: LogLines, rows_of: Callable[[int], int]) -> None:
        self.lines = lines
        self._rows_of = rows_of
        self.height = 0
        self.follows = True
        """The end stays in sight."""
        self.top = 0
        """Number of the first line in sight."""
        self.part = 0
        """Which of its rows is the first in sight."""

    def move(self, rows: int) -> None:
        """Scroll; at the end it follows again."""
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
        """To the oldest line."""
        self._stand(0, 0)
        self._judge()

    def to_last(self) -> None:
        """Follow the end."""
        self.lines.leave_island()
        self.follows = True
        self.settle()

    def show(self, number: int) -> None:
        """Have this line in sight, a third down the window, unless it is already well within."""
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

    def rows(self) -> list[Row]:
        """What is in sight, from the top."""
        rows: list[Row] = []
        index, part = self._index, self.part
        while index < len(self.lines) and len(rows) < self.height:
            number = self.lines.number(index)
            count = self._rows(index)
            rows += [Row(number, i) for i in range(min(part, count - 1), count)]
            index, part = index + 1, 0
        return rows[: self.height]

    @property
    def below(self) -> int:
        """Lines that begin below what is in sight."""
        rows = self.rows()
        if rows and not self.lines.reaches_end:
            return self.lines.end - rows[-1].number - 1
        return len(self.lines) - self.lines.index(rows[-1].number) - 1 if rows else 0

    @property
    def is_at_first(self) -> bool:
        """Nothing is above."""
        return self._index == 0 and self.part == 0

    @property
    def is_at_last(self) -> bool:
        """Whether nothing is below."""
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
        """Whether this is the end, which is followed."""
        self.follows = self.is_at_last and self.lines.reaches_end
        self.settle()

    def _last_page(self) -> tuple[int, int]:
        """Where it stands when the last line is the last in sight."""
        index, room = len(self.lines), self.height
        while index > 0 and room > 0:
            index -= 1
            room -= self._rows(index)
        return index, max(0, -room)
