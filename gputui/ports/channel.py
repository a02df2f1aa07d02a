"""Channels: the streams of a command that somebody is attached to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Channel(Protocol):
    """Standard streams of a command inside a job, or of the job itself."""

    on_input: Callable[[], None]
    """Called with each input."""

    @property
    def is_tty(self) -> bool:
        """Return whether they are a terminal's: then all output is standard output."""
        ...

    @property
    def has_pending(self) -> bool:
        """Return whether `receive` returns at once, whatever `fileno` says."""
        ...

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is output."""
        ...

    def receive(self) -> list[tuple[bool, bytes]] | None:
        """Return output, each piece with whether it is of standard error; wait for some. None: it has ended."""
        ...

    def input_fileno(self) -> int:
        """Return a descriptor that is writable when a small piece can be sent without waiting; -1: none is read."""
        ...

    def send(self, data: bytes) -> None:
        """Write to standard input. Raises OSError when the command no longer reads."""
        ...

    def end_input(self) -> None:
        """End standard input; a terminal has no end."""
        ...

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of its terminal."""
        ...

    def exit_code(self) -> int | None:
        """Return the exit code after the end; None when it is unknown."""
        ...

    def close(self) -> None:
        """Detach; the command runs on."""
        ...
