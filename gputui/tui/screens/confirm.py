"""A question that is answered with yes or no."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from gputui.tui.commands import NO, YES, bindings
from gputui.tui.screens.dialog import Dialog


class Confirm(Dialog[bool]):
    """Yes or no; Escape is no."""

    BINDINGS: ClassVar = bindings((YES, NO))
    LEAVES: ClassVar = "answer('no')"

    def __init__(self, question: str, detail: str = "") -> None:
        super().__init__()
        self._question = question
        self._detail = detail

    def compose(self) -> ComposeResult:
        """The question and the keys."""
        with Vertical(classes="dialog"):
            yield Static(self._question, classes="title", markup=False)
            if self._detail:
                yield Static(self._detail, classes="detail", markup=False)
            yield Static(self.answers((YES, "yes"), (NO, "no")), classes="keys", markup=False)

    def action_answer(self, word: str) -> None:
        """Give the answer back."""
        self.dismiss(word == "yes")
