"""How dialogs look: a box in the middle, over the dimmed screen."""

from __future__ import annotations

from typing import TypeVar

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
