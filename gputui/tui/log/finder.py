"""Patterns of a search, and the lines of a log that match them: found a few at a time, or by a child process."""

from __future__ import annotations

import re
import signal
import struct
import subprocess
import sys
import threading
import time
import warnings
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import IO

from msgspec import Struct, field

from gputui.domain.text import plain_bytes
from gputui.tui.log.buffer import LogBuffer
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
    """Return the pattern of a typed text; None if it is empty."""
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


MOST_HITS = 1_000_000
"""Maximum number of hits whose positions are kept; older ones are only counted."""
_BLOCK = 200
"""Lines between two checks of the time."""


class OlderHits(Struct):
    """Sorted numbers of matching lines older than those in memory."""

    numbers: array[int] = field(default_factory=lambda: array("q"))
    uncounted: int = 0
    """Number of older hits whose positions are not kept."""
    border: int = 0
    """Number of the first line in memory when the search of older ones began."""
    shift: int | None = None
    """Position of a line from the start of the log, minus its number; None while unknown."""
    progress: str = ""
    """Progress of the search, as text; empty when it has ended."""
    fault: str = ""
    """Reason why older lines are not searched."""
    changes: int = 0
    """Number that grows whenever hits come."""

    @property
    def is_over(self) -> bool:
        return not self.progress

    @property
    def count(self) -> int:
        return self.uncounted + len(self.numbers)

    def after(self, number: int) -> int | None:
        at = bisect_right(self.numbers, number)
        return self.numbers[at] if at < len(self.numbers) else None

    def before(self, number: int) -> int | None:
        at = bisect_left(self.numbers, number)
        return self.numbers[at - 1] if at else None

    def rank(self, number: int) -> int | None:
        """Return the rank of the hit, from 1; None if it is not a hit."""
        at = bisect_left(self.numbers, number)
        return self.uncounted + at + 1 if at < len(self.numbers) and self.numbers[at] == number else None

    def take_gone(self, hits: Sequence[int]) -> None:
        """Add hits of lines that have just left memory."""
        self.numbers.extend(hits)
        self.changes += 1
        self._limit()

    def finish(self, numbers: array[int], uncounted: int, shift: int) -> None:
        self.numbers = numbers + self.numbers  # hits that left memory meanwhile are newer
        self.uncounted, self.shift, self.progress = uncounted, shift, ""
        self.changes += 1
        self._limit()

    def fail(self, fault: str) -> None:
        self.fault, self.progress = fault, ""
        self.changes += 1

    def forget_from(self, number: int) -> None:
        """Drop the hits from that line on, which are found in memory."""
        if self.numbers and self.numbers[-1] >= number:
            del self.numbers[bisect_left(self.numbers, number) :]
            self.changes += 1

    def _limit(self) -> None:
        if (excess := len(self.numbers) - MOST_HITS) > 0:
            del self.numbers[:excess]
            self.uncounted += excess


