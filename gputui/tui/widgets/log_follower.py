"""Reads the output of attempts on threads: lines that arrive, and those that are not in memory."""

from __future__ import annotations

import re
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import takewhile
from typing import Protocol

from msgspec import Struct, field

from gputui.domain.errors import AccessError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, shown_id
from gputui.ports import LiveLogStream, LogStream
from gputui.ports.backend import LogRequest
from gputui.tui.present.cells import PLAIN
from gputui.tui.present.job import job_title
from gputui.tui.present.log import kept_part, style_after, without_stamp
from gputui.tui.progress import failure_words
from gputui.tui.widgets.log_lines import MOST_HITS, FoundLines, PackedLines, pack_lines
from gputui.tui.widgets.log_pattern import Matcher, Pattern, TooSlow

TAIL = 1000
"""Number of earlier lines that are requested."""
INBOX = 4000
"""Maximum number of lines kept between two ticks of the screen; more are skipped and counted."""
_BREATH = 1000
"""Number of lines after which the reader yields, so that a flood does not block keys."""


class LogOpener(Protocol):
    """Source of the output of attempts."""

    def log(self, job_id: JobId, request: LogRequest) -> LogStream:
        """Return the output of one attempt, the last one for None, as `Backend.log` does.

        With `stamped`, lines begin with the time they were written, if known; the stream tells whether.
        """
        ...


class LogFollower:
    """Reads one log in a thread; the screen takes the new lines at its own pace."""

    def __init__(self, opener: LogOpener, job_id: JobId, attempt: int | None) -> None:
        self.opener = opener
        self.job_id = job_id
        self.attempt = attempt
        self.error: str | None = None
        """Reason why it could not be read, or not to its end."""
        self.is_refused = False
        """True if the user may not read it, as `error` says."""
        self.is_over = False
        self.is_stamped = False
        """True if the lines begin with the time they were written."""
        self.read = 0
        self.rest = b""
        """Last state of a line that has not ended yet, such as a progress bar."""
        self._inbox = PackedLines()
        self._lock = threading.Lock()
        self._tell: Callable[[], object] = lambda: None
        self._is_announced = False
        self._stream: LogStream | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"gputui-log-{job_id}", daemon=True)

    def start(self, tell: Callable[[], object] = lambda: None) -> None:
        """Start reading. `tell` is called on the reader's thread when lines arrive after a `take`, and at the end."""
        self._tell = tell
        self._thread.start()

    def take(self) -> tuple[PackedLines, int]:
        """Return the lines that have arrived since, and the number of lines that were skipped before these."""
        self._is_announced = False  # first, so that a line that arrives from here on is announced again
        with self._lock:
            lines, self._inbox = self._inbox, PackedLines()
        lines.drop(len(lines) - INBOX)
        return lines, lines.first

    def close(self) -> None:
        """Stop reading. Never blocks on the stream: its thread ends by itself."""
        self._closed.set()
        if self._stream is not None:
            self._stream.close()

    def join(self, timeout: float) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._stream = self.opener.log(self.job_id, LogRequest(self.attempt, TAIL, stamped=True, follow=True))
            self.is_stamped = getattr(self._stream, "is_stamped", False)
            if self._closed.is_set():
                self._stream.close()
                return
            self._read_all(self._stream)
        except Exception as error:  # noqa: BLE001 - a border: a log that cannot be read is told in its pane
            self.error, self.is_refused = failure_words(error), isinstance(error, AccessError)
        finally:
            self.is_over, self.rest = True, b""
            self._tell()

    def _announce(self) -> None:
        if not self._is_announced:
            self._is_announced = True
            self._tell()

    def _read_all(self, stream: LogStream) -> None:
        style = PLAIN

        def show_rest(line: bytes) -> None:
            self.rest = kept_part(line)
            self._announce()

        if isinstance(stream, LiveLogStream):
            stream.watch(show_rest)
        for whole in stream:
            line, self.rest = kept_part(whole), b""
            with self._lock:
                self._inbox.append(line, style)
                if self.read % _BREATH == 0:
                    self._inbox.drop(len(self._inbox) - INBOX)
            if b"\x1b" in line:  # tracked here, or the screen would freeze for it
                style = style_after(line, style)
            self.read += 1
            self._announce()
            if self.read % _BREATH == 0 and self._closed.wait(0.001):
                return


