"""A real terminal: a program under tmux, its keys and its screen."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from types import TracebackType


class Terminal:
    """One tmux server of its own, with one window of that size."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], columns: int = 80, lines: int = 24) -> None:
        self._socket = f"gputui-{os.getpid()}-{time.monotonic_ns()}"
        pairs = [f"{key}={value}" for key, value in environ.items() if os.environ.get(key) != value]
        line = shlex.join(["env", "-u", "COLUMNS", "-u", "LINES", *pairs, *command]) + "; echo EXIT $?; sleep 60"
        self._tmux("new-session", "-d", "-x", str(columns), "-y", str(lines), line)

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(["tmux", "-L", self._socket, *words], capture_output=True, check=True, timeout=20)
        return done.stdout.decode()

    def press(self, *keys: str) -> None:
        """Type, in tmux's names of keys."""
        self._tmux("send-keys", *keys)

    @property
    def text(self) -> str:
        """What is on the screen."""
        return self._tmux("capture-pane", "-p")

    @property
    def modes(self) -> str:
        """What the terminal is set to: of the other screen, the mouse, the cursor and the wrapping of lines."""
        names = {"alternate_on": "other", "mouse_any_flag": "mouse", "cursor_flag": "cursor", "wrap_flag": "wrap"}
        form = " ".join(f"#{{?{flag},{name},}}" for flag, name in names.items())
        return " ".join(self._tmux("display-message", "-p", form).split())

    def until(self, *wanted: str, seconds: float = 15) -> str:
        """The screen, once it shows all of these."""
        deadline = time.monotonic() + seconds
        while True:
            shown = self.text
            if all(word in shown for word in wanted):
                return shown
            assert time.monotonic() < deadline, f"no {wanted} in\n{shown}"
            time.sleep(0.05)

    def close(self) -> None:
        """Close the terminal, as a lost SSH connection does: its programs get SIGHUP."""
        subprocess.run(["tmux", "-L", self._socket, "kill-server"], check=False, capture_output=True)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
