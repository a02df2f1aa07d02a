"""A choice of one line among several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from gputui.domain.text import plain
from gputui.tui.commands import BACK, MOVE_COMMANDS, SAVE_TEMPLATE, TAKE_LINE, bindings
from gputui.tui.present.cells import Cell, cell
from gputui.tui.present.style import BLUE, DIM, PLAIN, STRONG
from gputui.tui.screens.dialog import Dialog
from gputui.tui.widgets.cell_lines import CellLines

SAVE = -1
"""What is answered for the key that saves."""


class Choose(Dialog[int | None]):
    """The number of the line chosen; None when Escape was pressed."""

    BINDINGS: ClassVar = [*bindings(MOVE_COMMANDS), *bindings((TAKE_LINE, SAVE_TEMPLATE, BACK))]
    DEFAULT_CSS = "Choose .dialog { width: 96%; max-width: 100; } Choose CellLines { margin-bottom: 1; }"

    def __init__(self, title: str, lines: Sequence[str], *, none: str, saves: str = "") -> None:
        super().__init__()
        self._heading = title
        self._texts = [plain(line, 400) for line in lines]
        self._none = none
        self._saves = saves
        self.cursor = 0
        self._first = 0
        """The line at the top."""

    def compose(self) -> ComposeResult:
        """The lines and the keys."""
        save = ((SAVE_TEMPLATE, self._saves),) if self._saves else ()
        with Vertical(classes="dialog"):
            yield Static(self._heading, classes="title", markup=False)
            yield CellLines(id="lines")
            yield Static(self.answers((TAKE_LINE, "take it"), *save, (BACK, "leave it")), classes="keys", markup=False)

    def on_resize(self) -> None:
        """Show as many as there is room for now."""
        self.query_one("#lines", CellLines).make_room(self._height)
        self.call_after_refresh(self.show_lines)

    def show_lines(self) -> None:
        """Those in sight, as they are now, if they still are."""
        self._keep_in_sight()
        if self.is_attached:
            self.query_one("#lines", CellLines).show(self._cells())

    @property
    def _height(self) -> int:
        return max(1, min(len(self._texts), self._rows))

    @property
    def _rows(self) -> int:
        return max(3, min(len(self._texts), self.app.size.height - 8))

    def _keep_in_sight(self) -> None:
        """Begin with another line if the chosen one would be out of sight, or room be left below."""
        least, most = self.cursor - self._rows + 1, min(self.cursor, len(self._texts) - self._rows)
        self._first = max(0, min(max(self._first, least), most))

    def _cells(self) -> list[Cell]:
        if not self._texts:
            return [cell(self._none, DIM)]
        shown = range(self._first, min(len(self._texts), self._first + self._rows))
        return [self._cell(place) for place in shown]

    def _cell(self, place: int) -> Cell:
        text = self._texts[place]
        return (("▌ ", BLUE), (text, STRONG)) if place == self.cursor else (("  ", DIM), (text, PLAIN))

    def action_down(self, step: int) -> None:
        """To another line."""
        self.cursor = max(0, min(len(self._texts) - 1, self.cursor + step))
        self.show_lines()

    def action_page(self, step: int) -> None:
        """By what is in sight."""
        self.action_down(step * max(1, self._rows - 1))

    def action_first(self) -> None:
        """To the first one."""
        self.action_down(-len(self._texts))

    def action_last(self) -> None:
        """To the last one."""
        self.action_down(len(self._texts))

    def action_take_line(self) -> None:
        """That one."""
        self.dismiss(self.cursor if self._texts else None)

    def action_save_template(self) -> None:
        """None of them: save what there is."""
        if self._saves:
            self.dismiss(SAVE)

    def action_back(self) -> None:
        """None of them."""
        self.dismiss(None)

    def on_click(self, event: events.Click) -> None:
        """Choose with the mouse; a second click takes it."""
        lines = self.query_one("#lines", CellLines)
        if not self._texts or not lines.region.contains(event.screen_x, event.screen_y):
            return
        place = min(len(self._texts) - 1, self._first + event.screen_y - lines.region.y)
        if place == self.cursor and event.chain > 1:
            self.action_take_line()
        else:
            self.action_down(place - self.cursor)

    def on_mouse_scroll_down(self) -> None:
        """Further down by the wheel."""
        self.action_down(1)

    def on_mouse_scroll_up(self) -> None:
        """Further up by the wheel."""
        self.action_down(-1)
