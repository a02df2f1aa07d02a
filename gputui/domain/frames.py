"""Frames on the sockets that carry a terminal or the streams of a job; marks around the output of a command elsewhere.

Nothing but the standard library is imported with it: the wrapper of a host job has no time for more.
"""

from __future__ import annotations

import os
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
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        """Return whether no more input should be added for now."""
        return len(self._waiting) >= _FULL

    def put(self, data: bytes) -> None:
        self._waiting += data

    def put_end(self) -> None:
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


SHELL_SAYS = "its login shell prints lines around each command, which are left out: {!r}"
_LONGEST_CODE = 8
_MOST_WORDS = 4096
"""Characters of what others print that are kept: the last ones, since errors come last."""
_AROUND = """{{ set +xv; }} 2>/dev/null
gputui_mark() {{ printf '\\033_gputui:{key}:%s\\033\\134\\n' "$1"; }}
trap : INT QUIT
gputui_mark begin; gputui_mark begin >&2
(
{script}
)
set -- $?; gputui_mark "$1"; gputui_mark "$1" >&2; exit "$1"
"""
"""Ctrl-C reaches these lines too, which have to outlive the command to tell its exit code."""


class CommandMarks:
    """Finds the marks of one command in a stream of its output; with `ends_line` each mark is a line of its own.

    srun passes on the output of a command without a terminal line by line.
    """

    def __init__(self, *, ends_line: bool = True, key: str = "") -> None:
        """`key` is that of the marks of another stream of the same command."""
        import re  # takes longer than all else here, and a wrapper needs no marks

        self.key = key or os.urandom(12).hex()
        self.has_begun = False
        self.code: int | None = None
        """Exit code of the command; None: it has not ended."""
        self.words = ""
        """The last of the output before the beginning: messages of the programs on the way."""
        self._after = ""
        self._start = b"\x1b_gputui:" + self.key.encode() + b":"
        self._mark = re.compile(re.escape(self._start) + rb"(begin|\d{1,3})\x1b\\" + (rb"\r?\n" if ends_line else b""))
        self._held = b""

    def around(self, script: str) -> str:
        """Return lines of sh that run these between marks on standard output and standard error."""
        return _AROUND.format(key=self.key, script=script)

    def before(self, script: str) -> str:
        """Return lines of sh that run these after a mark on standard output, which stays without an end."""
        return f"printf '\\033_gputui:{self.key}:begin\\033\\134\\n'; {script}"

    def whole(self, output: bytes) -> bytes:
        """Return the part of all output that is the command's; a terminal on the way changes its ends of line."""
        own = self.feed(output) + self.rest()
        return own.replace(b"\r\n", b"\n") if self._start + b"begin\x1b\\\r\n" in output else own

    def feed(self, data: bytes) -> bytes:
        """Return the part of further output that is the command's; the beginning of a mark is held back."""
        text, passed = self._held + data, b""
        while (match := self._mark.search(text)) is not None:
            passed += self._own(text[: match.start()])
            if match[1] == b"begin":
                self.has_begun = True
            else:
                self.code = int(match[1])
            text = text[match.end() :]
        kept = self._unfinished(text)
        self._held = text[len(text) - kept :]
        return passed + self._own(text[: len(text) - kept])

    def first(self, data: bytes) -> bytes:
        """Return the command's part of further output, with nothing held back once it has begun."""
        own = self.feed(data)
        return own + self.rest() if self.has_begun else own

    def rest(self) -> bytes:
        held, self._held = self._held, b""
        return self._own(held)

    def told(self, most: int = 60) -> str:
        """Return the last line of what programs on the way printed; empty if they printed nothing."""
        from gputui.domain.text import plain  # the wrapper of a host job does without

        lines = [line for line in f"{self._after}\n{self.words}".splitlines() if line.strip()]
        return plain(lines[-1].strip(), most) if lines else ""

    def _own(self, text: bytes) -> bytes:
        if self.has_begun and self.code is None:
            return text
        words = text[-4 * _MOST_WORDS :].decode(errors="replace")
        if self.has_begun:
            self._after = (self._after + words)[-_MOST_WORDS:]
        else:
            self.words = (self.words + words)[-_MOST_WORDS:]
        return b""

    def _unfinished(self, text: bytes) -> int:
        """Return the length of the end of the text that may be the beginning of a mark."""
        at = text.rfind(b"\x1b")
        if at < 0:
            return 0
        inside = text.rfind(self._start)
        if inside >= 0 and len(text) - inside <= len(self._start) + _LONGEST_CODE:
            return len(text) - inside
        return len(text) - at if self._start.startswith(text[at:]) else 0
