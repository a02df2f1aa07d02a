"""The line above a pane can be dragged: what is above it grows or shrinks."""

from __future__ import annotations

from textual import events
from textual.message import Message
from textual.widget import Widget


class GripMoved(Message):
    """The line above a pane is to be so many rows further down."""

    def __init__(self, pane: Widget, rows: int) -> None:
        super().__init__()
        self.pane = pane
        self.rows = rows


class Grip(Widget):
    """A pane whose first line is its upper edge."""

    _grips_at: int | None = None
    """The row of the screen that the pointer drags it by."""
    was_dragged = False
    """The button was let go after a drag: no click is meant."""

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Take hold of the first line."""
        self.was_dragged = False
        if event.y == 0 and event.button == 1:
            self._grips_at = event.screen_y
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Drag it to where the pointer is."""
        if self._grips_at is not None and event.screen_y != self._grips_at:
            self.was_dragged = True
            self.post_message(GripMoved(self, event.screen_y - self._grips_at))
            self._grips_at = event.screen_y

    def on_mouse_up(self) -> None:
        """Let go."""
        if self._grips_at is not None:
            self._grips_at = None
            self.release_mouse()
