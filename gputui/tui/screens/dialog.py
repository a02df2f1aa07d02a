"""How dialogs look: a box in the middle, over the dimmed screen."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen

T = TypeVar("T")


class Dialog(ModalScreen[T]):
    """A question over the screen; what is behind it stands still meanwhile."""

    DEFAULT_CSS = """
    Dialog {
        align: center middle;
        background: $background 60%;
        .dialog {
            width: auto; min-width: 44; max-width: 96%; height: auto; max-height: 96%;
            background: $surface; border: round $primary; padding: 0 2;
        }
        Static { width: auto; height: auto; max-width: 100%; }
        .title { text-style: bold; margin-bottom: 1; }
        .detail { color: $foreground 80%; margin-bottom: 1; }
        .keys { color: $foreground 75%; }
        Input { border: none; height: 1; padding: 0 1; background: $background; margin-bottom: 1; width: 60; }
    }
    """


class ScrollingDialog(Dialog[None]):
    """One that has more to say than fits."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("j,down", "scroll(1)", "down"),
        ("k,up", "scroll(-1)", "up"),
        ("ctrl+d,pagedown,space", "page(1)", "page down"),
        ("ctrl+u,pageup", "page(-1)", "page up"),
        ("g,home", "scroll(-100000)", "first"),
        ("G,end", "scroll(100000)", "last"),
    ]

    def action_scroll(self, step: int) -> None:
        """Scroll by lines."""
        self.query_one(VerticalScroll).scroll_relative(y=step, animate=False)

    def action_page(self, step: int) -> None:
        """Scroll by what is in sight."""
        body = self.query_one(VerticalScroll)
        body.scroll_relative(y=step * max(1, body.size.height - 1), animate=False)
