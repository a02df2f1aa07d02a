"""The palette: every command that works now, found by what is typed before the next key is heard.

Textual's own fills its list in the background: Enter or a click right after a letter would then meet the list of
before, and carry out another command than the one that is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input

from gputui.domain.text import broken, width
from gputui.tui.commands import Command
from gputui.tui.commands.finding import Found, find, label
from gputui.tui.key_names import key_name
from gputui.tui.keymap import keymap_of
from gputui.tui.present.cells import Cell, cell, fitted
from gputui.tui.present.style import BLUE, DIM, PLAIN, STRONG
from gputui.tui.screens.pointed import Pointed
from gputui.tui.widgets.cell_lines import CellLines

_GAP, _AROUND, _SAID = 2, 8, 2
"""Cells between columns; rows of the box that are no commands; and those of the sentence below them."""
_NONE = "No command is called that, and none speaks of it."


class Palette(Pointed):
    """The number of the command chosen; None for Escape and for a click outside the box."""

    BINDINGS: ClassVar = []
    DEFAULT_CSS: ClassVar = """
    Palette {
        .dialog { width: 96%; max-width: 112; padding: 0 1; }
        Input { width: 100%; }
        #sentence { height: 2; margin-bottom: 0; }
    }
    """

    def __init__(self, commands: Sequence[Command]) -> None:
        super().__init__("Commands", (), none=_NONE)
        self._commands = commands
        self._found: list[Found] = []

    def compose(self) -> ComposeResult:
        """A line to type in, the commands, and what the one under the cursor does."""
        with Vertical(classes="dialog") as box:
            box.border_title = self._heading
            box.border_subtitle = f"Enter do it   {self.key('back')} leave it"
            yield Input(placeholder="letters of its name, or words of what it does", compact=True)
            yield CellLines(id="lines")
            yield CellLines(id="sentence")

    def on_mount(self) -> None:
        """Show all of them."""
        keymap = keymap_of(self)
        self._keys = {each.name: key_name(key) for each in self._commands for key in keymap.told(each).keys[:1]}
        self._names_room = max((width(label(command)) for command in self._commands), default=0)
        self._keys_room = max(map(width, self._keys.values()), default=0)
        self.find("")

    def find(self, wanted: str) -> None:
        """Show those, with the cursor on the best."""
        self._found = find(self._commands, wanted)
        self._texts = [found.label for found in self._found]
        self.cursor = self._first = 0
        self.show_lines()

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        self.find(event.value)

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        self.action_take_line()

    def action_take_line(self) -> None:
        """Do that one."""
        if self._found:
            self.dismiss(self._commands.index(self._found[self.cursor].command))

    def show_lines(self) -> None:
        """The commands in sight, and what the one under the cursor does."""
        super().show_lines()
        if not self.is_attached:
            return
        sentence = self.query_one("#sentence", CellLines)
        words = self._found[self.cursor].command.help if self._found else ""
        sentence.show([cell(line, DIM) for line in broken(words, max(1, sentence.size.width))[:_SAID]])

    @property
    def _rows(self) -> int:
        return max(1, min(len(self._commands), self.app.size.height - _AROUND))

    @property
    def _height(self) -> int:
        return self._rows  # whatever is found of them: the box stays as it is

    def _cell(self, place: int) -> Cell:
        found, here = self._found[place], place == self.cursor
        key = self._keys.get(found.command.name, "")
        mark = ("▌ ", BLUE) if here else ("  ", DIM)
        name = fitted(_marked(found, here), self._names_room + _GAP)
        return (mark, *name, (f"{key:<{self._keys_room + _GAP}}", BLUE), (found.command.help, DIM))


def _marked(found: Found, here: bool) -> Cell:
    """The name, with the letters that matched."""
    plain = STRONG if here else PLAIN
    return tuple((letter, BLUE if at in found.letters else plain) for at, letter in enumerate(found.label))
