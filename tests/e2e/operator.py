"""Operator of a console in a real terminal, whose keys and clicks are counted."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.e2e.terminal import Terminal

MOST_KEYS = 5
"""Maximum number of keys or clicks for a task."""


class Operator:
    """Presses keys, and counts them without typed words."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self.pressed = 0

    def press(self, *keys: str) -> Operator:
        self.pressed += len(keys)
        self._terminal.press(*keys)
        return self

    def leave(self, word: str) -> None:
        """Press Escape on the screen with this word, and wait until the word is gone."""
        self.pressed += 1
        self._terminal.leave(word)

    def click(self, word: str, *, times: int = 1) -> Operator:
        """Click on a word; a double click is one gesture."""
        self.pressed += 1
        self._terminal.click(word, times=times)
        return self

    def right_click(self, word: str) -> Operator:
        """Open the menu of a row."""
        self.pressed += 1
        self._terminal.click(word, button=2)
        return self

    def resize(self, columns: int, lines: int) -> None:
        self._terminal.resize(columns, lines)

    def type(self, text: str) -> None:
        self._terminal.press("-l", text)

    def find(self, words: str, name: str) -> None:
        """Filter the queue, and wait until a job of this name is the selected one, whose log is shown."""
        self.press("/")
        self.type(words)
        self.sees(f" /{words}")  # Enter that reaches the console together with text is part of a paste
        self.press("Enter")
        self.sees(" jobs   Esc shows all", name)
        self.sees_that(lambda shown: re.search(rf" LOG #\d+ {name} ", shown) is not None)

    def sees(self, *wanted: str) -> str:
        return self._terminal.until(*wanted)

    def sees_that(self, condition: Callable[[str], bool]) -> str:
        return self._terminal.until_that(condition)

    def sees_no_more(self, word: str) -> None:
        self._terminal.until_gone(word)

    def is_back(self) -> None:
        """Return to the main screen; the next task's keys are counted from zero."""
        assert self.pressed <= MOST_KEYS
        self.sees_that(_is_main)
        self.pressed = 0


def _is_main(shown: str) -> bool:
    """Return whether the main screen is on top, without a dialog."""
    return all(word in shown for word in (" ID ST", "s submit", "q quit")) and "╭" not in shown
