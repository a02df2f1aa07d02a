"""Model of a displayed log: its lines, the visible ones, the searches in them, and how rows are drawn."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from gputui.domain.log_errors import error_in
from gputui.domain.text import ELLIPSIS, plural
from gputui.tui.log.buffer import LogBuffer
from gputui.tui.log.finder import Finder, Pattern, TooSlow, impatient, text_of
from gputui.tui.log.follower import TAIL, EarlierLines
from gputui.tui.present.cells import Span, segments
from gputui.tui.present.log import MOST, highlighted, log_spans, stamp_words, without_stamp
from gputui.tui.present.style import AMBER, DIM, GROUND, PICKED, RED_STRONG, WARN

MOST_CONTEXT = 20


class ShownLines:
    """The shown lines, in order. Lines keep their numbers, even if others are left out."""

    def __init__(self, buffer: LogBuffer) -> None:
        self._buffer = buffer
        self.filter: Finder | None = None
        """Finder of the shown lines; None: all lines are shown."""
        self.context = 0
        """Number of lines shown before and after each match."""
        self._known: tuple[object, ...] = ()
        self._around: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, index: int) -> int:
        return self._numbers[index]

    def index(self, number: int) -> int:
        """Return the index of the line among the shown ones; of the next one if it is not shown."""
        numbers = self._numbers
        if isinstance(numbers, range):
            return min(max(number - numbers.start, 0), len(numbers))
        return bisect_left(numbers, number)

    @property
    def end(self) -> int:
        return self._buffer.end

    def leave_region(self) -> None:
        self._buffer.region = None

    @property
    def _numbers(self) -> Sequence[int]:
        if self.filter is None:
            buffer, region = self._buffer, self._buffer.region
            if region is None:
                return range(buffer.first, buffer.end)
            return range(min(region.first, buffer.first), buffer.end if region.end >= buffer.first else region.end)
        if self.context or (self.filter.outside is not None and self.filter.outside.numbers):
            first, end, outside = self._buffer.first, self._buffer.end, self.filter.outside
            known = (self.filter, self.filter.changes, self.context, first, end, outside and outside.changes)
            if known != self._known:
                older = () if outside is None else outside.numbers
                shown = array("q", [number for number in older if number in self._buffer.found])
                self._known, self._around = known, shown + around(self.filter.hits, self.context, first, end)
            return self._around
        return self.filter.hits

    @property
    def reaches_end(self) -> bool:
        """Return whether the last shown line is the log's last."""
        region = self._buffer.region
        return self.filter is not None or region is None or region.end >= self._buffer.first


def around(hits: Sequence[int], context: int, first: int, end: int) -> array[int]:
    """Return the numbers with those up to `context` away, from `first` up to, but not including, `end`, each once."""
    numbers = array("q")
    last = first - 1
    for hit in hits:
        start, stop = max(hit - context, last + 1), min(hit + context + 1, end)
        numbers.extend(range(start, stop))
        last = max(last, stop - 1)
    return numbers


class VisibleRow(Struct, frozen=True):
    """Visible row of a line."""

    number: int
    """Number of its line."""
    part: int
    """Number of the row within its line, from 0."""


