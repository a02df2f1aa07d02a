"""Reads the output of an attempt on its own thread; the screen takes it at its own pace."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from rich.style import Style

from gputui.domain.errors import GputuiError
from gputui.domain.job_spec import JobId
from gputui.ports import LiveLogStream, LogStream
from gputui.tui.present.log import kept_part, style_after
from gputui.tui.present.style import PLAIN

TAIL = 1000
"""Number of earlier lines that are requested."""
INBOX = 4000
"""Maximum number of lines kept between two ticks of the screen; more are skipped and counted."""
_BREATH = 1000
"""Number of lines after which the reader yields, so that a flood does not block keys."""


class LogOpener(Protocol):
    """Source of the output of attempts."""

    def open(
        self, job_id: JobId, attempt: int | None, *, tail: int | None, follow: bool, stamped: bool = False
    ) -> LogStream:
        """Return the output of one attempt, the last one for None. May block; raises GputuiError.

        With `stamped`, lines begin with the time they were written, if known; the stream tells whether.
        """
        ...


class Taken(NamedTuple):
    """Lines that came in."""

    lines: list[bytes]
    styles: list[Style]
    """Initial style of each line."""
    skipped: int
    """Number of lines that were skipped before these."""


class LogFollower:
    """Reads one log in a thread; the screen takes the new lines at its own pace."""

    def __init__(self, opener: LogOpener, job_id: JobId, attempt: int | None) -> None:
        self.job_id = job_id
        self.attempt = attempt
        self.error: str | None = None
        """Reason why it could not be read, or not to its end."""
        self.is_over = False
        """True if everything available has been read."""
        self.is_stamped = False
        """True if the lines begin with the time they were written."""
        self.opener = opener
        self._inbox: deque[tuple[bytes, Style]] = deque(maxlen=INBOX)
        self.read = 0
        """Number of lines so far."""
        self.rest = b""
        """Last state of a line that has not ended yet, such as a progress bar."""
        self._taken = 0
        self._tell: Callable[[], None] = lambda: None
        self._has_told = False
        self._stream: LogStream | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"gputui-log-{job_id}", daemon=True)

    def start(self, tell: Callable[[], None] = lambda: None) -> None:
        """Start reading. `tell` is called on the reader's thread when lines arrive after a `take`, and at the end."""
        self._tell = tell
        self._thread.start()

    def take(self) -> Taken:
        """Return the lines that have arrived since."""
        self._has_told = False  # first, so that a line that arrives from here on is announced again
        came = [self._inbox.popleft() for _ in range(len(self._inbox))]
        read = self.read
        skipped = max(0, read - self._taken - len(came) - len(self._inbox))
        self._taken += len(came) + skipped
        return Taken([line for line, _ in came], [style for _, style in came], skipped)

    def close(self) -> None:
        """Stop reading. Never blocks on the stream: its thread ends by itself."""
        self._closed.set()
        if self._stream is not None:
            self._stream.close()

    def join(self, timeout: float) -> bool:
        """Wait for the end of reading; return whether it ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._stream = self.opener.open(self.job_id, self.attempt, tail=TAIL, follow=True, stamped=True)
            self.is_stamped = getattr(self._stream, "is_stamped", False)
            if self._closed.is_set():
                self._stream.close()
                return
            self._read_all(self._stream)
        except GputuiError as error:
            self.error = str(error)
        except Exception as error:  # noqa: BLE001 - a border: a log that cannot be read is told in its pane
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self.is_over, self.rest = True, b""
            self._tell()

    def _announce(self) -> None:
        if not self._has_told:
            self._has_told = True
            self._tell()

    def _see_rest(self, line: bytes) -> None:
        self.rest = kept_part(line)
        self._announce()

    def _read_all(self, stream: LogStream) -> None:
        style = PLAIN
        if isinstance(stream, LiveLogStream):
            stream.watch(self._see_rest)
        for whole in stream:
            line, self.rest = kept_part(whole), b""
            self._inbox.append((line, style))
            if b"\x1b" in line:  # tracked here, or the screen would freeze for it
                style = style_after(line, style)
            self.read += 1
            self._announce()
            if self.read % _BREATH == 0 and self._closed.wait(0.001):
                return
