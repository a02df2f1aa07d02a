"""Person at a terminal: a command on a pty, its output, and keys."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Mapping, Sequence

_PATIENCE = 60.0


class Person:
    """A gputui command on a pty of its own."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *words: str,
        size: tuple[int, int] = (24, 80),
        program: Sequence[str] = ("-m", "gputui"),
    ) -> None:
        """Run the interpreter with the arguments `program` and the words."""
        self.pid, self._terminal = pty.fork()
        if not self.pid:
            os.execve(sys.executable, [sys.executable, *program, *words], dict(environ))
        self.resize(*size)
        self.shown = b""

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the terminal, which tells the command."""
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def stop(self) -> None:
        """Stop the command and wait until it has stopped."""
        os.kill(self.pid, signal.SIGSTOP)  # the kernel lets no SIGTSTP stop a command without a shell
        os.waitpid(self.pid, os.WUNTRACED)

    def be_a_shell(self) -> None:
        """Set the modes of the terminal as a shell does when it gets it back."""
        modes = termios.tcgetattr(self._terminal)
        modes[3] |= termios.ICANON | termios.ECHO | termios.ISIG
        termios.tcsetattr(self._terminal, termios.TCSANOW, modes)

    @property
    def is_raw(self) -> bool:
        """Return whether the terminal is in raw mode."""
        return not termios.tcgetattr(self._terminal)[3] & termios.ICANON

    def press(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._terminal, keys)

    def until(self, wanted: bytes) -> bytes:
        """Wait until that text is shown, and discard the output before it."""
        deadline = time.monotonic() + _PATIENCE
        while wanted not in self.shown:
            ready = select.select([self._terminal], [], [], max(0.0, deadline - time.monotonic()))[0]
            assert ready, f"no {wanted!r} in {self.shown!r}"
            piece = self._read()
            assert piece, f"it ended without {wanted!r}: {self.shown!r}"
            self.shown += piece
        before, _, self.shown = self.shown.partition(wanted)
        return before

    def _read(self) -> bytes:
        try:
            return os.read(self._terminal, 65536)
        except OSError:
            return b""

    def ended(self) -> int:
        """Return the exit code, once the command has ended."""
        while piece := self._read():
            self.shown += piece
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def hang_up(self) -> int:
        """Close the terminal, as a broken connection does; return the exit code."""
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
