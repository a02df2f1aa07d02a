"""Lines of a log in memory, bounded in number and bytes, accessible by number."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from msgspec import Struct
from rich.style import Style

from gputui.tui.present.log import style_after, styles_before
from gputui.tui.present.style import PLAIN

MOST_FOUND, FOUND_BYTES = 20_000, 8 * 1024**2
"""Maximum number of matching lines whose text is kept for a filter, and their maximum bytes."""
_SLACK = 1.1
"""Factor over the bounds at which lines are dropped, to avoid doing so at every line."""


class FoundLines:
    """Text of the newest lines that match a filter, by number, bounded in number and bytes."""

    def __init__(self) -> None:
        self._lines: dict[int, bytes] = {}
        self._size = 0
        self._is_cut = False
        """True if lines were dropped, so that earlier ones would leave a gap."""

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, number: int) -> bool:
        return number in self._lines

    def __getitem__(self, number: int) -> bytes:
        return self._lines[number]

    def items(self) -> Iterable[tuple[int, bytes]]:
        return self._lines.items()

    def clear(self) -> None:
        self._lines, self._size, self._is_cut = {}, 0, False

    def add(self, lines: Iterable[tuple[int, bytes]]) -> None:
        for number, line in lines:
            self._lines[number] = line
            self._size += len(line)
            if len(self._lines) > _SLACK * MOST_FOUND or self._size > _SLACK * FOUND_BYTES:
                self._limit()

    def put_before(self, older: Mapping[int, bytes]) -> None:
        """Prepend lines, as far as there is room and no gap."""
        if not self._is_cut:
            self._lines = {**older, **self._lines}
            self._limit()

    def _limit(self) -> None:
        kept: list[tuple[int, bytes]] = []
        size = 0
        for number, line in reversed(self._lines.items()):
            if len(kept) == MOST_FOUND or size + len(line) > FOUND_BYTES:
                break
            kept.append((number, line))
            size += len(line)
        self._is_cut = self._is_cut or len(kept) < len(self._lines)
        self._lines, self._size = dict(reversed(kept)), size


class LogRegion(Struct, frozen=True):
    """Part of the log before the lines in memory, loaded around a hit."""

    first: int
    """Number of its first line."""
    lines: list[bytes]
    styles: list[Style]
    is_start: bool
    """True if it begins with the first line of the log."""

    @property
    def end(self) -> int:
        """Number of the line after it."""
        return self.first + len(self.lines)


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
        """The styles of those."""
        for place, style in enumerate(styles):
            if not self._styles or style is not self._styles[-1]:
                self._changes.append(place)
                self._styles.append(style)

    @property
    def end(self) -> int:
        return self.first + len(self._ends) - 1 - self._gone

    @property
    def size(self) -> int:
        """Bytes of the remaining lines."""
        return self._ends[-1] - self._ends[self._gone]

    def drop(self, count: int) -> None:
        self._gone += count
        self.first += count

    def worth(self, size: int) -> int:
        """Return how many of the oldest lines make up at least that many bytes."""
        return bisect_left(self._ends, self._ends[self._gone] + size, self._gone) - self._gone

    def lines(self, start: int, end: int) -> list[bytes]:
        """Return the lines from number `start` up to, but not including, `end`, which must be here."""
        data, at = self._data, self._gone - self.first
        return [data[begin:stop] for begin, stop in pairwise(self._ends[start + at : end + at + 1])]

    def style(self, number: int) -> Style:
        return self._styles[bisect_right(self._changes, number - self.first + self._gone) - 1]


class PackedLines:
    """Lines with consecutive numbers. Lines are added at both ends, and removed at the start."""

    def __init__(self) -> None:
        self.first = 0
        """Number of the oldest line."""
        self._pieces: list[PackedPiece] = []
        self._pieces_size = 0
        self._open: list[bytes] = []
        """The newest lines, which are not packed yet."""
        self._open_styles: list[Style] = []
        self._open_size = 0

    @property
    def end(self) -> int:
        """Number of the line after the newest."""
        return self._open_first + len(self._open)

    @property
    def size(self) -> int:
        """Bytes of all lines."""
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

    def put_before(self, earlier: PackedLines) -> None:
        """Prepend lines; `earlier` must not be used any more."""
        earlier._pack()
        number = self.first = self.first - len(earlier)
        for piece in earlier._pieces:
            end = number + piece.end - piece.first
            piece.first, number = number, end
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
        """Return the line of that number, which must be here."""
        if number >= self._open_first:
            return self._open[number - self._open_first]
        return self._piece(number).lines(number, number + 1)[0]

    def style(self, number: int) -> Style:
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


def pack_lines(lines: Iterable[bytes], most: int) -> PackedLines:
    """Return the last lines with their initial styles: colours last until they are reset."""
    found, style = PackedLines(), PLAIN
    for place, line in enumerate(lines):
        found.append(line, style)
        if b"\x1b" in line:
            style = style_after(line, style)
        if place % PIECE_LINES == 0:
            found.drop(len(found) - most)
    found.drop(len(found) - most)
    return found


KEPT_LINES = 20_000
KEPT_BYTES = 8 * 1024**2
EARLIER = 6
"""Factor by which the bounds are raised while earlier output is shown."""


class LogBuffer:
    """The last lines of a log, bounded in number and in bytes. Lines keep their numbers when older ones are dropped.

    Number 0 is the first line that was added; earlier ones loaded later count down. It also holds results of a search
    in the rest of the log: a region and single lines.
    """

    def __init__(self, lines: int = KEPT_LINES, size: int = KEPT_BYTES) -> None:
        self._lines = PackedLines()
        self._most_lines = lines
        self._most_bytes = size
        self.region: LogRegion | None = None
        """A region of the log before these lines."""
        self.found = FoundLines()
        """Lines before these that a filter shows, by number."""
        self.on_leave: Callable[[int, Sequence[bytes]], None] | None = None
        """Callback with the lines that are dropped and the number of the first."""
        self.gap: int | None = None
        """Number of the line before which lines were last skipped."""
        self.skipped = 0
        """Number of lines that arrived faster than they could be processed."""
        self.keeps_earlier = False
        """True if the bounds are raised because earlier lines are being read."""

    @property
    def first(self) -> int:
        """Number of the oldest line that is kept."""
        return self._lines.first

    @property
    def end(self) -> int:
        return self._lines.end

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return self._lines.size

    @property
    def room(self) -> int:
        """Number of earlier lines that may be put before these."""
        return max(0, self._most_lines * EARLIER - (self.end - self.first))

    def add(self, lines: list[bytes], skipped: int = 0, styles: Sequence[Style] | None = None) -> None:
        """Append lines with their initial styles, and drop the oldest beyond the bounds."""
        self.skipped += skipped
        if skipped:
            self.gap = self.end
        for line, style in zip(lines, styles_before(lines) if styles is None else styles, strict=False):
            self._lines.append(line, style)
        self.trim()

    def add_earlier(self, lines: PackedLines) -> int:
        """Prepend as many lines as there is room for, and return their number; consumes `lines`."""
        lines.drop(len(lines) - self.room)
        lines.drop(lines.worth(lines.size - (self._most_bytes * EARLIER - self.size)))
        kept = len(lines)
        self._lines.put_before(lines)
        return kept

    def trim(self) -> None:
        most = EARLIER if self.keeps_earlier else 1
        self._drop(len(self._lines) - self._most_lines * most)
        self._drop(self._lines.worth(self.size - self._most_bytes * most))

    def drop_before_gap(self) -> None:
        """Drop the lines before the last gap; they are read again if needed."""
        if self.gap is not None and self.gap > self.first:
            self._drop(self.gap - self.first)
        self.gap = None

    def _drop(self, count: int) -> None:
        if count <= 0:
            return
        if self.on_leave is not None:
            self.on_leave(self.first, self._lines.between(self.first, self.first + count))
        self._lines.drop(count)

    def holds(self, number: int) -> bool:
        return self.holds_around(number) or number in self.found

    def holds_around(self, number: int) -> bool:
        region = self.region
        return self.first <= number < self.end or (region is not None and region.first <= number < region.end)

    def style_before(self, number: int) -> Style:
        """Return the initial style of the line: colours last until they are reset, as on a terminal."""
        if self.first <= number < self.end:
            return self._lines.style(number)
        region = self.region
        if region is not None and region.first <= number < region.end:
            return region.styles[number - region.first]
        return PLAIN

    def line(self, number: int) -> bytes:
        """Return the line of that number, which must be in memory."""
        if number >= self.first:
            return self._lines.line(number)
        region = self.region
        if region is not None and region.first <= number < region.end:
            return region.lines[number - region.first]
        return self.found[number]

    def between(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield the lines from number `start` up to, but not including, `end`, with their numbers."""
        return iter(enumerate(self._lines.between(start, end), max(start, self.first)))