@contextmanager
def _opened(follower: LogFollower, tail: int | None = None) -> Iterator[LogStream]:
    stream = follower.opener.log(follower.job_id, LogRequest(follower.attempt, tail, stamped=True))
    try:
        yield stream
    finally:
        stream.close()


PAGE = 5000
"""Number of lines loaded when the user scrolls above the first."""
MOST_READ = 200_000
"""Maximum number of lines read from the end."""
GROWTH = 2000
"""Maximum number of lines that may have arrived since the known ones were counted."""
ANCHOR = 64
"""Number of known lines that must be found again before earlier ones are put before them."""


class KnownLines(Struct, frozen=True):
    """Position of the known lines, counted from the end of the log."""

    anchor: tuple[bytes, ...]
    """First few of them."""
    behind: int
    """Number of lines from there to the end."""

    def find(self, lines: PackedLines) -> int | None:
        """Return the number of the first known line among others, from its former position backwards; None if none."""
        anchor = [without_stamp(line) for line in self.anchor]
        for at in range(max(lines.first, lines.end - self.behind), lines.first - 1, -1):
            numbers = range(at, at + len(anchor))
            # one by one, as usually the first one differs
            if numbers.stop <= lines.end and all(
                map(lambda n, line: without_stamp(lines.line(n)) == line, numbers, anchor)
            ):
                return at
        return None


class EarlierLines(Struct, frozen=True):
    lines: PackedLines = field(default_factory=PackedLines)
    is_start: bool = False
    """True if the log begins with them."""
    fault: str = ""


def read_earlier(follower: LogFollower, known: KnownLines, wanted: int, is_wanted: Callable[[], bool]) -> EarlierLines:
    """Return up to `wanted` lines before the known ones. Blocks; raises GputuiError."""
    tail = known.behind + wanted + GROWTH
    if tail > MOST_READ:
        return EarlierLines(fault="too far back to be shown: save the log to see all of it")
    with _opened(follower, tail) as stream:
        kept = pack_lines((kept_part(line) for line in takewhile(lambda _: is_wanted(), stream)), tail)
    is_whole = len(kept) < tail
    at = known.find(kept)
    if at is None:
        return EarlierLines(fault="earlier lines cannot be located: lines were skipped while reading")
    is_start = is_whole and at - wanted <= kept.first
    kept.cut(at)
    kept.drop(len(kept) - wanted)
    return EarlierLines(kept, is_start)


_BATCH_LINES, _BATCH_BYTES = 5000, 1024**2
AROUND = 2500
"""Number of lines loaded before and after a hit."""


def read_region(follower: LogFollower, shift: int, number: int, is_wanted: Callable[[], bool]) -> PackedLines:
    """Read the lines around that number. Blocks; raises GputuiError and OSError."""
    start, end = max(0, number + shift - AROUND), number + shift + AROUND
    lines: list[bytes] = []
    with _opened(follower) as stream:
        for place, line in enumerate(stream):
            if place >= end or (place % _BATCH_LINES == 0 and not is_wanted()):
                break
            if place >= start:
                lines.append(kept_part(line))
    return pack_lines(lines, first=start - shift)


class ScanResult(Struct, frozen=True):
    """Hits of a search before the lines in memory."""

    numbers: array[int] = field(default_factory=lambda: array("q"))
    uncounted: int = 0
    shift: int = 0
    """Position of a line from the start of the log, minus its number."""
    found: dict[int, bytes] = field(default_factory=dict)
    """The text of the newest hits, by number."""
    fault: str = ""


