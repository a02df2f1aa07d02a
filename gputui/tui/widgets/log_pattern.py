"""Patterns of a search, and a child process that matches lines.

`re` holds the GIL, and one expression can take for ever. The parent writes it once, then batches of lines; for each the
child answers which of them match.
"""

from __future__ import annotations

import re
import signal
import struct
import subprocess
import sys
import threading
import warnings
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import IO

from msgspec import Struct

from gputui.domain.text import plain_bytes
from gputui.tui.present.log import MOST, shown_text, without_stamp

PATIENCE = 0.15
"""Seconds of CPU time after which a match is aborted."""
_ESCAPED = re.compile(r"\\.")


class TooSlow(Exception):  # noqa: N818 - said of a pattern
    """Raised when matching an expression takes too long."""


class Pattern(Struct, frozen=True):
    """Regular expression, case-sensitive only if it contains a capital letter."""

    text: str
    fault: str = ""
    """Reason why it is not a regular expression; it is then searched as plain text."""

    @property
    def expression(self) -> re.Pattern[str]:
        return _compiled(self.text)[0]

    def is_in(self, text: str) -> bool:
        return self.expression.search(text) is not None

    def places(self, text: str, most: int = 100) -> list[tuple[int, int]]:
        """Return the spans of its non-empty matches in the line."""
        found: list[tuple[int, int]] = []
        for match in self.expression.finditer(text):
            if match.end() > match.start():
                found.append(match.span())
            if len(found) >= most:
                break
        return found


def pattern_of(text: str) -> Pattern | None:
    return Pattern(text, _compiled(text)[1]) if text else None


@lru_cache(maxsize=32)
def _compiled(text: str) -> tuple[re.Pattern[str], str]:
    has_capital = any(char.isupper() for char in _ESCAPED.sub("", text))
    flags = 0 if has_capital else re.IGNORECASE
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return re.compile(text, flags), ""
    except (re.error, OverflowError, RecursionError) as error:
        return re.compile(re.escape(text), flags), str(error)


def text_of(raw: bytes) -> str:
    """Return the searched form of a line: as displayed, without colours."""
    raw = raw[:MOST]
    if b"\x1b" not in raw and raw.isascii():
        text = raw.decode("ascii")
        if text.isprintable():
            return text
    return shown_text(plain_bytes(raw))


@contextmanager
def impatient(seconds: float = PATIENCE) -> Iterator[None]:
    """Raise TooSlow when the body takes longer than `seconds` of CPU time.

    `re` holds the GIL and can take for ever on one line, so searches cannot run on another thread; but it handles
    signals. So they run on the main thread, like the console, where a timer aborts them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def give_up(*_: object) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


_HEADER = struct.Struct(">IB")
"""Bytes of a batch, and whether its lines begin with their times."""
_COUNT = struct.Struct(">i")
_TOO_SLOW = -1
_BATCH_PATIENCE = 0.5
"""Seconds of CPU time that a batch may take."""


class Matcher:
    """A child process that has compiled one expression. Every call may raise OSError if the child has ended."""

    def __init__(self, text: str) -> None:
        command = [sys.executable, "-P", "-m", "gputui.tui.widgets.log_pattern"]
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing, start_new_session=True)  # noqa: S603 - this Python, and our own module
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._into, self._from = self._process.stdin, self._process.stdout
        expression = text.encode("utf-8", "surrogatepass")
        self._into.write(_COUNT.pack(len(expression)) + expression)

    def hits(self, lines: Sequence[bytes], *, is_stamped: bool) -> array[int]:
        """Return the indices of the matching lines. Raises TooSlow."""
        data = b"\n".join(lines)
        self._into.write(_HEADER.pack(len(data), is_stamped) + data)
        self._into.flush()
        (count,) = _COUNT.unpack(_read(self._from, _COUNT.size))
        if count == _TOO_SLOW:
            raise TooSlow
        found = array("i")
        found.frombytes(_read(self._from, count * found.itemsize))
        return found

    def close(self) -> None:
        self._process.kill()
        for stream in (self._into, self._from):
            with suppress(OSError):
                stream.close()
        self._process.wait()


def _read(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
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
        try:
            with impatient(_BATCH_PATIENCE):
                texts = (text_of(without_stamp(raw) if is_stamped else raw) for raw in lines)
                found = array("i", (at for at, text in enumerate(texts) if test(text)))
        except TooSlow:
            sink.write(_COUNT.pack(_TOO_SLOW))
        else:
            sink.write(_COUNT.pack(len(found)) + found.tobytes())
        sink.flush()


if __name__ == "__main__":
    with suppress(BrokenPipeError, KeyboardInterrupt):
        serve(sys.stdin.buffer, sys.stdout.buffer)
