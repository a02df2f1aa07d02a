"""What stands below the fields of the form: something told, the GPUs there are for the job, and its start."""

from __future__ import annotations

from rich.style import Style

from gputui.domain.text import plain
from gputui.tui.present.cells import Cell, cell
from gputui.tui.present.status import wrapped
from gputui.tui.present.style import DIM
from gputui.tui.widgets.cell_lines import CellLines

_MOST_SAID = 4
"""Rows."""


class Below(CellLines):
    """Grows with what is told, and keeps a row for it where nothing is."""

    DEFAULT_CSS = "Below { height: 3; }"

    def __init__(self) -> None:
        super().__init__(id="outlook")
        self.said = ""
        self._style = DIM

    def say(self, words: str, style: Style = DIM) -> None:
        """Tell this from the next time it is laid out."""
        self.said, self._style = words, style

    def lay_out(self, outlook: tuple[Cell, ...], room: int) -> int:
        """Show what is told over these lines, in so many cells; returns the rows that it takes."""
        told = wrapped(plain(self.said, 600), self.size.width or room)[:_MOST_SAID] or [""]
        self.fill([*(cell(text, self._style) for text in told), *outlook])
        return len(told) + len(outlook)
