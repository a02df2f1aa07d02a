"""All keys, from their declarations: those of the pane one comes from first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.screen import Screen
from textual.widgets import Input, Static

from gputui.tui.commands import COMMANDS, GPUS, JOBS, LOGS, QUEUE, TIMELINE, Command, by_group
from gputui.tui.keymap import keymap_of
from gputui.tui.present.style import BLUE, DIM, PLAIN, STRONG
from gputui.tui.screens.dialog import ScrollingDialog

_PANES = {"gpus": ("GPUs", GPUS), "queue": ("queue", JOBS), "log": ("log", LOGS), "rows": ("timeline", TIMELINE)}
"""By the id of a widget: what it is called, and the group of commands that it is there for."""
_ACT_ON = (
    ("queue", "the selected job"),
    ("GPUs", "the job that holds the selected GPU; to drain or resume: the GPU itself"),
    ("log", "the job whose log is shown"),
)


@dataclass(frozen=True)
class Context:
    """Where somebody asked for help."""

    pane: str = ""
    """The id of what had the focus."""
    names: frozenset[str] = frozenset(command.name for command in COMMANDS)
    """The commands that have a key there."""

    @classmethod
    def of(cls, screen: Screen[object]) -> Context:
        """What has the focus, and all that its keys could do."""
        nodes = screen.focused.ancestors_with_self if screen.focused else (screen, screen.app)
        names = {binding.id for node in nodes for _, binding in node._bindings if binding.id}
        without_key = {name for name, keys in keymap_of(screen).keys.items() if not keys}
        return cls((screen.focused.id or "") if screen.focused else "", frozenset(names | without_key))


class Help(ScrollingDialog):
    """What every key does."""

    BINDINGS: ClassVar = [
        ("escape", "give_up", "close"),
        ("q,question_mark,enter", "dismiss", "close"),
        ("slash", "search", "search"),
    ]
    DEFAULT_CSS = """
    Help #box {
        width: 90%; max-width: 112; height: 90%; background: $surface; border: round $primary; padding: 0 1;
    }
    Help VerticalScroll {
        height: 1fr; scrollbar-size-vertical: 1; scrollbar-background: $surface; scrollbar-color: $primary 40%;
        padding: 0 1;
    }
    Help Input { width: 100%; margin: 0 1; display: none; }
    Help Input.-open { display: block; }
    """

    def __init__(self, context: Context | None = None) -> None:
        super().__init__()
        self._asked_from = context or Context()

    def compose(self) -> ComposeResult:
        """A field to search in, and the groups, one after the other."""
        with Vertical(id="box") as box:
            box.border_title = "Keys"
            box.border_subtitle = "/ search   j k scroll   Esc close"
            yield Input(placeholder="a key, or words of what it does", compact=True)
            with VerticalScroll():
                yield Static(id="keys")

    def on_mount(self) -> None:
        """Show all of them."""
        self.query_one(VerticalScroll).focus()
        self._show("")

    def _show(self, wanted: str) -> None:
        told = keymap_of(self).told
        groups = [
            (heading, [told(command) for command in commands]) for heading, commands in arranged(self._asked_from)
        ]
        self.query_one("#keys", Static).update(help_table(matching(groups, wanted), is_all=not wanted.strip()))

    def action_search(self) -> None:
        """Type what to look for."""
        field = self.query_one(Input)
        field.add_class("-open")
        field.focus()

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        self._show(event.value)
        self.query_one(VerticalScroll).scroll_home(animate=False)

    @on(Input.Submitted)
    def _done(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_give_up(self) -> None:
        """Show all keys again, or close."""
        field = self.query_one(Input)
        if not field.has_class("-open"):
            self.dismiss()
            return
        field.value = ""
        field.remove_class("-open")
        self.query_one(VerticalScroll).focus()


def arranged(context: Context) -> list[tuple[str, Sequence[Command]]]:
    """The groups under their headings: that of the pane first, what works on other screens only last."""
    words, first = _PANES.get(context.pane, ("", ""))
    here = by_group(tuple(command for command in COMMANDS if command.name in context.names))
    found: list[tuple[str, Sequence[Command]]] = []
    if first in here:
        found.append((f"{first}, while the {words} has the focus" if words != first else first, here.pop(first)))
    if first == JOBS and QUEUE in here:
        found.append((QUEUE, here.pop(QUEUE)))
    found += here.items()
    elsewhere = by_group(tuple(command for command in COMMANDS if command.name not in context.names))
    return found + [(f"{group}, elsewhere", commands) for group, commands in elsewhere.items()]


def matching(groups: Iterable[tuple[str, Sequence[Command]]], wanted: str) -> list[tuple[str, list[Command]]]:
    """Those that have every word in their keys, their name or their sentence; a single character means the key."""
    found = []
    for heading, commands in groups:
        kept = [command for command in commands if _matches(command, heading, wanted.strip())]
        if kept:
            found.append((heading, kept))
    return found


def _matches(command: Command, heading: str, wanted: str) -> bool:
    if len(wanted) == 1:
        return wanted in command.key_names.split()
    text = f"{command.key_names} {command.title} {command.help} {command.name} {heading}".lower()
    return all(word in text for word in wanted.lower().split())


def help_table(groups: Sequence[tuple[str, Sequence[Command]]], *, is_all: bool) -> Table:
    """The keys under their headings."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, min_width=11)
    table.add_column(no_wrap=True, min_width=10)
    table.add_column()
    for heading, commands in groups:
        if table.row_count:
            table.add_row("")
        table.add_row(Text(heading.partition(", ")[0], STRONG), "", Text(heading.partition(", ")[2], DIM))
        for command in commands:
            keys = Text(f"  {command.key_names}", BLUE) if command.keys else Text("  no key", DIM)
            table.add_row(keys, Text(command.title, PLAIN), Text(command.help, DIM))
    if not groups:
        table.add_row(Text("nothing", DIM), "", Text("No key does that. The palette finds commands by name.", DIM))
    if is_all:
        table.add_row("")
        table.add_row(Text("Acts on", STRONG))
        for pane, words in _ACT_ON:
            table.add_row(Text(f"  {pane}", BLUE), "", Text(words, DIM))
    return table