class LogWindow:
    """The visible part of the shown lines; stays on the same line when others are added, dropped or filtered."""

    def __init__(self, lines: ShownLines, rows_of: Callable[[int], int]) -> None:
        self.lines = lines
        self._rows_of = rows_of
        self.height = 0
        self.follows = True
        """True if the end stays visible."""
        self.top = 0
        """Number of the first visible line."""
        self.part = 0
        """Number of that line's first visible row."""

    def move(self, rows: int) -> None:
        """Scroll; following resumes at the end."""
        index, part = self._index, self.part + rows
        while part < 0 and index > 0:
            index -= 1
            part += self._rows(index)
        while index < len(self.lines) - 1 and part >= self._rows(index):
            part -= self._rows(index)
            index += 1
        self._stand(index, max(0, part))
        self._judge()

    def to_first(self) -> None:
        self._stand(0, 0)
        self._judge()

    def to_last(self) -> None:
        self.lines.leave_region()
        self.follows = True
        self.settle()

    def show(self, number: int) -> None:
        """Show a line at a third of the window's height, unless it is already well inside."""
        index = self.lines.index(number)
        if number in {row.number for row in self.rows()[1:-1]}:
            self.follows = False
            return
        self._stand(min(index, max(0, len(self.lines) - 1)), 0)
        self.follows = False
        self.move(-(self.height // 3))
        self.follows = False
        self.settle()

    def settle(self) -> None:
        """Keep the window between the oldest line and the last page."""
        if not self.lines:
            self.top = self.part = 0
            return
        if self.height <= 0:
            return
        index, part = self._last_page()
        if not self.follows and (self._index, self.part) <= (index, part):
            if self.lines.number(self._index) != self.top:
                self._stand(self._index, 0)
            return
        self._stand(index, part)

    def rows(self) -> list[VisibleRow]:
        """Return the visible rows from the top."""
        rows: list[VisibleRow] = []
        index, part = self._index, self.part
        while index < len(self.lines) and len(rows) < self.height:
            number = self.lines.number(index)
            count = self._rows(index)
            rows += [VisibleRow(number, i) for i in range(min(part, count - 1), count)]
            index, part = index + 1, 0
        return rows[: self.height]

    @property
    def below(self) -> int:
        """Number of lines that begin below the window."""
        rows = self.rows()
        if rows and not self.lines.reaches_end:
            return self.lines.end - rows[-1].number - 1
        return len(self.lines) - self.lines.index(rows[-1].number) - 1 if rows else 0

    @property
    def is_at_first(self) -> bool:
        return self._index == 0 and self.part == 0

    @property
    def is_at_last(self) -> bool:
        return (self._index, self.part) >= self._last_page()

    @property
    def _index(self) -> int:
        return self.lines.index(self.top)

    def _rows(self, index: int) -> int:
        return max(1, self._rows_of(self.lines.number(index)))

    def _stand(self, index: int, part: int) -> None:
        self.top = self.lines.number(index) if index < len(self.lines) else 0
        self.part = part

    def _judge(self) -> None:
        self.follows = self.is_at_last and self.lines.reaches_end
        self.settle()

    def _last_page(self) -> tuple[int, int]:
        """Return the position at which the last line is the last visible one."""
        index, room = len(self.lines), self.height
        while index > 0 and room > 0:
            index -= 1
            room -= self._rows(index)
        return index, max(0, -room)


MOST_COPIED = 100_000
"""Maximum number of bytes that are copied: terminals drop longer sequences completely."""


class LineSelection:
    """Selection from one shown line to another."""

    def __init__(self) -> None:
        self.start: int | None = None
        self.head = 0

    def begin(self, number: int) -> None:
        self.start = self.head = number

    def extend(self, number: int) -> None:
        if self.start is None:
            self.start = number
        self.head = number

    def drop(self) -> None:
        self.start = None

    @property
    def is_on(self) -> bool:
        return self.start is not None

    def has(self, number: int) -> bool:
        return self.start is not None and min(self.start, self.head) <= number <= max(self.start, self.head)

    def numbers(self, lines: ShownLines) -> list[int]:
        """Return the numbers of the lines that are both shown and selected."""
        if self.start is None:
            return []
        first, last = sorted((self.start, self.head))
        return [number for i in range(lines.index(first), len(lines)) if (number := lines.number(i)) <= last]


def copied_text(buffer: LogBuffer, numbers: list[int], *, is_stamped: bool) -> tuple[str, int]:
    """Return the lines without colours, and the number of lines that fit into the clipboard's limit."""
    kept: list[str] = []
    room = MOST_COPIED
    for number in numbers:
        raw = buffer.line(number)
        text = text_of(without_stamp(raw) if is_stamped else raw)
        room -= len(text.encode("utf-8", "replace")) + 1
        if room < 0:
            break
        kept.append(text)
    return "\n".join(kept), len(kept)


_FAR_BACK = -(10**15)
"""A number below that of any line."""
_LEAPS = 5000
"""Hidden hits that are passed over at once, in some milliseconds."""


class PendingJump(Struct, frozen=True):
    """Jump to a hit that is made as soon as the hit is known."""

    finder: Finder
    step: int
    """1: to the next hit after `start`; -1: to the previous one."""
    start: int
    turns: bool = False
    """True to go to the nearest hit behind if there is none ahead, instead of wrapping around."""
    has_turned: bool = False
    """True if it goes on from the other end, as there was no hit ahead."""
    note: str = ""
    """Note about that."""


class LogSearch:
    """Searches in a log that move its window to their hits."""

    def __init__(self, buffer: LogBuffer, lines: ShownLines, window: LogWindow) -> None:
        self._buffer, self._lines, self._window = buffer, lines, window
        self.pattern: Pattern | None = None
        """Pattern of the search."""
        self.narrowed: Pattern | None = None
        """Pattern of the filter: only lines that match are shown."""
        self.at: int | None = None
        """Number of the line of the current hit."""
        self.note = ""
        """Note about the last jump."""
        self.is_stamped: Callable[[], bool] = lambda: False
        self.is_whole: Callable[[], bool] = lambda: True
        """True if all of the log is in memory."""
        self.hits: Finder | None = None
        self._errors: Finder | None = None
        self._told: Finder | None = None
        """Finder of the last jump; the hit's rank is shown."""
        self._jump: PendingJump | None = None
        self.awaited: int | None = None
        """The line to go to once it and its surroundings are loaded."""

    def look_for(self, pattern: Pattern | None) -> None:
        """Search a pattern, and go to the first hit from the top of the window on, else to the last one above."""
        self.pattern, self.note, self.awaited = pattern, "", None
        top = self._window.top
        self.hits = self._told = Finder(pattern.is_in, top, self.is_stamped) if pattern else None
        self._jump = PendingJump(self.hits, 1, top - 1, turns=True) if self.hits else None

    def narrow(self, pattern: Pattern | None) -> None:
        """Show only lines that match a pattern; all when None."""
        self.narrowed = pattern
        self._lines.filter = Finder(pattern.is_in, self._buffer.end, self.is_stamped) if pattern else None
        self._buffer.found.clear()
        self._buffer.on_leave = self._keep_found if pattern else None

    def _keep_found(self, first: int, lines: Sequence[bytes]) -> None:
        if (finder := self._lines.filter) is not None:
            hits = finder.hits
            gone = hits[bisect_left(hits, first) : bisect_left(hits, first + len(lines))]
            self._buffer.found.add((number, lines[number - first]) for number in gone)

    def widen(self, step: int) -> None:
        self._lines.context = max(0, min(MOST_CONTEXT, self._lines.context + step))

    def go(self, step: int) -> None:
        if self.hits is not None:
            self._told = self.hits
            self._jump = PendingJump(self.hits, step, self._here)

    def go_to_error(self, step: int) -> None:
        """Go to the first error; from there to the next, or to the previous one."""
        if self._errors is None:
            self._errors = Finder(lambda text: error_in(text) is not None, self._buffer.first, self.is_stamped)
        is_new = self._told is not self._errors
        self._told = self._errors
        self._jump = PendingJump(self._errors, step, self._buffer.first - 1 if is_new and step > 0 else self._here)

    @property
    def is_on(self) -> bool:
        return self.pattern is not None or self.at is not None or self.narrowed is not None

    def clear(self) -> bool:
        """End the search, else the filter; return whether there was one."""
        if self.pattern is not None or self.at is not None:
            self.look_for(None)
            self.at = self._told = self._errors = None
            return True
        if self.narrowed is not None:
            self.narrow(None)
            return True
        return False

    def step(self, seconds: float) -> bool:
        """Search for at most `seconds`; return whether the display changed."""
        changed = False
        for finder in self._finders():
            if not finder.is_done(self._buffer):
                changed |= finder.step(self._buffer, seconds)
        return self._try_jump() or changed

    @property
    def is_done(self) -> bool:
        """Return whether all lines in memory were tested."""
        return all(finder.is_done(self._buffer) for finder in self._finders()) and (
            self._jump is None or not self._jump.finder.is_over
        )

    def words(self) -> list[str]:
        """Return text for the title: the patterns, and the number of hits."""
        said = []
        if self._told is not None:
            said.append(self._rank_words(self._told))
        finder = self._lines.filter
        if self.narrowed is not None and finder is not None:
            around = f" ±{self._lines.context}" if self._lines.context else ""
            shown, found = len(finder.hits) + len(self._buffer.found), plural(finder.count, "line")
            if shown < finder.count and finder.is_over:
                found = f"the last {shown:,} of {found}"
            said.append(f"&{self.narrowed.text}{around} {finder.fault or found}{_left_words(finder)}")
        return said

    def _rank_words(self, finder: Finder) -> str:
        name = f"/{self.pattern.text}" if finder is self.hits and self.pattern else "error"
        if finder.fault:
            return f"{name} {finder.fault}"
        left = _left_words(finder)
        if finder is self._errors and not self.is_whole():  # errors are only searched in memory
            left = f" in the last {self._buffer.end - self._buffer.first:,} lines"
        if not finder.count:
            none = "none" if finder.is_over else "none yet"
            return f"{name}: {none if finder.is_done(self._buffer) else 'looking…'}{left}"
        rank = finder.rank(self.at) if self.at is not None else None
        count = f"{finder.count:,}"
        kind = ""
        if finder is self._errors and rank and self.at is not None:
            raw = self._buffer.line(self.at) if self._buffer.holds(self.at) else b""
            kind = f": {error_in(text_of(without_stamp(raw) if self.is_stamped() else raw)) or ''}"
        waits = ", loading…" if self.awaited is not None else ""
        return f"{name} {f'{rank:,} of {count}' if rank else count}{kind}{self.note}{waits}{left}"

    @property
    def _here(self) -> int:
        return self.at if self.at is not None else self._window.top - 1

    def _finders(self) -> list[Finder]:
        return [finder for finder in (self.hits, self._lines.filter, self._errors) if finder is not None]

    def _try_jump(self) -> bool:
        """Make the awaited jump if its hit is known, past hits that the filter hides; return whether it was made."""
        jump, shown = self._jump, self._lines.filter
        if jump is None or (shown is not None and not shown.is_done(self._buffer)):
            return False
        for _ in range(_LEAPS):
            target, is_known = jump.finder.next_hit(self._buffer, jump.start, jump.step)
            if not is_known:
                return False
            if target is not None and self._is_shown(target):
                self._jump, self.note = None, jump.note
                self._land(target)
                return True
            further = self._turned(jump) if target is None else replace(jump, start=self._leap(target, jump.step))
            if further is None:
                self._jump, self.note = None, ", none shown" if self.narrowed else ""
                return True
            jump = further
        self._jump = jump
        return False

    def _turned(self, jump: PendingJump) -> PendingJump | None:
        """Return the jump from the other end, as there is no hit ahead; None if it was made from there already."""
        if jump.has_turned:
            return None
        if jump.turns:
            return replace(jump, step=-1, start=jump.start + 1, has_turned=True)
        if jump.step > 0:
            return replace(jump, start=_FAR_BACK, has_turned=True, note=", from the start again")
        return replace(jump, start=self._buffer.end, has_turned=True, note=", from the end again")

    def _is_shown(self, number: int) -> bool:
        index = self._lines.index(number)
        return self.narrowed is None or (index < len(self._lines) and self._lines.number(index) == number)

    def _leap(self, number: int, step: int) -> int:
        """Return the line from which to search on, so that no hit between two shown lines is looked at."""
        index = self._lines.index(number)
        if step > 0:
            return self._lines.number(index) - 1 if index < len(self._lines) else self._buffer.end
        return self._lines.number(index - 1) + 1 if index else _FAR_BACK

    def _land(self, target: int) -> None:
        """Show that line; wait for it if it is neither in memory nor in the loaded region."""
        self.at = target
        if self.narrowed is None and not self._buffer.holds_around(target):
            self.awaited = target
            self._window.follows = False
            return
        self.awaited = None
        self._window.show(target)

    def arrive(self) -> None:
        target, self.awaited = self.awaited, None
        if target is not None:
            self._window.show(target)


def _left_words(finder: Finder) -> str:
    """Return text on what is not searched yet, or will not be."""
    outside, said = finder.outside, ""
    if outside is not None and outside.progress:
        said = f", searching: {outside.progress}"
    elif outside is not None and outside.fault:
        said = f", older lines not searched: {outside.fault}"
    return said + (f", {plural(finder.missed, 'line')} not searched" if finder.missed else "")


class LogModel:
    """Lines, window, search and selection of one log; each followed log gets a new one."""

    def __init__(self) -> None:
        self.buffer = LogBuffer()
        self.lines = ShownLines(self.buffer)
        self.painter = LogPainter(self.buffer, self.lines)
        self.window = LogWindow(self.lines, self.painter.rows_of)
        self.search = LogSearch(self.buffer, self.lines, self.window)
        self.search.is_stamped = lambda: self.painter.is_stamped
        self.search.is_whole = lambda: self.is_whole
        self.picked = LineSelection()
        self.rows: list[VisibleRow] = []
        """Visible rows."""
        self._starts = False
        """True if the oldest line is the log's first."""
        self._first = 0
        self.was_extended = False
        """True if earlier lines were loaded."""
        self.note = ""
        """Note for the title: work in progress, or an error."""

    def look_like(self, other: LogModel) -> None:
        self.painter.wraps, self.painter.shows_stamps = other.painter.wraps, other.painter.shows_stamps
        self.painter.width, self.window.height = other.painter.width, other.window.height

    @property
    def is_whole(self) -> bool:
        """Return whether the oldest line is the log's first."""
        buffer = self.buffer
        return self._starts or (buffer.first == 0 and buffer.end < TAIL and not buffer.skipped)

    def put_before(self, earlier: EarlierLines) -> None:
        """Add earlier lines; visible lines keep their places."""
        self.buffer.keeps_earlier = self.was_extended = True
        came = len(earlier.lines)
        kept = self.buffer.add_earlier(earlier.lines)
        self._starts, self._first = earlier.is_start and kept == came, self.buffer.first

    def settle(self) -> None:
        if self.buffer.keeps_earlier and self.window.follows and self.search.is_done:
            self.buffer.keeps_earlier = False
            self.buffer.trim()
        if self.window.follows:
            self.lines.leave_region()
        self._starts = self._starts and self.buffer.first == self._first
        self.painter.found, self.painter.kept = self.search.pattern, self.search.narrowed
        self.window.settle()
        self.rows = self.window.rows()

    def shown_numbers(self) -> list[int]:
        """Return the numbers of the selected lines, else of the visible ones."""
        if self.picked.is_on:
            numbers = self.picked.numbers(self.lines)
        else:
            numbers = list(dict.fromkeys(row.number for row in self.rows))
        return [number for number in numbers if self.buffer.holds(number)]


_GROUND = Style(bgcolor=GROUND)
_PICKED = Style(bgcolor=PICKED)
_FOUND = Style(color=GROUND, bgcolor=WARN, bold=True)
_KEPT = Style(underline=True, bold=True)
STRIPS = 500
_MOMENT = 0.02
"""Seconds of CPU time in which hits in one line must be highlighted."""


class LogPainter:
    """Renders rows as strips. Its owner sets the attributes that affect rendering, then calls `forget`."""

    def __init__(self, buffer: LogBuffer, lines: ShownLines) -> None:
        self._buffer = buffer
        self._lines = lines
        self.width = 0
        self.left = 0
        self.wraps = False
        self.is_stamped = False
        """True if the lines begin with a time."""
        self.shows_stamps = False
        self.found: Pattern | None = None
        """Pattern of the search, highlighted."""
        self.kept: Pattern | None = None
        """Pattern of the filter, underlined."""
        self.strips: OrderedDict[tuple[int, bool], tuple[Strip, bool]] = OrderedDict()
        """Cache of rendered lines, each with whether it reports an error, by number and selection."""

    def forget(self) -> None:
        """Clear the cache: all lines are rendered again."""
        self.strips.clear()

    def rows_of(self, number: int) -> int:
        if not self.wraps or self._room <= 0:
            return 1
        strip, _ = self._drawn(number, picked=False)
        return max(1, -(-strip.cell_length // self._room))

    def row(self, row: VisibleRow, *, picked: bool, marked: bool) -> Strip:
        """Return one row of a line, as wide as the pane."""
        ground = _PICKED if picked else _GROUND
        if not self._buffer.holds(row.number):
            return Strip.blank(self.width, _GROUND)
        strip, is_error = self._drawn(row.number, picked=picked)
        start = row.part * self._room if self.wraps else self.left
        shown = strip.crop(start, start + self._room) if self._room > 0 else strip
        if not self.wraps and 0 < self._room < strip.cell_length - start:
            kept = shown.crop(0, self._room - 1).adjust_cell_length(self._room - 1, ground)
            shown = Strip([*kept, Segment(ELLIPSIS, ground + DIM)], self._room)
        sign = self._sign(row, is_error=is_error, marked=marked)
        return Strip([Segment(sign[0], ground + sign[1]), *shown]).adjust_cell_length(self.width, ground)

    def rest(self, line: bytes) -> Strip:
        """Return the row of a line that has not ended yet; long ones are cut."""
        spans = [(" ", DIM), *log_spans(without_stamp(line) if self.is_stamped else line)]
        return Strip(segments(spans, _GROUND)).adjust_cell_length(self.width, _GROUND)

    @property
    def _room(self) -> int:
        return self.width - 1

    def _sign(self, row: VisibleRow, *, is_error: bool, marked: bool) -> Span:
        """Return the sign before the line: the current hit, an error, or a gap above."""
        if row.part:
            return " ", DIM
        if marked:
            return "▶", AMBER
        if is_error:
            return "✗", RED_STRONG
        lines, at = self._lines, self._lines.index(row.number)
        is_gap = lines.context > 0 and 0 < at < len(lines) and lines.number(at - 1) + 1 < lines.number(at)
        return ("┄" if is_gap else " "), DIM

    def _drawn(self, number: int, *, picked: bool) -> tuple[Strip, bool]:
        known = self.strips.get((number, picked))
        if known is None:
            known = self.strips[number, picked] = self._draw(number, picked=picked)
            while len(self.strips) > STRIPS:
                self.strips.popitem(last=False)
        return known

    def _draw(self, number: int, *, picked: bool) -> tuple[Strip, bool]:
        raw = self._buffer.line(number)
        content = without_stamp(raw) if self.is_stamped else raw
        spans = log_spans(content, self._buffer.style_before(number))
        text = "".join(value for value, _ in spans)
        for pattern, style in ((self.kept, _KEPT), (self.found, _FOUND)):
            if pattern is not None:
                with suppress(TooSlow), impatient(_MOMENT):
                    spans = highlighted(spans, pattern.places(text), style)
        if self.is_stamped and self.shows_stamps:
            spans.insert(0, (stamp_words(raw), DIM))
        if len(raw) >= MOST:  # the rest was not kept
            spans.append((ELLIPSIS, DIM))
        return Strip(segments(spans, _PICKED if picked else _GROUND)), error_in(text) is not None
