"""The palette: every command, updated before the next key is handled; unavailable ones say why.

Textual's own palette fills its list in the background: Enter or a click right after a letter would then act on the
previous list, and run another command than intended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.style import Style
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input

from gputui.domain.text import broken, width
from gputui.tui.commands.palette import Match, Offer, find_commands
from gputui.tui.keymap import keymap_of
from gputui.tui.keys import key_name
from gputui.tui.present.cells import Cell, cell, fitted
from gputui.tui.present.style import AMBER, BLUE, DIM, PLAIN, STRONG
from gputui.tui.screens.menu import Pointed
from gputui.tui.widgets.cell_lines import CellLines

_GAP, _AROUND, _SAID = 2, 9, 2
"""Cells between columns; rows of the box that are not commands; and rows of the sentence below them."""
_NONE = "No matching command."


class CommandFinder(Pointed):
    """Palette that returns the index of the chosen command; None for Escape and for a click outside the box."""

    BINDINGS: ClassVar = []
    DEFAULT_CSS: ClassVar = """
    CommandFinder {
        .dialog { width: 96%; max-width: 112; padding: 0 1; }
        Input { width: 100%; }
        #sentence { height: 2; margin-bottom: 0; }
    }
    """

    def __init__(self, offers: Sequence[Offer]) -> None:
        super().__init__("Commands", (), none=_NONE)
        self._offers = offers
        self._found: list[Match] = []

    def compose(self) -> ComposeResult:
        """Yield an input line, the commands, and the description of the selected one."""
        with Vertical(classes="dialog") as box:
            box.border_title = self._heading
            box.border_subtitle = f"Enter OK   {self.key('back')} cancel"
            yield Input(placeholder="letters of the name, or words of the description", compact=True)
            yield CellLines(id="lines")
            yield CellLines(id="sentence")

    def on_mount(self) -> None:
        """Show all that work."""
        keymap, commands = keymap_of(self), [offer.command for offer in self._offers]
        self._keys = {each.name: key_name(key) for each in commands for key in keymap.told(each).keys[:1]}
        self._names_room = max((width(offer.label) for offer in self._offers), default=0)
        self._keys_room = max(map(width, self._keys.values()), default=0)
        self.find("")

    def find(self, wanted: str) -> None:
        """Show the matching commands, with the cursor on the best."""
        self._found = find_commands(self._offers, wanted)
        self.texts = [found.offer.label for found in self._found]
        self.cursor = self.first = 0
        self.show_lines()

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        self.find(event.value)

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        self.action_take_line()

    def action_take_line(self) -> None:
        """Choose that command if it is available; the sentence below says why not."""
        if not self._found:
            return
        offer = self._found[self.cursor].offer
        if offer.why_not:
            self.app.bell()
        else:
            self.dismiss(self._offers.index(offer))

    def show_lines(self) -> None:
        """Show the visible commands, and the description of the selected one."""
        super().show_lines()
        if not self.is_attached:
            return
        sentence = self.query_one("#sentence", CellLines)
        words, style = self._sentence()
        sentence.show([cell(line, style) for line in broken(words, max(1, sentence.size.width))[:_SAID]])

    def _sentence(self) -> tuple[str, Style]:
        if not self._found:
            return "", DIM
        offer = self._found[self.cursor].offer
        return (offer.why_not, AMBER) if offer.why_not else (offer.command.help, DIM)

    @property
    def rows(self) -> int:
        working = sum(not offer.why_not for offer in self._offers)
        return max(1, min(working, self.app.size.height - _AROUND))

    @property
    def _height(self) -> int:
        return self.rows  # constant, so that the box keeps its size

    def _cell(self, place: int) -> Cell:
        found, here = self._found[place], place == self.cursor
        offer = found.offer
        said = offer.why_not or offer.command.help
        key, key_style = self._keys.get(offer.command.name, ""), DIM if offer.why_not else BLUE
        mark = ("▌ ", BLUE) if here else ("  ", DIM)
        name = fitted(_marked(found, here), self._names_room + _GAP)
        return (mark, *name, (f"{key:<{self._keys_room + _GAP}}", key_style), (said, DIM))


def _marked(found: Match, here: bool) -> Cell:
    """Return the name with the matching letters highlighted."""
    plain = DIM if found.offer.why_not else STRONG if here else PLAIN
    return tuple((letter, BLUE if at in found.letters else plain) for at, letter in enumerate(found.offer.label))
