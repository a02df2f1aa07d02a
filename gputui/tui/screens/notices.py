"""All that is wrong or odd, in full."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from gputui.domain.snapshot import Notice
from gputui.domain.text import plain
from gputui.tui.present.style import DIM, PLAIN, SEVERITY_STYLES
from gputui.tui.screens.dialog import Dialog


class Notices(Dialog[None]):
    """Each with its severity, as a word; worst first."""

    BINDINGS: ClassVar = [
        ("escape,q,exclamation_mark,enter", "dismiss", "close"),
        ("j", "scroll(1)", "down"),
        ("k", "scroll(-1)", "up"),
    ]
    DEFAULT_CSS = """
    Notices VerticalScroll {
        width: 90%; max-width: 104; height: auto; max-height: 90%; background: $surface; border: round $primary;
        padding: 0 2; scrollbar-size-vertical: 1; scrollbar-background: $surface; scrollbar-color: $primary 40%;
    }
    Notices Static { width: 100%; }
    """

    def __init__(self, notices: tuple[Notice, ...]) -> None:
        super().__init__()
        self._all = notices

    def compose(self) -> ComposeResult:
        """One after the other."""
        with VerticalScroll() as body:
            body.border_title = "Notices"
            body.border_subtitle = "Esc closes, j k scroll"
            yield Static(notice_text(self._all))

    def action_scroll(self, step: int) -> None:
        """Scroll by a line."""
        self.query_one(VerticalScroll).scroll_relative(y=step, animate=False)


def notice_text(notices: tuple[Notice, ...]) -> Text:
    """The notices under their severities; a word where there is none."""
    if not notices:
        return Text("Nothing is wrong.", DIM)
    return Text("\n\n").join(
        Text.assemble(
            (f"{notice.severity}\n", SEVERITY_STYLES.get(notice.severity, PLAIN)), (plain(notice.text, 2000), PLAIN)
        )
        for notice in notices
    )
