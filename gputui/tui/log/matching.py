"""Matches lines of a log in its own process, because `re` holds the GIL and one expression can take for ever.

The parent writes the expression once, then batches of lines; for each batch the child answers which of them match.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO

from gputui.tui.log.finder import TooSlow, impatient, pattern_of, text_of
from gputui.tui.present.log import without_stamp

_HEADER = struct.Struct(">IB")
"""Bytes of a batch, and whether its lines begin with their times."""
_COUNT = struct.Struct(">i")
_TOO_SLOW = -1
_PATIENCE = 0.5
"""Seconds of CPU time that a batch may take."""


class Matcher:
    """A child process that has compiled one expression. Every call may raise OSError if the child has ended."""

    def __init__(self, text: str) -> None:
        command = [sys.executable, "-P", "-m", "gputui.tui.log.matching"]
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing, start_new_session=True)
        expression = text.encode("utf-8", "surrogatepass")
        self._write(_COUNT.pack(len(expression)) + expression)

    def hits(self, lines: Sequence[bytes], *, is_stamped: bool) -> array[int]:
        """Return the indices of the matching lines. Raises TooSlow."""
        data = b"\n".join(lines)
        self._write(_HEADER.pack(len(data), is_stamped) + data)
        stdout = self._process.stdout
        (count,) = _COUNT.unpack(_read(stdout, _COUNT.size))
        if count == _TOO_SLOW:
            raise TooSlow
        found = array("i")
        found.frombytes(_read(stdout, count * found.itemsize))
        return found

    def close(self) -> None:
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if stream is not None:
                    stream.close()
        self._process.wait()

    def _write(self, data: bytes) -> None:
        stream = self._process.stdin
        if stream is not None:
            stream.write(data)
            stream.flush()


def _read(stream: IO[bytes] | None, count: int) -> bytes:
    data = stream.read(count) if stream is not None else b""
    if len(data) < count:
        raise BrokenPipeError(32, "the process that searches has ended")
    return data


def serve(source: IO[bytes], sink: IO[bytes]) -> None:
    """Answer batches until the parent closes the pipe."""
    (size,) = _COUNT.unpack(_read(source, _COUNT.size))
    pattern = pattern_of(_read(source, size).decode("utf-8", "surrogatepass"))
    test: Callable[[str], bool] = pattern.is_in if pattern is not None else bool
    while header := source.read(_HEADER.size):
        size, is_stamped = _HEADER.unpack(header)
        lines = _read(source, size).split(b"\n")
        sink.write(_answer(test, lines, is_stamped=bool(is_stamped)))
        sink.flush()


def _answer(test: Callable[[str], bool], lines: list[bytes], *, is_stamped: bool) -> bytes:
    try:
        with impatient(_PATIENCE):
            found = array(
                "i", (at for at, raw in enumerate(lines) if test(text_of(without_stamp(raw) if is_stamped else raw)))
            )
    except TooSlow:
        return _COUNT.pack(_TOO_SLOW)
    return _COUNT.pack(len(found)) + found.tobytes()


if __name__ == "__main__":
    with suppress(BrokenPipeError, KeyboardInterrupt):
        serve(sys.stdin.buffer, sys.stdout.buffer)
