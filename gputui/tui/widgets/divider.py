"""Line between two panes that stand side by side. Dragging it moves the edge."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from gputui.tui.present.style import FAINT, GROUND

_LINE = Strip([Segment("│", Style(color=FAINT, bgcolor=GROUND))], 1)


class DividerMoved(Message):
    """Message: the line was dragged to the right by so many columns."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns = columns


class Divider(Widget):
    """Vertical line, one column wide."""

    DEFAULT_CSS = "Divider { width: 1; height: 1fr; display: none; }"
    _grips_at: int | None = None
    """Column of the screen at which it is held."""

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Begin to drag."""
        if event.button == 1:
            self._grips_at = event.screen_x
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Drag the line to the pointer."""
        if self._grips_at is not None and event.screen_x != self._grips_at:
            self.post_message(DividerMoved(event.screen_x - self._grips_at))
            self._grips_at = event.screen_x

    def on_mouse_up(self) -> None:
        """End the drag."""
        if self._grips_at is not None:
            self._grips_at = None
            self.release_mouse()

    def render_line(self, y: int) -> Strip:
        """Render a cell of the line."""
        del y
        return _LINE
