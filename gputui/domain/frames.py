"""Frames on the sockets that carry a terminal or the streams of a job: kind, length and content.

Standard library only: the wrapper of a host job imports this module without any other package.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

INPUT, END_OF_INPUT, SIZE = b"i", b"e", b"s"
"""Client to server: bytes for standard input, its end, and the size of the terminal."""
OUTPUT, ERRORS, EXIT, READY, REFUSED = b"o", b"r", b"x", b"y", b"f"
"""Server to client: standard output, standard error, exit code, start, and refusal with a message."""
UNREACHABLE = b"u"
"""Server to client: nothing can be attached to now, with a message; the client may try again."""
JOB = b"j"
"""Server to client: the number of the job, as the first frame of a stream."""
LARGEST = 1 << 20
"""Maximum size of a frame in bytes."""
_HEADER = struct.Struct(">cI")
_SIZE = struct.Struct(">HH")
_EXIT = struct.Struct(">i")


class MalformedFrameError(ValueError):
    """Raised for bytes that are not a frame."""


def frame(kind: bytes, content: bytes = b"") -> bytes:
    return _HEADER.pack(kind, len(content)) + content


def size_frame(rows: int, columns: int) -> bytes:
    """Return the frame of a terminal's size."""
    return frame(SIZE, _SIZE.pack(min(rows, 0xFFFF), min(columns, 0xFFFF)))


def size_of(content: bytes) -> tuple[int, int]:
    """Return rows and columns of a terminal; raises MalformedFrameError."""
    try:
        rows, columns = _SIZE.unpack(content)
    except struct.error as error:
        raise MalformedFrameError(str(error)) from None
    return rows, columns


def exit_frame(code: int) -> bytes:
    return frame(EXIT, _EXIT.pack(code))


def exit_of(content: bytes) -> int:
    """Return an exit code; raises MalformedFrameError."""
    try:
        code: int = _EXIT.unpack(content)[0]
    except struct.error as error:
        raise MalformedFrameError(str(error)) from None
    return code


class Frames:
    """Splits a stream of bytes that arrives in pieces into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield kind and content of the frames that are complete with this piece; raises MalformedFrameError."""
        self._rest += piece
        while len(self._rest) >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._rest)
            if length > LARGEST:
                raise MalformedFrameError(f"a frame of {length} bytes")
            end = _HEADER.size + length
            if len(self._rest) < end:
                return
            content = bytes(self._rest[_HEADER.size : end])
            del self._rest[:end]
            yield kind, content


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
