"""What clicks on a row ask for."""

from __future__ import annotations

from textual import events
from textual.geometry import Offset
from textual.message import Message
from textual.widget import Widget

RIGHT = 3


class RowOpened(Message):
    """A row was double-clicked."""


class MenuAsked(Message):
    """The right button was pressed on a row, which is selected now."""

    def __init__(self, at: Offset) -> None:
        super().__init__()
        self.at = at


def tell_click(table: Widget, event: events.Click) -> None:
    """Say what is to become of the row that a click has selected."""
    if event.button == RIGHT:
        table.post_message(MenuAsked(event.screen_offset))
    elif event.chain == 2:
        table.post_message(RowOpened())
