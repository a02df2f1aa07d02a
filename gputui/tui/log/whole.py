"""Reads parts of a log that are not in memory: earlier lines, all lines for a search, lines around a hit."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import repeat

from msgspec import Struct, field

from gputui.ports import LogStream
from gputui.tui.log.buffer import FoundLines, LogRegion, PackedLines, pack_lines
from gputui.tui.log.finder import MOST_HITS
from gputui.tui.log.follower import LogFollower
from gputui.tui.log.matching import Matcher
from gputui.tui.log.pattern import Pattern, TooSlow
from gputui.tui.present.log import kept_part, styles_before, without_stamp
from gputui.tui.present.style import PLAIN

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


class EarlierLines(Struct, frozen=True):
    """Lines just before the known ones."""

    lines: PackedLines
    is_start: bool
    """True if the log begins with them."""
    fault: str = ""

    @classmethod
    def none(cls, fault: str) -> EarlierLines:
        """Return no lines, and the reason."""
        return cls(PackedLines(), is_start=False, fault=fault)


def read_earlier(follower: LogFollower, known: KnownLines, wanted: int, is_wanted: Callable[[], bool]) -> EarlierLines:
    """Return up to `wanted` lines before the known ones. Blocks; raises GputuiError."""
    tail = known.behind + wanted + GROWTH
    if tail > MOST_READ:
        return EarlierLines.none("too far back to be shown: save the log to see all of it")
    stream = follower.opener.open(follower.job_id, follower.attempt, tail=tail, follow=False, stamped=True)
    try:
        kept = pack_lines(_while_wanted(stream, is_wanted), tail)
    finally:
        stream.close()
    return _before(kept, known, wanted, is_whole=len(kept) < tail)


def _while_wanted(stream: LogStream, is_wanted: Callable[[], bool]) -> Iterator[bytes]:
    for line in stream:
        yield kept_part(line)
        if not is_wanted():
            return


def _before(lines: PackedLines, known: KnownLines, wanted: int, *, is_whole: bool) -> EarlierLines:
    """Return the lines before the known ones, which are searched from their previous position."""
    at = find(lines, known)
    if at is None:
        return EarlierLines.none("earlier lines cannot be located: lines were skipped while reading")
    is_start = is_whole and at - wanted <= lines.first
    lines.cut(at)
    lines.drop(len(lines) - wanted)
    return EarlierLines(lines, is_start)


def find(lines: PackedLines, known: KnownLines) -> int | None:
    """Return the number of the first known line, searched from its previous position backwards; None if not found."""
    anchor = [without_stamp(line) for line in known.anchor]
    for at in range(max(lines.first, lines.end - known.behind), lines.first - 1, -1):
        if _is_at(at, anchor, lines):
            return at
    return None


def _is_at(at: int, anchor: Sequence[bytes], lines: PackedLines) -> bool:
    """Return whether the anchor lines begin there; compares one by one, as usually the first one differs."""
    if at + len(anchor) > lines.end:
        return False
    return all(without_stamp(lines.line(number)) == wanted for number, wanted in enumerate(anchor, at))


_BATCH_LINES, _BATCH_BYTES = 5000, 1024**2
AROUND = 2500
"""Number of lines loaded before and after a hit."""
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")


class ScanResult(Struct, frozen=True):
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
    known: KnownLines,
    first: int,
    is_wanted: Callable[[], bool],
    tell: Callable[[str], object],
) -> ScanResult:
    """Search all lines before number `first`, where the known lines begin. Blocks; raises GputuiError and OSError."""
    matcher = Matcher(pattern.text)
    try:
        with _opened(follower) as stream:
            return _Scan(stream, matcher, known, first, lambda: follower.read).run(is_wanted, tell)
    except TooSlow:
        return ScanResult(fault="the expression takes too long")
    finally:
        matcher.close()


def read_region(follower: LogFollower, shift: int, number: int, is_wanted: Callable[[], bool]) -> LogRegion:
    """Read the lines around that number. Blocks; raises GputuiError and OSError."""
    start = max(0, number + shift - AROUND)
    end = number + shift + AROUND
    lines: list[bytes] = []
    with _opened(follower) as stream:
        for place, line in enumerate(stream):
            if place >= end or (place % _BATCH_LINES == 0 and not is_wanted()):
                break
            if place >= start:
                lines.append(kept_part(line))
    return LogRegion(start - shift, lines, styles_before(lines), is_start=start == 0)


@contextmanager
def _opened(follower: LogFollower) -> Iterator[LogStream]:
    stream = follower.opener.open(follower.job_id, follower.attempt, tail=None, follow=False, stamped=True)
    try:
        yield stream
    finally:
        stream.close()


class _Scan:
    """Search of one log, from its start."""

    def __init__(
        self, stream: LogStream, matcher: Matcher, known: KnownLines, first: int, followed: Callable[[], int]
    ) -> None:
        self._stream, self._matcher, self._known, self._first = stream, matcher, known, first
        self._is_stamped = bool(getattr(stream, "is_stamped", False))
        self._size: int | None = getattr(stream, "size", None)
        self._followed, self._followed_before = followed, followed()
        """Number of lines that the follower has read."""
        self._recent = PackedLines()
        """The last lines read, in which the known ones are searched."""
        self._began: float | None = None
        """Time of the first line, in seconds since 1970."""
        self._hits = array("q")
        self._uncounted = 0
        self._found = FoundLines()
        self._lines = self._bytes = 0

    def run(self, is_wanted: Callable[[], bool], tell: Callable[[str], object]) -> ScanResult:
        for batch in self._batches():
            self._take(batch)
            tell(self._progress(batch[-1]))
            if not is_wanted():
                return ScanResult(fault="cancelled")
        return self._result()

    def _batches(self) -> Iterator[list[bytes]]:
        batch: list[bytes] = []
        size = 0
        for line in self._stream:
            batch.append(kept_part(line))
            size += len(line) + 1
            if len(batch) >= _BATCH_LINES or size >= _BATCH_BYTES:
                self._bytes += size
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _take(self, batch: list[bytes]) -> None:
        hits = self._matcher.hits(batch, is_stamped=self._is_stamped)
        self._hits.extend(self._lines + at for at in hits)
        self._found.add((self._lines + at, batch[at]) for at in hits)
        if len(self._hits) > MOST_HITS + (beyond := MOST_HITS // 10):
            del self._hits[:beyond]
            self._uncounted += beyond
        self._recent.extend(batch, repeat(PLAIN))
        if not self._lines:
            self._began = _time_of(batch[0])
        self._lines += len(batch)
        grown = self._followed() - self._followed_before
        most = min(self._known.behind + ANCHOR + GROWTH + grown, MOST_READ)
        self._recent.drop(len(self._recent) - most)

    def _result(self) -> ScanResult:
        border = find(self._recent, self._known)
        if border is None:
            return ScanResult(fault="the lines shown here cannot be found in the whole log")
        shift = border - self._first
        numbers = array("q", (place - shift for place in self._hits if place < border))
        found = {place - shift: line for place, line in self._found.items() if place < border}
        return ScanResult(numbers, self._uncounted, shift, found)

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