class Finder:
    """Numbers of the lines that match a test; follows a log that grows at both ends."""

    def __init__(self, test: Callable[[str], bool], start: int, is_stamped: Callable[[], bool] = lambda: False) -> None:
        self._test = test
        self._is_stamped = is_stamped
        self.hits = array("q")
        """Numbers of matching lines in memory, in order."""
        self.fault = ""
        """Reason why the search was aborted."""
        self.changes = 0
        """Number that grows whenever hits come or go."""
        self.outside: OlderHits | None = None
        """Hits before the lines in memory; None while the whole log is in memory."""
        self.missed = 0
        """Number of lines that left memory before they were tested."""
        self._low = self._high = start
        self._first: int | None = None
        """Number of the oldest line in memory at the last step."""

    def is_done(self, buffer: LogBuffer) -> bool:
        """Return whether every line in memory was tested, and no hit belongs to a dropped line."""
        if self.fault:
            return True
        has_left = bool(self.hits) and self.hits[0] < buffer.first
        return self._low <= buffer.first and self._high >= buffer.end and not has_left

    def step(self, buffer: LogBuffer, seconds: float) -> bool:
        """Test lines for at most `seconds`; return whether hits were added or dropped."""
        before = self.changes
        if self._first is not None:  # lines may have left memory untested that no search of older lines finds
            start = self._first if self.outside is None else max(self._first, self.outside.border)
            self.missed += max(0, min(buffer.first, self._low) - start)
        self._first = buffer.first
        self._low, self._high = max(self._low, buffer.first), max(self._high, buffer.first)
        if gone := bisect_left(self.hits, buffer.first):
            if self.outside is None:
                self.outside = OlderHits()
            self.outside.take_gone(self.hits[:gone])
            del self.hits[:gone]
            self.changes += 1
        if self.outside is not None:
            self.outside.forget_from(self._low)
        deadline = time.monotonic() + seconds
        try:
            with impatient():
                while not self.is_done(buffer) and time.monotonic() < deadline:
                    self._look(buffer)
        except TooSlow:
            self.fault = "takes too long"
        return self.changes != before

    @property
    def count(self) -> int:
        return len(self.hits) + (self.outside.count if self.outside is not None else 0)

    @property
    def is_over(self) -> bool:
        return self.outside is None or self.outside.is_over

    def next_hit(self, buffer: LogBuffer, start: int, step: int) -> tuple[int | None, bool]:
        """Return the nearest hit after or before that line, and whether a nearer one is ruled out."""
        return self._behind(buffer, start) if step > 0 else self._before(buffer, start)

    def _behind(self, buffer: LogBuffer, start: int) -> tuple[int | None, bool]:
        if self.outside is not None and start < buffer.first - 1:
            if not self.outside.is_over:
                return None, False
            if (hit := self.outside.after(start)) is not None:
                return hit, True
        at = bisect_right(self.hits, start)
        hit = self.hits[at] if at < len(self.hits) else None
        is_nearest = hit is not None and self._low <= max(start + 1, buffer.first)
        return hit, is_nearest or self.is_done(buffer)

    def _before(self, buffer: LogBuffer, start: int) -> tuple[int | None, bool]:
        if at := bisect_left(self.hits, start):
            return self.hits[at - 1], self._high >= min(start, buffer.end) or self.is_done(buffer)
        if not self.is_done(buffer) or not self.is_over:
            return None, False
        return (None if self.outside is None else self.outside.before(start)), True

    def rank(self, number: int) -> int | None:
        """Return the rank of the line among the hits, from 1; None if it is not a hit."""
        outside = self.outside
        if outside is not None and (rank := outside.rank(number)) is not None:
            return rank
        at = bisect_left(self.hits, number)
        known = at < len(self.hits) and self.hits[at] == number
        return at + 1 + (outside.count if outside is not None else 0) if known else None

    def _look(self, buffer: LogBuffer) -> None:
        if self._high < buffer.end:
            until = min(self._high + _BLOCK, buffer.end)
            found = self._found(buffer, self._high, until)
            self._high = until
            self.hits += found
        else:
            start = max(buffer.first, self._low - _BLOCK)
            found = self._found(buffer, start, self._low)
            self._low = start
            self.hits[:0] = found
        self.changes += bool(found)

    def _found(self, buffer: LogBuffer, start: int, end: int) -> array[int]:
        test, lines = self._test, buffer.between(start, end)
        if self._is_stamped():
            return array("q", [number for number, raw in lines if test(text_of(without_stamp(raw)))])
        return array("q", [number for number, raw in lines if test(text_of(raw))])


_HEADER = struct.Struct(">IB")
"""Bytes of a batch, and whether its lines begin with their times."""
_COUNT = struct.Struct(">i")
_TOO_SLOW = -1
_PATIENCE = 0.5
"""Seconds of CPU time that a batch may take."""


class Matcher:
    """A child process that has compiled one expression. Every call may raise OSError if the child has ended."""

    def __init__(self, text: str) -> None:
        command = [sys.executable, "-P", "-m", "gputui.tui.log.finder"]
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
