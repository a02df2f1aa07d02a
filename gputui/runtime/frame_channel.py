"""Channel over a socket that carries frames: the wrapper of a host job, or the scheduler's relay."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress

from gputui.domain import frames
from gputui.domain.errors import GputuiError

_PIECE = 65536
_MOST = 32768
"""Bytes of input in one frame."""


class FrameChannel:
    """Channel over a connected socket. Frames that are not output are given to `hear`."""

    def __init__(self, connection: socket.socket, *, is_tty: bool) -> None:
        self._connection = connection
        self._frames = frames.Frames()
        self._exit_code: int | None = None
        self._early: list[tuple[bool, bytes]] = []
        self.is_tty = is_tty
        self.on_input: Callable[[], None] = lambda: None
        self.hear: Callable[[bytes, bytes], None] = lambda kind, content: None

    @property
    def has_pending(self) -> bool:
        """Return whether there is output that came with the greeting."""
        return bool(self._early)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._connection.fileno()

    def input_fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._connection.fileno()

    def receive(self) -> list[tuple[bool, bytes]] | None:
        """Return output; None at the end. Raises GputuiError with the words of a refusal."""
        if self._early:
            early, self._early = self._early, []
            return early
        try:
            piece = self._connection.recv(_PIECE)
            return [part for part in map(self._part, self._frames.feed(piece)) if part] if piece else None
        except (ConnectionError, frames.MalformedFrameError):
            return None

    def keep(self, parts: list[tuple[bool, bytes]]) -> None:
        """Keep output for the next `receive`: on a busy machine the first of it comes together with the greeting."""
        self._early = parts

    def _part(self, message: tuple[bytes, bytes]) -> tuple[bool, bytes] | None:
        kind, content = message
        if kind in (frames.OUTPUT, frames.ERRORS):
            return kind == frames.ERRORS, content
        if kind == frames.REFUSED:
            raise GputuiError(content.decode(errors="replace"))
        if kind == frames.EXIT:
            self._exit_code = frames.exit_of(content)
        self.hear(kind, content)
        return None

    def send(self, data: bytes) -> None:
        """Send input. Raises OSError."""
        self.on_input()
        for at in range(0, len(data), _MOST):
            self._connection.sendall(frames.frame(frames.INPUT, data[at : at + _MOST]))

    def end_input(self) -> None:
        """End the input."""
        with suppress(OSError):
            self._connection.sendall(frames.frame(frames.END_OF_INPUT))

    def resize(self, rows: int, columns: int) -> None:
        """Send the size of the terminal."""
        with suppress(OSError):
            self._connection.sendall(frames.size_frame(rows, columns))

    def exit_code(self) -> int | None:
        """Return the exit code that the other side sent."""
        return self._exit_code

    def close(self) -> None:
        """Close the socket."""
        self._connection.close()


def peer_uid(connection: socket.socket) -> int:
    """Return the uid of the process at the other end, as the kernel recorded it when it connected or listened."""
    import struct

    uid: int = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    return uid
