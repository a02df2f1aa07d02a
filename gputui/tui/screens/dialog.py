"""Base classes of dialogs: a box in the middle, over the dimmed screen."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from textual import events
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from gputui.tui.commands import BACK, CLOSE, MOVE_COMMANDS, Command, bindings
from gputui.tui.keymap import keymap_of
from gputui.tui.keys import key_of
from gputui.tui.present.cells import Cell
from gputui.tui.textual_internals import bind_if_free
from gputui.tui.widgets.cell_lines import CellLines

T = TypeVar("T")
if TYPE_CHECKING:
    from textual.screen import Screen as Base
else:
    Base = Generic  # styles are inherited from the first base that is a widget: it is to be none


class ClosedOnce(Base[T]):
    """Makes `dismiss()` idempotent: a second request that is already queued is ignored."""

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        """Close it, if it is the one in front."""
        return super().dismiss(result) if self.is_active else AwaitComplete.nothing()  # type: ignore[no-untyped-call]


_ANSWER = re.compile(r"(\S+)(?: \S+)* {2,}\S.*?(?= {3,}|$)")
"""`y Enter  yes`: the first of its keys, and what it means."""


class Leavable(ClosedOnce[T]):
    """A screen over others that Escape leaves, whatever keys its commands have been given."""

    LEAVES: ClassVar = "back"
    """The action that does."""

    def on_mount(self) -> None:
        """See that there is a way out: its own commands have their keys by now."""
        bind_if_free(self, Binding("escape", self.LEAVES, show=False))


class Dialog(Leavable[T], ModalScreen[T]):
    """A question over the screen; what is behind it stands still meanwhile."""

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
        """The first key of that command as a person reads it."""
        return keymap_of(self).key(name)

    def answers(self, *answers: tuple[Command, str]) -> str:
        """Return the answers and their keys, on one line."""
        told = ((keymap_of(self).told(command).first_key, words) for command, words in answers)
        return "     ".join(f"{key}  {words}" if key else words for key, words in told)

    def on_click(self, event: events.Click) -> None:
        """A click on an answer is as good as its key."""
        told = event.widget
        if not isinstance(told, Static) or not (told.has_class("keys") or told.has_class("answers")):
            return
        lines, at = str(told.content).splitlines(), event.screen_offset - told.content_region.offset
        answers = _ANSWER.finditer(lines[at.y]) if 0 <= at.y < len(lines) else ()
        key = next((key_of(answer[1]) for answer in answers if answer.start() <= at.x < answer.end()), None)
        if key is not None:
            self.app.call_later(
                self.app.simulate_key, key
            )  # from the app: sent from here it would not come back up here


_WIDEST, _FRAME = 112, 7
"""The width of the box at most, and what it has around its lines."""


class ScrollingDialog(Dialog[None]):
    """Dialog with more text than fits: lines of cells in a box that scrolls."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("space", "page(1)", "page down"),
        *bindings(MOVE_COMMANDS),
        *bindings((BACK, CLOSE)),
    ]

    def on_resize(self) -> None:
        """Lay the lines out anew."""
        self.call_after_refresh(self.show_lines)

    def show_lines(self) -> None:
        """Lay them out for the room there is, if it is still there."""
        if self.is_attached:
            lines = self.query_one(CellLines)
            lines.fill(self.lines(lines.size.width or min(self.app.size.width * 9 // 10, _WIDEST) - _FRAME))

    def lines(self, room: int) -> list[Cell]:
        """Return the dialog's text, in lines of `room` cells."""
        raise NotImplementedError

    @property
    def how(self) -> str:
        """Return the keys that scroll and close it, for its lower edge."""
        return f"{self.key('down')} {self.key('up')} scroll   {self.key('back')} close"

    def action_back(self) -> None:
        """Close the dialog."""
        self.dismiss()

    def action_close(self) -> None:
        """Close the dialog."""
        self.dismiss()

    def action_down(self, step: int) -> None:
        """Scroll by that many lines."""
        self.query_one(VerticalScroll).scroll_relative(y=step, animate=False)

    def action_first(self) -> None:
        """Scroll to the first line."""
        self.query_one(VerticalScroll).scroll_home(animate=False)

    def action_last(self) -> None:
        """Scroll to the last line."""
        self.query_one(VerticalScroll).scroll_end(animate=False)

    def action_page(self, step: int) -> None:
        """Scroll by what is in sight."""
        body = self.query_one(VerticalScroll)
        body.scroll_relative(y=step * max(1, body.size.height - 1), animate=False)
