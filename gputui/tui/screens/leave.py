"""What is to become of the scheduler that runs in this console."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from gputui.tui.leave import Leave
from gputui.tui.screens.dialog import Dialog

_WORDS = (
    "b Enter  hand over to a background scheduler: jobs start as before\n"
    "s        stop dispatching: running jobs go on, none starts\n"
    "Esc      stay here"
)


class LeaveDialog(Dialog[Leave | None]):
    """Hand over, stop, or stay."""

    BINDINGS: ClassVar = [
        ("b,enter", "choose('HAND_OVER')", "hand over"),
        ("s", "choose('STOP')", "stop"),
        ("escape,n,q", "stay", "stay"),
    ]

    def compose(self) -> ComposeResult:
        """The question and the keys."""
        with Vertical(classes="dialog"):
            yield Static("Quit? The scheduler runs in this console.", classes="title", markup=False)
            yield Static(_WORDS, classes="answers", markup=False)

    def action_choose(self, name: str) -> None:
        """Leave that way."""
        self.dismiss(Leave[name])

    def action_stay(self) -> None:
        """Do not leave."""
        self.dismiss(None)
