"""Base classes of dialogs: a box in the middle, over the dimmed screen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, TypeVar

from textual import events
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widget import Widget

from gputui.tui.commands.command import Command, bindings
from gputui.tui.commands.table import BACK, CLOSE, MOVE_COMMANDS
from gputui.tui.keymap import keymap_of
from gputui.tui.present.cells import Cell
from gputui.tui.textual_internals import SeenThrough, bind_if_free
from gputui.tui.widgets.line_table import CellLines
from gputui.tui.widgets.status_bars import MessageLine, draw_line, edge_key_at, press

T = TypeVar("T")


class ClosedOnce(SeenThrough[T]):
    """Screen with a line of messages, whose `dismiss()` is idempotent: a second queued request is ignored."""

    def edge(self) -> Iterable[Widget]:
        return (MessageLine(),)

    def action_back(self) -> None:
        self.dismiss()

    def on_screen_resume(self) -> None:
        draw_line(self)

    def on_screen_suspend(self) -> None:
        draw_line(self)

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        return super().dismiss(result) if self.is_active else AwaitComplete.nothing()  # type: ignore[no-untyped-call]


class Leavable(ClosedOnce[T]):
    """A screen that Escape always closes, regardless of configured keys."""

    LEAVES: ClassVar = "back"
    """Action that closes it."""

    def on_mount(self) -> None:
        """Ensure that there is a key to close it; its own commands have their keys by now."""
        bind_if_free(self, Binding("escape", self.LEAVES, show=False))


class Dialog(Leavable[T], ModalScreen[T]):
    """A dialog over the screen, which goes on behind it."""

    DEFAULT_CSS = """
    Dialog {
        align: center middle;
        background: $background 60%;
        .dialog {
            width: auto; min-width: 36; max-width: 96%; height: auto; max-height: 96%;
            background: $surface; border: round $primary; padding: 0 2;
        }
        Static { width: auto; height: auto; max-width: 100%; }
        .title { text-style: bold; margin-bottom: 1; }
        .detail { color: $foreground 80%; margin-bottom: 1; }
        .keys { color: $foreground 75%; }
        Input { border: none; height: 1; padding: 0 1; background: $background; margin-bottom: 1; width: 60; }
    }
    """

    def key(self, name: str) -> str:
        return keymap_of(self).key(name)

    def answers(self, *answers: tuple[Command, str]) -> str:
        """Return the answers and their keys, on one line."""
        told = ((keymap_of(self).told(command).first_key, words) for command, words in answers)
        return "     ".join(f"{key}  {words}" if key else words for key, words in told)

    def on_click(self, event: events.Click) -> None:
        if event.widget is not None:
            press(self, edge_key_at(event.widget, event.screen_offset))


_WIDEST, _FRAME = 112, 7
"""Maximum width of the box, and the cells around its lines."""


class ScrollingDialog(Dialog[None]):
    """Dialog with more text than fits: lines of cells in a scrolling box."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("space", "page(1)", "page down"),
        *bindings(MOVE_COMMANDS),
        *bindings((BACK, CLOSE)),
    ]

    def on_resize(self) -> None:
        self.call_after_refresh(self.show_lines)

    def show_lines(self) -> None:
        """Lay the lines out for the available room, if the box still exists."""
        if self.is_attached:
            lines = self.query_one(CellLines)
            lines.fill(self.lines(lines.size.width or min(self.app.size.width * 9 // 10, _WIDEST) - _FRAME))

    def lines(self, room: int) -> list[Cell]:
        """Return the dialog's text, in lines of `room` cells."""
        raise NotImplementedError

    @property
    def how(self) -> str:
        return f"{self.key('down')} {self.key('up')} scroll   {self.key('back')} close"

    def action_close(self) -> None:
        self.dismiss()

    def action_down(self, step: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=step, animate=False)

    def action_first(self) -> None:
        self.query_one(VerticalScroll).scroll_home(animate=False)

    def action_last(self) -> None:
        self.query_one(VerticalScroll).scroll_end(animate=False)

    def action_page(self, step: int) -> None:
        body = self.query_one(VerticalScroll)
        body.scroll_relative(y=step * max(1, body.size.height - 1), animate=False)
