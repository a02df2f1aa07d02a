"""A choice whose lines the pointer moves to, and takes with one click: what menus do."""

from __future__ import annotations

from textual import events

from gputui.tui.screens.choose import Choose
from gputui.tui.widgets.cell_lines import CellLines


class Pointed(Choose):
    """The number of the line chosen; None for Escape and for a click outside the box."""

    def place_at(self, event: events.MouseEvent) -> int | None:
        """The number of the line under the pointer."""
        lines = self.query_one("#lines", CellLines).region
        if not lines.contains(event.screen_x, event.screen_y):
            return None
        place = self._first + event.screen_y - lines.y
        return place if place < len(self._texts) else None

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """The cursor goes with the pointer."""
        if (place := self.place_at(event)) is not None:
            self.action_down(place - self.cursor)

    def on_click(self, event: events.Click) -> None:
        """Take the line, or close where no part of the box is."""
        event.prevent_default()
        place = self.place_at(event)
        if place is not None:
            self.action_down(place - self.cursor)
            self.action_take_line()
        elif not self.query_one(".dialog").region.contains(event.screen_x, event.screen_y):
            self.action_back()
