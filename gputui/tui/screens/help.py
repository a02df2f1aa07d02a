"""All keys, from their declarations."""

from __future__ import annotations

from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from gputui.tui.commands import by_group
from gputui.tui.present.style import BLUE, DIM, PLAIN, STRONG
from gputui.tui.screens.dialog import Dialog


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
        scrollbar-size-vertical: 1; scrollbar-background: $surface; scrollbar-color: $primary 40%;
    }
    """

    def compose(self) -> ComposeResult:
        """The groups, one after the other."""
        with VerticalScroll() as body:
            body.border_title = "Keys"
            body.border_subtitle = "Esc closes, j k scroll"
            yield Static(help_table())

    def action_scroll(self, step: int) -> None:
        """Scroll by a line."""
        self.query_one(VerticalScroll).scroll_relative(y=step, animate=False)


def help_table() -> Table:
    """The keys under their headings."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for group, commands in by_group().items():
        if table.row_count:
            table.add_row("")
        table.add_row(Text(group, STRONG))
        for command in commands:
            table.add_row(Text(f"  {command.key_names}", BLUE), Text(command.title, PLAIN), Text(command.help, DIM))
    table.add_row("")
    table.add_row(Text("What a command acts on", STRONG))
    table.add_row(Text("  queue", BLUE), "", Text("the selected job", DIM))
    table.add_row(Text("  GPUs", BLUE), "", Text("the job that holds the selected GPU; d: the GPU itself", DIM))
    table.add_row(Text("  log", BLUE), "", Text("the job whose log is shown", DIM))
    return table
