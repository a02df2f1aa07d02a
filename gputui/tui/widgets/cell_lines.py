"""Lines of cells, fixed or scrolling; only changed lines are redrawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from gputui.tui.commands import MOVE_COMMANDS, bindings
from gputui.tui.present.cells import Cell, Span, changed_runs, fitted, segments
from gputui.tui.present.style import GROUND, RAISED


class CellLines(Widget):
    """Text without markup, on the background of a panel or another one."""

    DEFAULT_CSS = "CellLines { height: 1; width: 1fr; }"

    def __init__(self, *, id: str, background: str = RAISED) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._ground = Style(bgcolor=background)
        self.lines: Sequence[Cell] = ()
        """The displayed lines."""
        self._rows = 1

    def show(self, lines: Sequence[Cell]) -> None:
        """Set the lines."""
        before, self.lines = self.lines, lines
        for y, line in enumerate(lines):
            if y >= len(before) or before[y] != line:
                self.refresh(Region(0, y, self.size.width, 1))
        if len(lines) < len(before):
            self.refresh()

    def make_room(self, rows: int) -> None:
        """Set the height in rows."""
        if rows != self._rows:
            self.styles.height = self._rows = rows

    def fill(self, lines: Sequence[Cell]) -> None:
        """Set the lines, and the height to their number; a container scrolls if they do not fit."""
        self.make_room(len(lines))
        self.show(lines)

    def grow(self, lines: Sequence[Cell]) -> None:
        """Set the lines, and raise the height to their number; it never shrinks, so that nothing jumps."""
        self.make_room(max(self._rows, len(lines)))
        self.show(lines)

    def render_line(self, y: int) -> Strip:
        """Render a line."""
        line = self.lines[y] if y < len(self.lines) else ()
        room = self.size.width
        return Strip(segments(fitted(line, room), self._ground)).adjust_cell_length(room, self._ground)


_GROUND = Style(bgcolor=GROUND)
_MARGIN: Span = (" ", Style())


class Page(Widget, can_focus=True):
    """A page that may be longer than the screen. Each cell is one line, cut at the right edge."""

    BINDINGS: ClassVar = bindings(MOVE_COMMANDS)
    DEFAULT_CSS = "Page { height: 1fr; }"

    class Scrolled(Message):
        """Message: other lines are visible."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.top = 0
        self._cells: Sequence[Cell] = ()
        self._shown: list[list[Span]] = []

    def show(self, lines: Sequence[Cell]) -> None:
        """Set the lines, and keep the position."""
        self._cells = lines
        self._go_to(self.top)

    @property
    def position(self) -> str:
        """Return `1-20 of 44 lines`; empty if all are visible."""
        height, count = self.size.height, len(self._cells)
        return "" if count <= height else f"{self.top + 1}–{min(count, self.top + height)} of {count} lines"

    def action_down(self, step: int) -> None:
        """Scroll by a number of lines."""
        self._go_to(self.top + step)

    def action_page(self, step: int) -> None:
        """Scroll by a page."""
        self._go_to(self.top + step * max(1, self.size.height - 2))

    def action_first(self) -> None:
        """Scroll to the beginning."""
        self._go_to(0)

    def action_last(self) -> None:
        """Scroll to the end."""
        self._go_to(len(self._cells))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll down with the wheel."""
        event.stop()
        self._go_to(self.top + 3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll up with the wheel."""
        event.stop()
        self._go_to(self.top - 3)

    def on_resize(self) -> None:
        """Cut the lines again."""
        self._shown = []
        self._go_to(self.top)

    def _go_to(self, top: int) -> None:
        before, self.top = self.top, max(0, min(top, len(self._cells) - self.size.height))
        self._redraw()
        if self.top != before:
            self.post_message(self.Scrolled())

    def _redraw(self) -> None:
        width, height = self.size
        lines = [fitted(cell, max(0, width - 1)) for cell in self._cells[self.top : self.top + height]]
        lines += [fitted((), max(0, width - 1))] * (height - len(lines))
        for y, line in enumerate(lines):
            shown = self._shown[y] if y < len(self._shown) else None
            if shown is None:
                self.refresh(Region(0, y, width, 1))
            elif shown != line:
                for start, end in changed_runs(shown, line):
                    self.refresh(Region(1 + start, y, end - start, 1))
        self._shown = lines

    def render_line(self, y: int) -> Strip:
        """Render a line."""
        line = self._shown[y] if y < len(self._shown) else []
        return Strip(segments([_MARGIN, *line], _GROUND)).adjust_cell_length(self.size.width, _GROUND)
