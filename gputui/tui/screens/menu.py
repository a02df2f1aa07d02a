"""What can be done to a row, listed where the right button was pressed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.geometry import Offset

from gputui.domain.text import width
from gputui.tui.screens.pointed import Pointed
from gputui.tui.widgets.cell_lines import CellLines

_FRAME, _MARK = 4, 2
"""Cells of the box, and before each line."""


class Menu(Pointed):
    """The number of the line chosen, by a click or as in any list."""

    DEFAULT_CSS: ClassVar = """
    Menu {
        align: left top; background: $background 0%;
        .dialog { width: auto; min-width: 0; max-width: 100%; max-height: 100%; padding: 0 1; }
        CellLines { margin-bottom: 0; }
    }
    """

    def __init__(self, title: str, lines: Sequence[str], at: Offset) -> None:
        super().__init__(title, lines, none="")
        self._at = at

    def compose(self) -> ComposeResult:
        """The lines alone: what closes a menu everybody knows."""
        with Vertical(classes="dialog") as box:
            box.border_title = self._heading
            yield CellLines(id="lines")

    def on_mount(self) -> None:
        """Beside the pointer, as far as the screen goes."""
        lines = max(width(self._heading) + _MARK, *(width(text) + _MARK for text in self._texts))
        self.query_one(CellLines).styles.width = lines
        right, low = self.app.size.width - lines - _FRAME, self.app.size.height - self._rows - 2
        self.query_one(".dialog").styles.offset = (max(0, min(self._at.x, right)), max(0, min(self._at.y, low)))

    @property
    def _rows(self) -> int:
        return max(1, min(len(self._texts), self.app.size.height - 2))
