"""Tells the operator what happened: on the screen, by the bell, and to the desktop, each as the settings say."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from typing import Literal, Protocol, cast

from gputui.domain.settings import ConsoleSettings
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import plain
from gputui.ports import Clock
from gputui.tui.happenings import Happening, Watcher

KEPT = 500
"""Happenings in the log of a session."""
_TITLES = {"error": "Failed", "warning": "Warning", "information": ""}
_TEXT = 200
"""Characters of a desktop notification."""


class Screen(Protocol):
    """What an app can do to be heard."""

    def toast(self, text: str, title: str, severity: Literal["information", "warning", "error"]) -> None:
        """Show it for a while."""
        ...

    def bell(self) -> None:
        """Ring."""
        ...

    def send(self, sequence: str) -> None:
        """Write to the terminal."""
        ...


class Notifier:
    """Watches the pictures, tells what is news, and remembers it for the log."""

    def __init__(self, screen: Screen, settings: ConsoleSettings, user: str, clock: Clock) -> None:
        self._screen = screen
        self._settings = settings
        self._clock = clock
        self._watcher = Watcher(user, mine_only=settings.notify_for == "mine")
        self.log: deque[Happening] = deque(maxlen=KEPT)
        """The latest is last."""

    def take(self, snapshot: Snapshot) -> None:
        """Tell what this picture has that the one before had not."""
        news = self._watcher.look(snapshot, self._clock.now())
        self.log.extend(news)
        told = [happening for happening in news if happening.is_told]
        for happening in told:
            if _wanted(self._settings.toast, happening):
                severity = cast("Literal['information', 'warning', 'error']", happening.severity)
                self._screen.toast(happening.text, _TITLES.get(severity, ""), severity)
            if _wanted(self._settings.desktop, happening):
                self._screen.send(desktop_sequence(happening.text))
        if any(_wanted(self._settings.bell, happening) for happening in told):
            self._screen.bell()

    def note(self, severity: str, text: str) -> None:
        """Have it in the log: it has been shown already."""
        self.log.append(Happening(self._clock.now(), severity, plain(text, 500), is_told=False))


def _wanted(choice: str, happening: Happening) -> bool:
    return choice == "all" or (choice == "failed" and happening.is_bad)


def desktop_sequence(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """What makes the terminal show a desktop notification; one that cannot ignores it.

    OSC 9 (iTerm2's, known to WezTerm, Ghostty, kitty and others) or OSC 777 (urxvt's, known to foot and to VTE). The
    text begins with a name, never with a digit, which ConEmu and Windows Terminal would take for a command of theirs.
    """
    words = plain(text, _TEXT).replace(";", ",")
    by_777 = "VTE_VERSION" in environ or environ.get("TERM", "").startswith(("foot", "rxvt"))
    sequence = f"\x1b]777;notify;gputui;{words}\a" if by_777 else f"\x1b]9;gputui: {words}\a"
    if "TMUX" in environ:  # passed through where its allow-passthrough is on, dropped otherwise
        return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"
    if environ.get("TERM", "").startswith("screen"):
        return "\x1bP" + sequence + "\x1b\\"
    return sequence
