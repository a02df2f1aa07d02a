"""Lines of one log by number: packed in memory within bounds, searched a few at a time, and which of them are shown."""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

from msgspec import Struct, field
from rich.style import Style

from gputui.tui.present.cells import PLAIN
from gputui.tui.present.log import style_after, without_stamp
from gputui.tui.widgets.log_pattern import TooSlow, impatient, text_of

PIECE_BYTES, PIECE_LINES = 128 * 1024, 16 * 1024
"""Bytes and lines of a piece; the C library maps allocations of this size separately."""


class PackedPiece:
    """Consecutive lines, of which the oldest may have been dropped."""

    def __init__(self, first: int, lines: Sequence[bytes], styles: Iterable[Style]) -> None:
        self.first = first
        """Number of the oldest remaining line."""
        self._gone = 0
        """Number of dropped lines, which still occupy this memory."""
        self._data = b"".join(lines)
        self._ends = array("I", accumulate(map(len, lines), initial=0))
        """Offsets of the ends of the lines, after a zero."""
        self._changes = array("I")
        """Positions of the lines that begin in another style than the previous line."""
        self._styles: list[Style] = []
        for place, style in enumerate(styles):
            if not self._styles or style is not self._styles[-1]:
                self._changes.append(place)
                self._styles.append(style)

    @property
    def end(self) -> int:
        return self.first + len(self._ends) - 1 - self._gone

    @property
    def size(self) -> int:
        return self._ends[-1] - self._ends[self._gone]

    def drop(self, count: int) -> None:
        self._gone += count
        self.first += count

    def worth(self, size: int) -> int:
        return bisect_left(self._ends, self._ends[self._gone] + size, self._gone) - self._gone

    def lines(self, start: int, end: int) -> list[bytes]:
        """Return the lines from number `start` up to, but not including, `end`, which must be here."""
        data, at = self._data, self._gone - self.first
        return [data[begin:stop] for begin, stop in pairwise(self._ends[start + at : end + at + 1])]

    def style(self, number: int) -> Style:
        return self._styles[bisect_right(self._changes, number - self.first + self._gone) - 1]


class PackedLines(Struct, eq=False):
    """Lines with consecutive numbers and their initial styles. They are added at both ends, and removed at both."""

    first: int = 0
    _pieces: list[PackedPiece] = []
    _pieces_size: int = 0
    _open: list[bytes] = []
    """The newest lines, which are not packed yet."""
    _open_styles: list[Style] = []
    _open_size: int = 0

    @property
    def end(self) -> int:
        return self._open_first + len(self._open)

    @property
    def size(self) -> int:
        return self._pieces_size + self._open_size

    def __len__(self) -> int:
        return self.end - self.first

    @property
    def _open_first(self) -> int:
        return self._pieces[-1].end if self._pieces else self.first

    def append(self, line: bytes, style: Style = PLAIN) -> None:
        self._open.append(line)
        self._open_styles.append(style)
        self._open_size += len(line)
        if self._open_size >= PIECE_BYTES or len(self._open) >= PIECE_LINES:
            self._pack()

    def extend(self, later: PackedLines) -> None:
        """Append lines, which get the next numbers; `later` must not be used any more."""
        if later._pieces:
            self._pack()
            number = self.end
            for piece in later._pieces:
                piece.first, number = number, number + piece.end - piece.first
            self._pieces += later._pieces
            self._pieces_size += later._pieces_size
        self._open += later._open
        self._open_styles += later._open_styles
        self._open_size += later._open_size
        if self._open_size >= PIECE_BYTES or len(self._open) >= PIECE_LINES:
            self._pack()

    def put_before(self, earlier: PackedLines) -> None:
        """Prepend lines; `earlier` must not be used any more."""
        earlier._pack()
        number = self.first = self.first - len(earlier)
        for piece in earlier._pieces:
            piece.first, number = number, number + piece.end - piece.first
        self._pieces[:0] = earlier._pieces
        self._pieces_size += earlier._pieces_size

    def drop(self, count: int) -> None:
        """Drop the `count` oldest lines; none if it is not positive."""
        if count <= 0:
            return
        first, whole = min(self.first + count, self.end), 0
        while whole < len(self._pieces) and self._pieces[whole].end <= first:
            self._pieces_size -= self._pieces[whole].size
            whole += 1
        at, self.first = self._pieces[whole - 1].end if whole else self.first, first
        del self._pieces[:whole]
        if self._pieces:
            self._pieces_size -= self._pieces[0].size
            self._pieces[0].drop(first - at)
            self._pieces_size += self._pieces[0].size
        else:
            self._open_size -= sum(map(len, self._open[: first - at]))
            del self._open[: first - at], self._open_styles[: first - at]

    def cut(self, number: int) -> None:
        if number < self._open_first:
            self._open, self._open_styles, self._open_size = [], [], 0
            while self._pieces and self._pieces[-1].end > number:
                piece = self._pieces.pop()
                self._pieces_size -= piece.size
                if piece.first < number:
                    self._open = piece.lines(piece.first, number)
                    self._open_styles = [piece.style(one) for one in range(piece.first, number)]
                    self._open_size = sum(map(len, self._open))
        count = max(0, number - self._open_first)
        self._open_size -= sum(map(len, self._open[count:]))
        del self._open[count:], self._open_styles[count:]

    def worth(self, size: int) -> int:
        """Return how many of the oldest lines make up at least that many bytes; all if they have fewer."""
        count = 0
        for piece in self._pieces:
            if size <= piece.size:
                return count + piece.worth(size)
            size -= piece.size
            count += piece.end - piece.first
        for line in self._open:
            if size <= 0:
                break
            size -= len(line)
            count += 1
        return count

    def line(self, number: int) -> bytes:
        if number >= self._open_first:
            return self._open[number - self._open_first]
        return self._piece(number).lines(number, number + 1)[0]

    def style(self, number: int) -> Style:
        """Return the initial style of the line: colours last until they are reset, as on a terminal."""
        if number >= self._open_first:
            return self._open_styles[number - self._open_first]
        return self._piece(number).style(number)

    def between(self, start: int, end: int) -> list[bytes]:
        """Return the lines from number `start` up to, but not including, `end`, as far as they are here."""
        start, end = max(start, self.first), min(end, self.end)
        found: list[bytes] = []
        while start < min(end, self._open_first):
            piece = self._piece(start)
            found += piece.lines(start, min(end, piece.end))
            start = piece.end
        opened = self._open_first
        return found + self._open[max(start, opened) - opened : max(end, opened) - opened]

    def _piece(self, number: int) -> PackedPiece:
        return self._pieces[bisect_right(self._pieces, number, key=lambda piece: piece.first) - 1]

    def _pack(self) -> None:
        if self._open:
            self._pieces.append(PackedPiece(self._open_first, self._open, self._open_styles))
            self._pieces_size += self._open_size
            self._open, self._open_styles, self._open_size = [], [], 0


