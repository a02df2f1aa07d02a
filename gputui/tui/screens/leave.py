"""What is to become of the scheduler that runs in this console."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from gputui.tui.commands import LEAVE_COMMANDS, bindings
from gputui.tui.keymap import keymap_of
from gputui.tui.leave import Leave
from gputui.tui.screens.dialog import Dialog

_WORDS = (
    "hand over to a background scheduler: jobs start as before",
    "stop dispatching: running jobs go on, none starts",
    "stay here",
)
"""Of each of the commands."""


class LeaveDialog(Dialog[Leave | None]):
    """Hand over, stop, or stay."""

    BINDINGS: ClassVar = bindings(LEAVE_COMMANDS)
    LEAVES: ClassVar = "stay"

    def compose(self) -> ComposeResult:
        """The question and the keys."""
        with Vertical(classes="dialog"):
            yield Static("Quit? The scheduler runs in this console.", classes="title", markup=False)
            keys = [keymap_of(self).told(command).first_key for command in LEAVE_COMMANDS]
            room = max(map(len, keys))
            lines = (f"{key.ljust(room)}  {words}" for key, words in zip(keys, _WORDS, strict=True))
            yield Static("\n".join(lines), classes="answers", markup=False)

    def action_choose(self, name: str) -> None:
        """Leave that way."""
        self.dismiss(Leave[name])

    def action_stay(self) -> None:
        """Do not leave."""
        self.dismiss(None)
