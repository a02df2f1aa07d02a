"""Reads a log from its start to search all of it, or to show a part of it that is not in memory."""

from __future__ import annotations

import re
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from gputui.ports import LogStream
from gputui.tui.log.earlier import ANCHOR, GROWTH, MOST_READ, Known, find
from gputui.tui.log.follower import LogFollower
from gputui.tui.log.matching import Matcher
from gputui.tui.log.outside import MOST_HITS, Island
from gputui.tui.log.pattern import Pattern, TooSlow
from gputui.tui.present.log import MOST, styles_before

MOST_FOUND = 20_000
"""Lines that match whose text is kept, the newest of them, so that a filter can show them."""
_FOUND_BYTES = 8 * 1024**2
_BATCH_LINES, _BATCH_BYTES = 5000, 1024**2
AROUND = 2500
"""Lines loaded before and behind a line that is gone to."""
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")


@dataclass(frozen=True)
class Scanned:
    """Hits of a search before the lines in memory."""

    numbers: array[int] = field(default_factory=lambda: array("q"))
    uncounted: int = 0
    shift: int = 0
    found: dict[int, bytes] = field(default_factory=dict)
    """The text of the newest hits, by number."""
    fault: str = ""


def scan(
    follower: LogFollower,
    pattern: Pattern,
    known: Known,
    first: int,
    is_wanted: Callable[[], bool],
    tell: Callable[[str], object],
) -> Scanned:
    """Search all lines before number `first`, where the known lines begin. Blocks; raises GputuiError and OSError."""
    matcher = Matcher(pattern.text)
    try:
        with _opened(follower) as stream:
            return _Scan(stream, matcher, known, first, lambda: follower.read).run(is_wanted, tell)
    except TooSlow:
        return Scanned(fault="the expression takes too long")
    finally:
        matcher.close()


def read_island(follower: LogFollower, shift: int, number: int, is_wanted: Callable[[], bool]) -> Island:
    """Read the lines around that number. Blocks; raises GputuiError and OSError."""
    start = max(0, number + shift - AROUND)
    end = number + shift + AROUND
    lines: list[bytes] = []
    with _opened(follower) as stream:
        for place, line in enumerate(stream):
            if place >= end or (place % _BATCH_LINES == 0 and not is_wanted()):
                break
            if place >= start:
                lines.append(line[:MOST])
    return Island(start - shift, lines, styles_before(lines), is_start=start == 0)


@contextmanager
def _opened(follower: LogFollower) -> Iterator[LogStream]:
    stream = follower.opener.open(follower.job_id, follower.attempt, tail=None, follow=False, stamped=True)
    try:
        yield stream
    finally:
        stream.close()


class _Scan:
    """A search of one log, from its start."""

    def __init__(
        self, stream: LogStream, matcher: Matcher, known: Known, first: int, followed: Callable[[], int]
    ) -> None:
        self._stream, self._matcher, self._known, self._first = stream, matcher, known, first
        self._is_stamped = bool(getattr(stream, "is_stamped", False))
        self._size: int | None = getattr(stream, "size", None)
        self._followed, self._followed_before = followed, followed()
        """How many lines the follower has read."""
        self._recent: deque[bytes] = deque()
        """The last lines read: the known ones are sought in them."""
        self._began: float | None = None
        """When the first line was written, in seconds since 1970."""
        self._hits = array("q")
        self._uncounted = 0
        self._found: dict[int, bytes] = {}
        self._found_bytes = 0
        self._lines = self._bytes = 0

    def run(self, is_wanted: Callable[[], bool], tell: Callable[[str], object]) -> Scanned:
        for batch in self._batches():
            self._take(batch)
            tell(self._progress(batch[-1]))
            if not is_wanted():
                return Scanned(fault="given up")
        return self._result()

    def _batches(self) -> Iterator[list[bytes]]:
        batch: list[bytes] = []
        size = 0
        for line in self._stream:
            batch.append(line[:MOST])
            size += len(line) + 1
            if len(batch) >= _BATCH_LINES or size >= _BATCH_BYTES:
                self._bytes += size
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _take(self, batch: list[bytes]) -> None:
        for at in self._matcher.hits(batch, is_stamped=self._is_stamped):
            self._hits.append(self._lines + at)
            self._found[self._lines + at] = batch[at]
            self._found_bytes += len(batch[at])
        if len(self._hits) > MOST_HITS + (beyond := MOST_HITS // 10):
            del self._hits[:beyond]
            self._uncounted += beyond
        while len(self._found) > MOST_FOUND or self._found_bytes > _FOUND_BYTES:
            self._found_bytes -= len(self._found.pop(next(iter(self._found))))
        self._recent.extend(batch)
        if not self._lines:
            self._began = _time_of(batch[0])
        self._lines += len(batch)
        grown = self._followed() - self._followed_before
        most = min(self._known.behind + ANCHOR + GROWTH + grown, MOST_READ)
        for _ in range(len(self._recent) - most):
            self._recent.popleft()

    def _result(self) -> Scanned:
        at = find(list(self._recent), self._known)
        if at is None:
            return Scanned(fault="the lines shown here are not found in it again")
        border = self._lines - len(self._recent) + at
        shift = border - self._first
        numbers = array("q", (place - shift for place in self._hits if place < border))
        found = {place - shift: line for place, line in self._found.items() if place < border}
        return Scanned(numbers, self._uncounted, shift, found)

    def _progress(self, last: bytes) -> str:
        share = self._share(last)
        return f"{self._lines:,} lines" if share is None else f"{min(99, int(share * 100))} %"

    def _share(self, last: bytes) -> float | None:
        if self._size:
            return self._bytes / self._size
        start, now = self._began, _time_of(last)
        end = _time_of(self._known.anchor[0]) if self._known.anchor else None
        if start is None or now is None or end is None or end <= start:
            return None
        return max(0.0, (now - start) / (end - start))


def _time_of(line: bytes) -> float | None:
    match = _STAMP.match(line)
    try:
        return datetime.fromisoformat(f"{match[1].decode('ascii')}+00:00").timestamp() if match else None
    except (ValueError, OverflowError):
        return None
