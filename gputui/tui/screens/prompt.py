"""A question that is answered with a line of text."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input, Static

from gputui.domain.text import plain
from gputui.tui.commands import GIVE_UP, bindings
from gputui.tui.screens.dialog import Dialog


class Prompt(Dialog[str | None]):
    """A line of text; None when Escape was pressed."""

    BINDINGS: ClassVar = bindings((GIVE_UP,))
    LEAVES: ClassVar = "give_up"

    def __init__(self, title: str, label: str, detail: str = "") -> None:
        super().__init__()
        self._question = title
        self._label = label
        self._detail = detail

    def compose(self) -> ComposeResult:
        """The question, a field and the keys."""
        with Vertical(classes="dialog"):
            yield Static(self._question, classes="title", markup=False)
            yield Static(self._detail, classes="detail", markup=False)
            yield Input(placeholder=self._label, compact=True, max_length=200)
            yield Static(f"Enter  do it     {self.answers((GIVE_UP, 'leave it'))}", classes="keys", markup=False)

    @on(Input.Submitted)
    def _typed(self, event: Input.Submitted) -> None:
        self.dismiss(plain(event.value.strip(), 200))

    def action_give_up(self) -> None:
        """Nothing is done."""
        self.dismiss(None)