def scan(
    follower: LogFollower,
    pattern: Pattern,
    known: KnownLines,
    first: int,
    is_wanted: Callable[[], bool],
    tell: Callable[[str], object],
) -> ScanResult:
    """Search all lines before number `first`, where the known lines begin. Blocks; raises GputuiError and OSError."""
    matcher, read_before = Matcher(pattern.text), follower.read
    hits, found, recent = array("q"), FoundLines(), PackedLines()
    uncounted = size = 0
    began: float | None = None
    try:
        with _opened(follower) as stream:
            is_stamped, whole = bool(getattr(stream, "is_stamped", False)), getattr(stream, "size", None)
            for batch, read in _batches(stream):
                at, size = recent.end, size + read
                began = _time_of(batch[0]) if at == 0 else began
                places = matcher.hits(batch, is_stamped=is_stamped)
                hits.extend(at + place for place in places)
                found.add((at + place, batch[place]) for place in places)
                if len(hits) > MOST_HITS + (beyond := MOST_HITS // 10):
                    del hits[:beyond]
                    uncounted += beyond
                for line in batch:
                    recent.append(line)
                most = known.behind + ANCHOR + GROWTH + follower.read - read_before
                recent.drop(len(recent) - min(most, MOST_READ))
                share = size / whole if whole else _share(began, batch[-1], known)
                tell(f"{recent.end:,} lines" if share is None else f"{min(99, int(share * 100))} %")
                if not is_wanted():
                    return ScanResult(fault="cancelled")
    except TooSlow:
        return ScanResult(fault="the expression takes too long")
    finally:
        matcher.close()
    border = known.find(recent)
    if border is None:
        return ScanResult(fault="the lines shown here cannot be found in the whole log")
    shift = border - first
    numbers = array("q", (place - shift for place in hits if place < border))
    return ScanResult(numbers, uncounted, shift, {n - shift: line for n, line in found.items() if n < border})


def _batches(stream: LogStream) -> Iterator[tuple[list[bytes], int]]:
    batch: list[bytes] = []
    size = 0
    for line in stream:
        batch.append(kept_part(line))
        size += len(line) + 1
        if len(batch) >= _BATCH_LINES or size >= _BATCH_BYTES:
            yield batch, size
            batch, size = [], 0
    if batch:
        yield batch, size


_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")


def _time_of(line: bytes) -> float | None:
    match = _STAMP.match(line)
    try:
        return datetime.fromisoformat(f"{match[1].decode('ascii')}+00:00").timestamp() if match else None
    except (ValueError, OverflowError):
        return None


def _share(began: float | None, last: bytes, known: KnownLines) -> float | None:
    now, end = _time_of(last), _time_of(known.anchor[0]) if known.anchor else None
    if began is None or now is None or end is None or end <= began:
        return None
    return max(0.0, (now - began) / (end - began))


MOST_PINNED = 6


class LogOf(Struct, frozen=True):
    job_id: JobId
    attempt: int | None = None
    """Number of the attempt; None: the latest."""

    def heading(self, job: Job | None) -> str:
        """Return `#17 train, attempt 2 of 3` without control characters."""
        if job is None:
            return f"#{shown_id(self.job_id)}" + (f", attempt {self.attempt}" if self.attempt else "")
        count = len(job.attempts)
        number = self.attempt or count
        return job_title(job) + (f", attempt {number} of {count}" if count > 1 else "")

    def beside(self, job: Job, step: int) -> LogOf | None:
        number = (self.attempt or len(job.attempts)) + step
        return LogOf(self.job_id, number) if 1 <= number <= len(job.attempts) else None


class Pinned(Struct, eq=False):
    logs: list[LogOf] = []

    def toggle(self, log: LogOf) -> str:
        if log in self.logs:
            self.logs.remove(log)
            return "no longer pinned"
        if len(self.logs) >= MOST_PINNED:
            return f"not pinned: {MOST_PINNED} logs are pinned already"
        self.logs.append(log)
        return f"pinned ({len(self.logs)} of {MOST_PINNED})"


def started_attempt(job: Job | None) -> int:
    started = [attempt.number for attempt in job.attempts if attempt.started_at is not None] if job else []
    return max(started, default=0)
