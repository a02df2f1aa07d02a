"""Reads the output of an attempt on a thread of its own, and keeps the last of it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Protocol

from rich.style import Style

from gputui.domain.errors import GputuiError
from gputui.domain.job import JobId
from gputui.ports import LogStream
from gputui.tui.present.log import MOST, style_after
from gputui.tui.present.style import PLAIN

TAIL = 1000
"""Lines asked for that were written before."""
INBOX = 4000
"""Lines read between two ticks of the screen that are kept; more are skipped, and counted."""
KEPT_LINES = 20_000
KEPT_BYTES = 8 * 1024**2
_BREATH = 1000
"""After so many lines the reader lets others run: a flood must not keep the screen from its keys."""


class LogOpener(Protocol):
    """Where the output of attempts is found."""

    def open(self, job_id: JobId, attempt: int | None, *, tail: int | None, follow: bool) -> LogStream:
        """The output of one attempt, the last when None. May block; raises GputuiError."""
        ...


class LogFollower:
    """One log being read. The screen takes what came in, at its own pace."""

    def __init__(self, opener: LogOpener, job_id: JobId, attempt: int | None) -> None:
        self.job_id = job_id
        self.attempt = attempt
        self.error: str | None = None
        """Why it could not be read, or not to its end."""
        self.is_over = False
        """Everything there is has been read."""
        self._opener = opener
        self._inbox: deque[bytes] = deque(maxlen=INBOX)
        self._read = 0
        self._taken = 0
        self._tell: Callable[[], None] = lambda: None
        self._has_told = False
        self._stream: LogStream | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"gputui-log-{job_id}", daemon=True)

    def start(self, tell: Callable[[], None] = lambda: None) -> None:
        """Begin to read. `tell` is called on the reader's thread: when lines come in after a `take`, and at the end."""
        self._tell = tell
        self._thread.start()

    def take(self) -> tuple[list[bytes], int]:
        """The lines that came in since, and how many before them were skipped."""
        self._has_told = False  # first: a line that comes in from here on is told again, never forgotten
        lines = [self._inbox.popleft() for _ in range(len(self._inbox))]
        read = self._read
        skipped = max(0, read - self._taken - len(lines) - len(self._inbox))
        self._taken += len(lines) + skipped
        return lines, skipped

    def close(self) -> None:
        """Stop reading. Never blocks on the stream: its thread ends by itself."""
        self._closed.set()
        if self._stream is not None:
            self._stream.close()

    def join(self, timeout: float) -> bool:
        """Wait for the end of reading; whether it came."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._stream = self._opener.open(self.job_id, self.attempt, tail=TAIL, follow=True)
            if self._closed.is_set():
                self._stream.close()
                return
            self._read_all(self._stream)
        except GputuiError as error:
            self.error = str(error)
        except Exception as error:  # noqa: BLE001 - a border: a log that cannot be read is told in its pane
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self.is_over = True
            self._tell()

    def _read_all(self, stream: LogStream) -> None:
        for line in stream:
            self._inbox.append(line[:MOST])
            self._read += 1
            if not self._has_told:
                self._has_told = True
                self._tell()
            if self._read % _BREATH == 0 and self._closed.wait(0.001):
                return


class LogBuffer:
    """The last lines of a log, bounded in number and in bytes. Lines keep their numbers when older ones go."""

    def __init__(self, lines: int = KEPT_LINES, size: int = KEPT_BYTES) -> None:
        self._lines: deque[bytes] = deque()
        self._most_lines = lines
        self._most_bytes = size
        self._bytes = 0
        self._styles: dict[int, Style] = {}
        self._style = PLAIN
        self.first = 0
        """Number of the oldest line that is kept."""
        self.skipped = 0
        """Lines that came faster than they could be taken."""

    @property
    def end(self) -> int:
        """Number of the line that comes next."""
        return self.first + len(self._lines)

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return self._bytes

    def add(self, lines: list[bytes], skipped: int = 0) -> None:
        """Append lines; the oldest make room."""
        self.skipped += skipped
        if skipped:
            self._style = PLAIN
        for number, line in enumerate(lines, self.end):
            self._note_style(number, line)
        self._lines.extend(lines)
        self._bytes += sum(map(len, lines))
        while len(self._lines) > self._most_lines or (self._bytes > self._most_bytes and self._lines):
            self._bytes -= len(self._lines.popleft())
            self._styles.pop(self.first, None)
            self.first += 1

    def style_before(self, number: int) -> Style:
        """What the lines before it left switched on: colours last until they are reset, as on a terminal."""
        return self._styles.get(number, PLAIN)

    def _note_style(self, number: int, line: bytes) -> None:
        if self._style is not PLAIN:
            self._styles[number] = self._style
        if b"\x1b" in line:
            self._style = style_after(line, self._style)

    def between(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """The lines from number `start` to before `end`, with their numbers."""
        start, end = max(start, self.first), min(end, self.end)
        if start >= end:
            return iter(())
        if start - self.first > len(self._lines) // 2:  # a deque is slow in its middle only
            back = islice(reversed(self._lines), self.end - end, self.end - start)
            found = list(back)[::-1]
        else:
            found = list(islice(self._lines, start - self.first, end - self.first))
        return iter(list(enumerate(found, start)))
