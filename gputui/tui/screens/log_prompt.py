"""Prompt in the last line for a pattern; the log behind it shows hits as it is typed."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from gputui.domain.text import plain
from gputui.tui.commands import GIVE_UP, bindings
from gputui.tui.keymap import keymap_of
from gputui.tui.log.pattern import pattern_of
from gputui.tui.screens.dialog import Leavable

_LONGEST = 500
_MOST = 50
HISTORY: dict[str, list[str]] = {}
"""Patterns typed before, by prompt, for as long as the console runs."""


class LogPrompt(Leavable[str | None], ModalScreen[str | None]):
    """Prompt that returns a regular expression: "" for none, None when Escape was pressed."""

    BINDINGS: ClassVar = [*bindings((GIVE_UP,)), ("up", "recall(-1)"), ("down", "recall(1)")]
    LEAVES: ClassVar = "give_up"
    DEFAULT_CSS = """
    LogPrompt {
        align: left bottom; background: $background 0%;
        #asked { height: 1; background: $surface; dock: bottom; }
        #sign { width: auto; padding: 0 0 0 1; color: $primary; text-style: bold; }
        #said { width: auto; padding: 0 1; color: $foreground 75%; }
        Input { border: none; height: 1; padding: 0 1; background: $surface; width: 1fr; }
    }
    """

    def __init__(self, word: str, before: str, typed: Callable[[str], None]) -> None:
        super().__init__()
        self._word = word
        self._before = before
        self._typed = typed
        self._said = HISTORY.setdefault(word, [])
        self._at = len(self._said)

    def compose(self) -> ComposeResult:
        """Yield the sign, the field, and keys or an error."""
        with Horizontal(id="asked"):
            yield Static(self._word, id="sign", markup=False)
            yield Input(self._before, placeholder="regular expression", compact=True, max_length=_LONGEST)
            yield Static(self._how, id="said", markup=False)

    @property
    def _how(self) -> str:
        return f"Enter ok  {keymap_of(self).key('give_up')} cancel"

    @on(Input.Changed)
    def _show(self, event: Input.Changed) -> None:
        text = plain(event.value, _LONGEST)
        pattern = pattern_of(text)
        wrong = f"as plain text: {plain(pattern.fault, 50)}" if pattern and pattern.fault else self._how
        self.query_one("#said", Static).update(wrong)
        self._typed(text)

    @on(Input.Submitted)
    def _done(self, event: Input.Submitted) -> None:
        text = plain(event.value, _LONGEST)
        if text and text not in self._said[-1:]:
            self._said.append(text)
            del self._said[:-_MOST]
        self.dismiss(text)

    def action_recall(self, step: int) -> None:
        """Recall an earlier pattern."""
        self._at = max(0, min(len(self._said), self._at + step))
        field = self.query_one(Input)
        field.value = self._said[self._at] if self._at < len(self._said) else ""
        field.cursor_position = len(field.value)

    def action_give_up(self) -> None:
        """Restore the pattern from before."""
        self._typed(self._before)
        self.dismiss(None)
