"""Buffer for input to a command that reads slowly."""

from __future__ import annotations

from collections.abc import Callable

PIECE = 4096
"""Bytes that a writable pipe or socket accepts without blocking (PIPE_BUF)."""
_FULL = 16 * PIECE


class PendingInput:
    """Buffers input until its descriptor is writable, so that the sender can read output meanwhile."""

    def __init__(self, send: Callable[[bytes], None], end: Callable[[], None]) -> None:
        self._send = send
        self._end = end
        self._waiting = bytearray()
        self._is_ended = False

    @property
    def is_waiting(self) -> bool:
        """Return whether there is input to send."""
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        """Return whether no more input should be added for now."""
        return len(self._waiting) >= _FULL

    def put(self, data: bytes) -> None:
        """Add input."""
        self._waiting += data

    def put_end(self) -> None:
        """End the input after the buffered data."""
        self._is_ended = True
        self._end_if_empty()

    def send_piece(self) -> None:
        """Send one piece. Raises OSError when the command no longer reads; the buffer is dropped then."""
        piece = bytes(self._waiting[:PIECE])
        del self._waiting[:PIECE]
        try:
            self._send(piece)
        except OSError:
            self._waiting.clear()
            raise
        self._end_if_empty()

    def _end_if_empty(self) -> None:
        if self._is_ended and not self._waiting:
            self._end()