def pack_lines(lines: Iterable[bytes], most: int | None = None, first: int = 0) -> PackedLines:
    """Return the last lines with their initial styles: colours last until they are reset."""
    found, style = PackedLines(first), PLAIN
    for place, line in enumerate(lines):
        found.append(line, style)
        if b"\x1b" in line:
            style = style_after(line, style)
        if most is not None and place % PIECE_LINES == 0:
            found.drop(len(found) - most)
    if most is not None:
        found.drop(len(found) - most)
    return found


MOST_FOUND, FOUND_BYTES = 20_000, 8 * 1024**2
"""Maximum number of matching lines whose text is kept for a filter, and their maximum bytes."""
_SLACK = 1.1
"""Factor over bounds at which lines or hits are dropped, to avoid doing so at every one."""


class FoundLines(dict[int, bytes]):
    """Text of the newest lines that match a filter, by number, bounded in number and bytes."""

    _size = 0
    _is_cut = False
    """True if lines were dropped, so that earlier ones would leave a gap."""

    def add(self, lines: Iterable[tuple[int, bytes]]) -> None:
        for number, line in lines:
            self[number] = line
            self._size += len(line)
            if len(self) > _SLACK * MOST_FOUND or self._size > _SLACK * FOUND_BYTES:
                self._limit()

    def put_before(self, older: Mapping[int, bytes]) -> None:
        if not self._is_cut:
            newer = dict(self)
            self.clear()
            self.update({**older, **newer})
            self._limit()

    def _limit(self) -> None:
        kept: list[tuple[int, bytes]] = []
        size = 0
        for number, line in reversed(self.items()):
            if len(kept) == MOST_FOUND or size + len(line) > FOUND_BYTES:
                break
            kept.append((number, line))
            size += len(line)
        self._is_cut, self._size = self._is_cut or len(kept) < len(self), size
        self.clear()
        self.update(reversed(kept))


KEPT_LINES = 20_000
KEPT_BYTES = 8 * 1024**2
EARLIER = 6
"""Factor by which the bounds are raised while earlier output is shown."""


