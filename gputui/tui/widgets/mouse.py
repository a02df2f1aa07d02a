"""Mouse gestures: dragging the upper edge of a pane or the line between two panes, and clicks on rows."""

from __future__ import annotations

from dataclasses import dataclass

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Offset
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from gputui.tui.present.style import FAINT, GROUND


@dataclass(eq=False)
class GripMoved(Message):
    """Message that the upper edge of a pane was dragged down by that many rows."""

    pane: Widget
    rows: int


class _Held(Widget):
    """Widget that can be dragged."""

    _grips_at: int | None = None
    """Row or column of the screen at which it is held."""

    def on_mouse_up(self) -> None:
        if self._grips_at is not None:
            self._grips_at = None
            self.release_mouse()

    def on_mouse_release(self) -> None:
        self._grips_at = None


class Grip(_Held):
    """Pane whose first line can be dragged to resize the pane above."""

    was_dragged = False
    """True if the button was released after a drag, which is not a click."""

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self.was_dragged = False
        if event.y == 0 and event.button == 1:
            self._grips_at = event.screen_y
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._grips_at is not None and event.screen_y != self._grips_at:
            self.was_dragged = True
            self.post_message(GripMoved(self, event.screen_y - self._grips_at))
            self._grips_at = event.screen_y


RIGHT = 3


class RowOpened(Message):
    """Message that a row was double-clicked."""


@dataclass(eq=False)
class MenuAsked(Message):
    """Message that a row was right-clicked, which also selected it."""

    at: Offset


def tell_click(table: Widget, event: events.Click) -> None:
    """Post the message for a click on a row that is already selected."""
    if event.button == RIGHT:
        table.post_message(MenuAsked(event.screen_offset))
    elif event.chain == 2:
        table.post_message(RowOpened())


_LINE = Strip([Segment("│", Style(color=FAINT, bgcolor=GROUND))], 1)


@dataclass(eq=False)
class DividerMoved(Message):
    """Message that the line was dragged to the right by that many columns."""

    columns: int


class Divider(_Held):
    """Vertical line, one column wide."""

    DEFAULT_CSS = "Divider { width: 1; height: 1fr; display: none; }"

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if event.button == 1:
            self._grips_at = event.screen_x
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._grips_at is not None and event.screen_x != self._grips_at:
            self.post_message(DividerMoved(event.screen_x - self._grips_at))
            self._grips_at = event.screen_x

    def render_line(self, y: int) -> Strip:
        return _LINE
