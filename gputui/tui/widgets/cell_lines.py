"""Lines of cells, drawn as they are given; only lines that differ are drawn anew."""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from gputui.tui.present.cells import Cell, fitted, segments
from gputui.tui.present.style import RAISED


class CellLines(Widget):
    """Text that is never markup, on the background of a panel or another one."""

    DEFAULT_CSS = "CellLines { height: 1; width: 1fr; }"

    def __init__(self, *, id: str, background: str = RAISED) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._ground = Style(bgcolor=background)
        self._lines: Sequence[Cell] = ()
        self._rows = 1

    def show(self, lines: Sequence[Cell]) -> None:
        """Show these lines."""
        before, self._lines = self._lines, lines
        for y, line in enumerate(lines):
            if y >= len(before) or before[y] != line:
                self.refresh(Region(0, y, self.size.width, 1))
        if len(lines) < len(before):
            self.refresh()

    def make_room(self, rows: int) -> None:
        """Be as many rows high."""
        if rows != self._rows:
            self.styles.height = self._rows = rows

    def fill(self, lines: Sequence[Cell]) -> None:
        """Show these lines in as many rows: where there are more than fit, something around them scrolls."""
        self.make_room(len(lines))
        self.show(lines)

    def grow(self, lines: Sequence[Cell]) -> None:
        """Show these lines in as many rows, but in no fewer than there were: nothing jumps while one reads."""
        self.make_room(max(self._rows, len(lines)))
        self.show(lines)

    def render_line(self, y: int) -> Strip:
        """A line."""
        line = self._lines[y] if y < len(self._lines) else ()
        room = self.size.width
        return Strip(segments(fitted(line, room), self._ground)).adjust_cell_length(room, self._ground)