class LogLines(Struct, eq=False):
    """The lines of one log: its end in memory, bounded in number and in bytes, and what was read before that.

    Lines keep their numbers when older ones are dropped. Number 0 is the first line that was added; earlier ones that
    are loaded later count down. Search, filter, errors and the part around a hit are ranges and lists of numbers.
    """

    lines: int = KEPT_LINES
    size: int = KEPT_BYTES
    kept: PackedLines = field(default_factory=PackedLines)
    region: PackedLines | None = None
    """Lines before those, loaded around a hit."""
    found: FoundLines = field(default_factory=FoundLines)
    """Lines before those that the filter shows, by number."""
    is_stamped: bool = False
    """True if the lines begin with the time they were written."""
    gap: int | None = None
    """Number of the line before which lines were last skipped."""
    skipped: int = 0
    """Number of lines that arrived faster than they could be processed."""
    keeps_earlier: bool = False
    """True if the bounds are raised because earlier lines are being read."""
    filter: Finder | None = None
    """Finder of the shown lines; None: all lines are shown."""
    context: int = 0
    """Number of lines shown before and after each match."""
    _filtered: tuple[tuple[object, ...], Sequence[int]] = field(default_factory=lambda: ((), ()))

    @property
    def first(self) -> int:
        return self.kept.first

    @property
    def end(self) -> int:
        return self.kept.end

    @property
    def room(self) -> int:
        """Number of earlier lines that may be put before these."""
        return max(0, self.lines * EARLIER - len(self.kept))

    def add(self, lines: PackedLines, skipped: int = 0) -> None:
        """Append lines, and drop the oldest beyond the bounds; consumes `lines`."""
        self.skipped += skipped
        if skipped:
            self.gap = self.end
        self.kept.extend(lines)
        self.trim()

    def add_earlier(self, lines: PackedLines) -> int:
        """Prepend as many lines as there is room for, and return their number; consumes `lines`."""
        lines.drop(len(lines) - self.room)
        lines.drop(lines.worth(lines.size - (self.size * EARLIER - self.kept.size)))
        kept = len(lines)
        self.kept.put_before(lines)
        return kept

    def trim(self) -> None:
        most = EARLIER if self.keeps_earlier else 1
        self._drop(len(self.kept) - self.lines * most)
        self._drop(self.kept.worth(self.kept.size - self.size * most))

    def drop_before_gap(self) -> None:
        if self.gap is not None:
            self._drop(self.gap - self.first)
        self.gap = None

    def _drop(self, count: int) -> None:
        if count > 0 and self.filter is not None:
            hits, first, lines = self.filter.hits, self.first, self.kept.between(self.first, self.first + count)
            gone = hits[bisect_left(hits, first) : bisect_left(hits, first + count)]
            self.found.add((number, lines[number - first]) for number in gone)
        self.kept.drop(count)

    def narrow(self, test: Callable[[str], bool] | None) -> None:
        self.filter = None if test is None else Finder(self, test, self.end)
        self.found = FoundLines()

    def holds(self, number: int) -> bool:
        return self.holds_around(number) or number in self.found

    def holds_around(self, number: int) -> bool:
        return self._holder(number) is not None

    def _holder(self, number: int) -> PackedLines | None:
        near = (self.kept,) if self.region is None else (self.kept, self.region)
        return next((lines for lines in near if lines.first <= number < lines.end), None)

    def line(self, number: int) -> bytes:
        holder = self._holder(number)
        return self.found[number] if holder is None else holder.line(number)

    def style_before(self, number: int) -> Style:
        holder = self._holder(number)
        return PLAIN if holder is None else holder.style(number)

    def text(self, number: int) -> str:
        raw = self.line(number)
        return text_of(without_stamp(raw) if self.is_stamped else raw)

    @property
    def numbers(self) -> Sequence[int]:
        first, end, finder, region = self.first, self.end, self.filter, self.region
        if finder is None:
            if region is None:
                return range(first, end)
            return range(min(region.first, first), end if region.end >= first else region.end)
        oldest = self._oldest_found
        key = (finder, finder.changes, self.context, oldest, first, end)
        if self._filtered[0] != key:
            hits, here = finder.hits, bisect_left(finder.hits, first)
            near = around(hits[here:], self.context, first, end) if self.context else hits[here:]
            self._filtered = key, hits[bisect_left(hits, oldest) : here] + near
        return self._filtered[1]

    def index(self, number: int) -> int:
        """Return the index of the line among the shown ones; of the next one if it is not shown."""
        numbers = self.numbers
        if isinstance(numbers, range):
            return min(max(number - numbers.start, 0), len(numbers))
        return bisect_left(numbers, number)

    def is_shown(self, number: int) -> bool:
        index, numbers = self.index(number), self.numbers
        return index < len(numbers) and numbers[index] == number

    def count_held(self) -> int:
        return 0 if self.filter is None else len(self.filter.hits) - bisect_left(self.filter.hits, self._oldest_found)

    @property
    def _oldest_found(self) -> int:
        return min(self.first, next(iter(self.found), self.first))

    @property
    def reaches_end(self) -> bool:
        return self.filter is not None or self.region is None or self.region.end >= self.first


