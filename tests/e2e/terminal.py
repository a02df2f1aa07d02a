"""Real terminal: a program under tmux, its keys and its screen."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from gputui.domain.text import width

_PATIENCE = 60.0
"""Seconds to wait for something on the screen."""
_REST, _LONGEST_REST = 0.05, 0.5
"""Seconds between two looks at the screen, at least and at most."""
_RESTS = 5
"""Such a rest as a multiple of the duration of a look, which is long on a busy machine."""
_STANDS = 0.1
"""Seconds for which words must stay where they are before a click on them."""
_REACTION = 3.0
"""Seconds after a key or click for which its effect is kept, to be shown when the test fails: a toast goes away."""


def _place(word: str, text: str) -> int | None:
    """Return where the text has these words; a blank stands for one or more, as columns may be apart."""
    found = re.search(re.escape(word).replace("\\ ", " +"), text)
    return found.start() if found else None


class Terminal:
    """Tmux server of its own, with one window of that size."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], columns: int = 80, lines: int = 24) -> None:
        self._pressed_at = time.monotonic()
        self._rest = _REST
        self._reaction = ""
        self._socket = f"gputui-{os.getpid()}-{time.monotonic_ns()}"
        pairs = [f"{key}={value}" for key, value in environ.items() if os.environ.get(key) != value]
        line = shlex.join(["env", "-u", "COLUMNS", "-u", "LINES", *pairs, *command]) + "; echo EXIT $?; sleep 60"
        self._tmux("new-session", "-d", "-x", str(columns), "-y", str(lines), line)

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(["tmux", "-L", self._socket, *words], capture_output=True, check=True, timeout=_PATIENCE)
        return done.stdout.decode()

    def press(self, *keys: str) -> None:
        """Type, in tmux's names of keys, without Escape: see `leave`.

        Returns once `/` has opened its field: a key that reaches the console together with text reads as a paste.
        """
        assert "Escape" not in keys, keys
        self._send(*keys)
        if keys[-1] == "/":
            self.until_that(lambda shown: any(line.lstrip().startswith("/") for line in shown.splitlines()), "field")

    def leave(self, word: str) -> None:
        """Press Escape on the screen with this word, and wait until the word is gone.

        A key that reaches the console together with Escape reads as Alt+key. So Escape must have taken effect, which
        only a word shows that was there before.
        """
        self.until(word)
        self._send("Escape")
        self.until_gone(word)

    def press_at_once(self, *keys: str) -> None:
        """Type keys that reach the program together, as over a slow line."""
        self._send(*keys)

    def _send(self, *words: str) -> None:
        """Send keys, or a click, and begin to keep its effect."""
        self._pressed_at = time.monotonic()
        self._tmux("send-keys", *words)

    def resize(self, columns: int, lines: int) -> None:
        """Change the size of the window."""
        self._tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def click(self, word: str, *, times: int = 1, button: int = 0) -> None:
        """Click on the first of these words on the screen, once it stands still.

        Half a new frame may be beside half an old one for as long as the console gets no processor time.
        """
        place = self._place_of(word)
        while place != (place := self._place_of_later(word)):
            pass
        self._send("-l", f"\x1b[<{button};{place}M\x1b[<{button};{place}m" * times)

    def _place_of_later(self, word: str) -> str:
        time.sleep(_STANDS)
        return self._place_of(word)

    def _place_of(self, word: str) -> str:
        """Return column and line of a word, as a terminal reports them for a click."""
        shown = self.until(word).splitlines()
        line, found = next((number, at) for number, text in enumerate(shown) if (at := _place(word, text)) is not None)
        start = found + len(word) - len(word.lstrip("│ "))
        return f"{width(shown[line][:start]) + 1};{line + 1}"

    def wheel(self, word: str, *, down: bool = True) -> None:
        """Turn the wheel by one notch over these words."""
        self.click(word, button=65 if down else 64)

    @property
    def text(self) -> str:
        """Text of the screen."""
        return self._tmux("capture-pane", "-p")

    def _look(self) -> str:
        """Return the text of the screen, after a rest that leaves most of the processor to the program."""
        time.sleep(self._rest)
        began = time.monotonic()
        shown = self.text
        self._rest = min(max(_REST, _RESTS * (time.monotonic() - began)), _LONGEST_REST)
        return shown

    @property
    def modes(self) -> str:
        """Modes of the terminal: alternate screen, mouse, cursor and line wrapping."""
        names = {"alternate_on": "other", "mouse_any_flag": "mouse", "cursor_flag": "cursor", "wrap_flag": "wrap"}
        form = " ".join(f"#{{?{flag},{name},}}" for flag, name in names.items())
        return " ".join(self._tmux("display-message", "-p", form).split())

    def until(self, *wanted: str, seconds: float = _PATIENCE) -> str:
        """Return the screen, once it shows all of these texts."""
        return self.until_that(
            lambda shown: all(_place(word, shown) is not None for word in wanted), f"{wanted}", seconds
        )

    def until_that(self, condition: Callable[[str], bool], wanted: str = "such", seconds: float = _PATIENCE) -> str:
        """Return the screen, once the condition holds for it."""
        deadline = time.monotonic() + seconds
        while not condition(shown := self._look()):
            if time.monotonic() - self._pressed_at < _REACTION:
                self._reaction = shown
            assert time.monotonic() < deadline, (
                f"no {wanted} in\n{shown}\nup to {_REACTION:g} s after the last key:\n{self._reaction}"
            )
        return shown

    def until_gone(self, word: str, seconds: float = _PATIENCE) -> None:
        """Wait until the screen no longer shows this word."""
        deadline = time.monotonic() + seconds
        while _place(word, shown := self._look()) is not None:
            assert time.monotonic() < deadline, f"still {word} in\n{shown}"

    def close(self) -> None:
        """Close the terminal, as a lost SSH connection does: its programs get SIGHUP."""
        subprocess.run(["tmux", "-L", self._socket, "kill-server"], check=False, capture_output=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
