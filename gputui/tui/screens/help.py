"""All keys, from their declarations."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from gputui.tui.screens.dialog import Dialog
from textual.widgets import Static

from gputui.tui.commands import by_group
from gputui.tui.present.style import BLUE, DIM, PLAIN, STRONG


class Help(Dialog[None]):
    """What every key does."""

    BINDINGS: ClassVar = [
        ("escape,q,question_mark,enter", "dismiss", "close"),
        ("j", "scroll(1)", "down"),
        ("k", "scroll(-1)", "up"),
    ]
    DEFAULT_CSS = """
    Help VerticalScroll {
        width: 90%; max-width: 104; height: 90%; background: $surface; border: round $primary; padding: 0 2;
        scrollbar-size-vertical: 1;
    }
    """

    def compose(self) -> ComposeResult:
        """The groups, one after the other."""
        with VerticalScroll() as body:
            body.border_title = "Keys"
            body.border_subtitle = "Esc closes, j k scroll"
            yield Static(help_text())

    def action_scroll(self, step: int) -> None:
        """Scroll by a line."""
        self.query_one(VerticalScroll).scroll_relative(y=step, animate=False)


def help_text() -> Text:
    """The keys under their headings."""
    text = Text()
    for group, commands in by_group().items():
        text.append(("\n" if text else "") + group + "\n", STRONG)
        for command in commands:
            text.append(f"  {command.key_names:<16}", BLUE)
            text.append(f"{command.title:<11}", PLAIN)
            text.append(f"{command.help}\n", DIM)
    text.append("\nCommands about a job act on the selected job, on the job on the selected GPU,\n", DIM)
    text.append("or on the job whose log is shown: whichever pane has the focus.", DIM)
    return text