def around(hits: Sequence[int], context: int, first: int, end: int) -> array[int]:
    """Return the numbers with those up to `context` away, from `first` up to, but not including, `end`, each once."""
    numbers = array("q")
    last = first - 1
    for hit in hits:
        start, stop = max(hit - context, last + 1), min(hit + context + 1, end)
        numbers.extend(range(start, stop))
        last = max(last, stop - 1)
    return numbers


MOST_HITS = 1_000_000
"""Maximum number of hits whose positions are kept; older ones are only counted."""
_BLOCK = 200
"""Lines between two checks of the time."""


class Finder:
    """Numbers of the lines that match a test: found a few at a time in memory, and by a scan in older lines."""

    def __init__(self, lines: LogLines, test: Callable[[str], bool], start: int) -> None:
        self._lines = lines
        self._test = test
        self.hits = array("q")
        """Numbers of matching lines, in order, also of those that have left memory."""
        self.uncounted = 0
        """Number of older hits whose positions are not kept."""
        self.changes = 0
        """Number that grows whenever hits come or go."""
        self.fault = ""
        self.missed = 0
        """Number of lines that left memory before they were tested."""
        self.border: int | None = None
        """Number of the oldest line in memory when a scan of older ones began; None before that."""
        self.progress = ""
        """Progress of that scan; empty if none was asked for, or it has ended."""
        self.scan_fault = ""
        self._low = self._high = start
        self._first: int | None = None
        """Number of the oldest line in memory at the last step."""

    @property
    def is_done(self) -> bool:
        return bool(self.fault) or (self._low <= self._lines.first and self._high >= self._lines.end)

    def step(self, seconds: float) -> bool:
        """Test lines for at most `seconds`; return whether hits were added or dropped."""
        before, first = self.changes, self._lines.first
        if self._first is not None:  # lines may have left memory untested that no scan finds
            start = self._first if self.border is None else max(self._first, self.border)
            self.missed += max(0, min(first, self._low) - start)
        self._first = first
        self._low, self._high = max(self._low, first), max(self._high, first)
        deadline = time.monotonic() + seconds
        try:
            with impatient():
                while not self.is_done and time.monotonic() < deadline:
                    self._look()
        except TooSlow:
            self.fault = "takes too long"
        return self.changes != before

    def _look(self) -> None:
        lines, low, high = self._lines, self._low, self._high
        if high < lines.end:
            start, end = high, min(high + _BLOCK, lines.end)
            high = end
        else:
            start, end = max(lines.first, low - _BLOCK), low
            low = start
        rows = enumerate(lines.kept.between(start, end), start)
        if lines.is_stamped:
            found = array("q", [number for number, raw in rows if self._test(text_of(without_stamp(raw)))])
        else:
            found = array("q", [number for number, raw in rows if self._test(text_of(raw))])
        self._low, self._high = low, high
        begin, stop = bisect_left(self.hits, start), bisect_left(self.hits, end)
        if found or begin < stop:  # a scan may have found some of them
            self.hits[begin:stop] = found
            self._changed()

    def begin_scan(self) -> None:
        """Forget what a scan of the lines before memory will find."""
        self.border = self._lines.first
        del self.hits[: bisect_left(self.hits, self.border)]
        self.uncounted = self.missed = 0
        self.changes += 1

    def end_scan(self, numbers: array[int], uncounted: int, fault: str = "") -> None:
        """Add the hits of a scan, in order, or say why there are none."""
        self.progress, self.scan_fault = "", fault
        self.uncounted += uncounted
        self.hits[:0] = numbers[: bisect_left(numbers, self.hits[0])] if self.hits else numbers
        self._changed()

    def _changed(self) -> None:
        self.changes += 1
        if (excess := len(self.hits) - MOST_HITS) > MOST_HITS // 10:
            del self.hits[:excess]
            self.uncounted += excess

    @property
    def count(self) -> int:
        return self.uncounted + len(self.hits)

    def next_hit(self, start: int, step: int) -> tuple[int | None, bool]:
        """Return the nearest hit after or before that line, and whether a nearer one is ruled out."""
        first, end = self._lines.first, self._lines.end
        if step > 0:
            if self.progress and start < first - 1:
                return None, False
            at = bisect_right(self.hits, start)
            hit = self.hits[at] if at < len(self.hits) else None
            is_nearest = hit is not None and (hit < first or self._low <= max(start + 1, first))
            return hit, is_nearest or self.is_done
        at = bisect_left(self.hits, start)
        hit = self.hits[at - 1] if at else None
        if hit is not None and hit >= first:
            return hit, self._high >= min(start, end) or self.is_done
        is_known = self.is_done and not self.progress
        return hit if is_known else None, is_known

    def rank(self, number: int) -> int | None:
        at = bisect_left(self.hits, number)
        return self.uncounted + at + 1 if at < len(self.hits) and self.hits[at] == number else None
