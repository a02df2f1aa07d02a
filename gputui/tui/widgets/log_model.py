"""Model of a displayed log: its lines, the visible ones, the searches in them, and how rows are drawn."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct, field
from msgspec.structs import replace
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from gputui.domain.log_errors import error_in
from gputui.domain.text import ELLIPSIS, plural
from gputui.tui.present.cells import AMBER, DIM, GROUND, ON_GROUND, ON_PICKED, RED_STRONG, WARN, Span, segments
from gputui.tui.present.log import MOST, highlighted, log_spans, stamp_words, without_stamp
from gputui.tui.widgets.log_follower import TAIL, EarlierLines
from gputui.tui.widgets.log_lines import Finder, LogLines
from gputui.tui.widgets.log_pattern import Pattern, TooSlow, impatient

MOST_CONTEXT = 20


class VisibleRow(Struct, frozen=True):
    number: int
    part: int
    """Number of the row within its line, from 0."""


class LogWindow(Struct, eq=False):
    """The visible part of the shown lines; stays on the same line when others are added, dropped or filtered."""

    lines: LogLines
    rows_of: Callable[[int], int]
    """Returns the number of rows of a line, at least 1."""
    height: int = 0
    follows: bool = True
    top: int = 0
    """Number of the first visible line."""
    part: int = 0
    """Number of that line's first visible row."""

    def move(self, rows: int) -> None:
        """Scroll; following resumes at the end."""
        numbers = self.lines.numbers
        index, part = self._index, self.part + rows
        while part < 0 and index > 0:
            index -= 1
            part += self.rows_of(numbers[index])
        while index < len(numbers) - 1 and part >= (count := self.rows_of(numbers[index])):
            part -= count
            index += 1
        self._stand(index, max(0, part))
        self.follows = self.is_at_last and self.lines.reaches_end
        self.settle()

    def to_first(self) -> None:
        self._stand(0, 0)
        self.move(0)

    def to_last(self) -> None:
        self.lines.region = None
        self.follows = True
        self.settle()

    def show(self, number: int) -> None:
        """Show a line at a third of the window's height, unless it is already well inside."""
        if number not in {row.number for row in self.rows()[1:-1]}:
            self._stand(min(self.lines.index(number), max(0, len(self.lines.numbers) - 1)), 0)
            self.follows = False
            self.move(-(self.height // 3))
            self.follows = False
            self.settle()
        self.follows = False

    def settle(self) -> None:
        if not self.lines.numbers:
            self.top = self.part = 0
        elif self.height > 0:
            index, part = self._last_page()
            if self.follows or (self._index, self.part) > (index, part):
                self._stand(index, part)
            elif self.lines.numbers[self._index] != self.top:
                self._stand(self._index, 0)

    def rows(self) -> list[VisibleRow]:
        rows: list[VisibleRow] = []
        numbers, index, part = self.lines.numbers, self._index, self.part
        while index < len(numbers) and len(rows) < self.height:
            count = self.rows_of(numbers[index])
            rows += [VisibleRow(numbers[index], i) for i in range(min(part, count - 1), count)]
            index, part = index + 1, 0
        return rows[: self.height]

    @property
    def below(self) -> int:
        lines, rows = self.lines, self.rows()
        if rows and not lines.reaches_end:
            return lines.end - rows[-1].number - 1
        return len(lines.numbers) - lines.index(rows[-1].number) - 1 if rows else 0

    @property
    def is_at_first(self) -> bool:
        return self._index == 0 and self.part == 0

    @property
    def is_at_last(self) -> bool:
        return (self._index, self.part) >= self._last_page()

    @property
    def _index(self) -> int:
        return self.lines.index(self.top)

    def _stand(self, index: int, part: int) -> None:
        numbers = self.lines.numbers
        self.top = numbers[index] if index < len(numbers) else 0
        self.part = part

    def _last_page(self) -> tuple[int, int]:
        """Return the position at which the last line is the last visible one."""
        numbers, room = self.lines.numbers, self.height
        index = len(numbers)
        while index > 0 and room > 0:
            index -= 1
            room -= self.rows_of(numbers[index])
        return index, max(0, -room)


MOST_COPIED = 100_000
"""Maximum number of bytes that are copied: terminals drop longer sequences completely."""


class LineSelection(Struct, eq=False):
    start: int | None = None
    head: int = 0

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

    def numbers(self, lines: LogLines) -> list[int]:
        if self.start is None:
            return []
        first, last = sorted((self.start, self.head))
        return list(lines.numbers[lines.index(first) : lines.index(last + 1)])


def copied_text(lines: LogLines, numbers: list[int]) -> tuple[str, int]:
    """Return the lines without colours, and the number of lines that fit into the clipboard's limit."""
    kept: list[str] = []
    room = MOST_COPIED
    for number in numbers:
        text = lines.text(number)
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


class LogSearch(Struct, eq=False):
    lines: LogLines
    window: LogWindow
    pattern: Pattern | None = None
    narrowed: Pattern | None = None
    """Pattern of the filter: only lines that match are shown."""
    at: int | None = None
    """Number of the line of the current hit."""
    note: str = ""
    is_whole: Callable[[], bool] = lambda: True
    """True if all of the log is in memory."""
    hits: Finder | None = None
    awaited: int | None = None
    """The line to go to once it and its surroundings are loaded."""
    _errors: Finder | None = None
    _ranked: Finder | None = None
    """Finder of the last jump; the hit's rank is shown."""
    _jump: PendingJump | None = None

    def look_for(self, pattern: Pattern | None) -> None:
        """Search a pattern, and go to the first hit from the top of the window on, else to the last one above."""
        self.pattern, self.note, self.awaited = pattern, "", None
        top = self.window.top
        self.hits = self._ranked = Finder(self.lines, pattern.is_in, top) if pattern else None
        self._jump = PendingJump(self.hits, 1, top - 1, turns=True) if self.hits else None

    def narrow(self, pattern: Pattern | None) -> None:
        self.narrowed = pattern
        self.lines.narrow(pattern.is_in if pattern else None)

    def widen(self, step: int) -> None:
        self.lines.context = max(0, min(MOST_CONTEXT, self.lines.context + step))

    def go(self, step: int) -> None:
        if self.hits is not None:
            self._ranked = self.hits
            self._jump = PendingJump(self.hits, step, self._here)

    def go_to_error(self, step: int) -> None:
        """Go to the first error; from there to the next, or to the previous one."""
        if self._errors is None:
            self._errors = Finder(self.lines, lambda text: error_in(text) is not None, self.lines.first)
        is_new, self._ranked = self._ranked is not self._errors, self._errors
        self._jump = PendingJump(self._errors, step, self.lines.first - 1 if is_new and step > 0 else self._here)

    @property
    def is_on(self) -> bool:
        return self.pattern is not None or self.at is not None or self.narrowed is not None

    def clear(self) -> None:
        if self.pattern is not None or self.at is not None:
            self.look_for(None)
            self.at = self._ranked = self._errors = None
        else:
            self.narrow(None)

    def step(self, seconds: float) -> bool:
        changed = [finder.step(seconds) for finder in self._finders() if not finder.is_done]
        return self._try_jump() or any(changed)

    @property
    def is_done(self) -> bool:
        return all(finder.is_done for finder in self._finders()) and (
            self._jump is None or bool(self._jump.finder.progress)
        )

    def words(self) -> list[str]:
        said = [] if self._ranked is None else [self._rank_words(self._ranked)]
        finder, lines = self.lines.filter, self.lines
        if self.narrowed is not None and finder is not None:
            around = f" ±{lines.context}" if lines.context else ""
            shown, found = lines.count_held(), plural(finder.count, "line")
            if shown < finder.count and not finder.progress:
                found = f"the last {shown:,} of {found}"
            said.append(f"&{self.narrowed.text}{around} {finder.fault or found}{_left_words(finder)}")
        return said

    def _rank_words(self, finder: Finder) -> str:
        lines, at = self.lines, self.at
        name = f"/{self.pattern.text}" if finder is self.hits and self.pattern else "error"
        if finder.fault:
            return f"{name} {finder.fault}"
        left = _left_words(finder)
        if finder is self._errors and not self.is_whole():  # errors are only searched in memory
            left = f" in the last {len(lines.kept):,} lines"
        if not finder.count:
            none = "none yet" if finder.progress else "none"
            return f"{name}: {none if finder.is_done else 'looking…'}{left}"
        rank = finder.rank(at) if at is not None else None
        kind = ""
        if finder is self._errors and rank and at is not None:
            kind = f": {(error_in(lines.text(at)) if lines.holds(at) else None) or ''}"
        waits = ", loading…" if self.awaited is not None else ""
        count = f"{finder.count:,}"
        return f"{name} {f'{rank:,} of {count}' if rank else count}{kind}{self.note}{waits}{left}"

    @property
    def _here(self) -> int:
        return self.at if self.at is not None else self.window.top - 1

    def _finders(self) -> list[Finder]:
        return [finder for finder in (self.hits, self.lines.filter, self._errors) if finder is not None]

    def _try_jump(self) -> bool:
        """Make the awaited jump if its hit is known, past hits that the filter hides; return whether it was made."""
        jump, shown = self._jump, self.lines.filter
        if jump is None or (shown is not None and not shown.is_done):
            return False
        for _ in range(_LEAPS):
            target, is_known = jump.finder.next_hit(jump.start, jump.step)
            if not is_known:
                return False
            if target is None and jump.has_turned:
                self._jump, self.note = None, ", none shown" if self.narrowed else ""
                return True
            if target is not None and (self.narrowed is None or self.lines.is_shown(target)):
                self._jump, self.note = None, jump.note
                self.at = self.awaited = target
                if self.narrowed is None and not self.lines.holds_around(target):
                    self.window.follows = False  # until the lines around it are loaded
                else:
                    self.arrive()
                return True
            jump = self._further(jump, target)
        self._jump = jump
        return False

    def _further(self, jump: PendingJump, hidden: int | None) -> PendingJump:
        """Return the jump past a hidden hit, to the next shown line; without a hit ahead, from the other end."""
        if hidden is None and jump.turns:
            return replace(jump, step=-1, start=jump.start + 1, has_turned=True)
        if hidden is None and jump.step > 0:
            return replace(jump, start=_FAR_BACK, has_turned=True, note=", from the start again")
        if hidden is None:
            return replace(jump, start=self.lines.end, has_turned=True, note=", from the end again")
        index, numbers = self.lines.index(hidden), self.lines.numbers
        if jump.step > 0:
            return replace(jump, start=numbers[index] - 1 if index < len(numbers) else self.lines.end)
        return replace(jump, start=numbers[index - 1] + 1 if index else _FAR_BACK)

    def arrive(self) -> None:
        target, self.awaited = self.awaited, None
        if target is not None:
            self.window.show(target)


def _left_words(finder: Finder) -> str:
    said = ""
    if finder.progress:
        said = f", searching: {finder.progress}"
    elif finder.scan_fault:
        said = f", older lines not searched: {finder.scan_fault}"
    return said + (f", {plural(finder.missed, 'line')} not searched" if finder.missed else "")


class LogModel:
    """Lines, window, search and selection of one log; each followed log gets a new one."""

    def __init__(self, before: LogModel | None = None) -> None:
        self.lines = LogLines()
        self.painter = LogPainter(self.lines)
        self.window = LogWindow(self.lines, self.painter.rows_of)
        self.search = LogSearch(self.lines, self.window)
        self.search.is_whole = lambda: self.is_whole
        self.selection = LineSelection()
        self.rows: list[VisibleRow] = []
        self._start: int | None = None
        """Number of the log's first line, if it was loaded."""
        self.was_extended = False
        self.note = ""
        """Note for the title: work in progress, or an error."""
        if before is not None:
            self.painter.wraps, self.painter.shows_stamps = before.painter.wraps, before.painter.shows_stamps
            self.painter.width, self.window.height = before.painter.width, before.window.height

    @property
    def is_whole(self) -> bool:
        lines = self.lines
        return self._start == lines.first or (lines.first == 0 and lines.end < TAIL and not lines.skipped)

    def put_before(self, earlier: EarlierLines) -> None:
        self.lines.keeps_earlier = self.was_extended = True
        came = len(earlier.lines)
        kept = self.lines.add_earlier(earlier.lines)
        self._start = self.lines.first if earlier.is_start and kept == came else None

    def settle(self) -> None:
        if self.lines.keeps_earlier and self.window.follows and self.search.is_done:
            self.lines.keeps_earlier = False
            self.lines.trim()
        if self.window.follows:
            self.lines.region = None
        self.painter.found, self.painter.kept = self.search.pattern, self.search.narrowed
        self.window.settle()
        self.rows = self.window.rows()

    def shown_numbers(self) -> list[int]:
        if self.selection.is_on:
            numbers = self.selection.numbers(self.lines)
        else:
            numbers = list(dict.fromkeys(row.number for row in self.rows))
        return [number for number in numbers if self.lines.holds(number)]


_FOUND = Style(color=GROUND, bgcolor=WARN, bold=True)
_KEPT = Style(underline=True, bold=True)
STRIPS = 500
_MOMENT = 0.02
"""Seconds of CPU time in which hits in one line must be highlighted."""


class LogPainter(Struct, eq=False):
    """Renders rows as strips. Its owner sets the attributes that affect rendering, then calls `forget`."""

    lines: LogLines
    width: int = 0
    left: int = 0
    wraps: bool = False
    shows_stamps: bool = False
    found: Pattern | None = None
    """Pattern of the search, highlighted."""
    kept: Pattern | None = None
    """Pattern of the filter, underlined."""
    strips: OrderedDict[tuple[int, bool], tuple[Strip, bool]] = field(default_factory=OrderedDict)
    """Cache of rendered lines, each with whether it reports an error, by number and selection."""

    def forget(self) -> None:
        self.strips.clear()

    def rows_of(self, number: int) -> int:
        if not self.wraps or self._room <= 0:
            return 1
        strip, _ = self._drawn(number, selected=False)
        return max(1, -(-strip.cell_length // self._room))

    def row(self, row: VisibleRow, *, selected: bool, marked: bool) -> Strip:
        ground = ON_PICKED if selected else ON_GROUND
        if not self.lines.holds(row.number):
            return Strip.blank(self.width, ON_GROUND)
        strip, is_error = self._drawn(row.number, selected=selected)
        start = row.part * self._room if self.wraps else self.left
        shown = strip.crop(start, start + self._room) if self._room > 0 else strip
        if not self.wraps and 0 < self._room < strip.cell_length - start:
            kept = shown.crop(0, self._room - 1).adjust_cell_length(self._room - 1, ground)
            shown = Strip([*kept, Segment(ELLIPSIS, ground + DIM)], self._room)
        sign = self._sign(row, is_error=is_error, marked=marked)
        return Strip([Segment(sign[0], ground + sign[1]), *shown]).adjust_cell_length(self.width, ground)

    def rest(self, line: bytes) -> Strip:
        """Return the row of a line that has not ended yet; long ones are cut."""
        spans = [(" ", DIM), *log_spans(without_stamp(line) if self.lines.is_stamped else line)]
        return Strip(segments(spans, ON_GROUND)).adjust_cell_length(self.width, ON_GROUND)

    @property
    def _room(self) -> int:
        return self.width - 1

    def _sign(self, row: VisibleRow, *, is_error: bool, marked: bool) -> Span:
        if row.part:
            return " ", DIM
        if marked:
            return "▶", AMBER
        if is_error:
            return "✗", RED_STRONG
        numbers, at = self.lines.numbers, self.lines.index(row.number)
        is_gap = self.lines.context > 0 and 0 < at < len(numbers) and numbers[at - 1] + 1 < numbers[at]
        return ("┄" if is_gap else " "), DIM

    def _drawn(self, number: int, *, selected: bool) -> tuple[Strip, bool]:
        if (known := self.strips.get((number, selected))) is not None:
            return known
        raw = self.lines.line(number)
        content = without_stamp(raw) if self.lines.is_stamped else raw
        spans = log_spans(content, self.lines.style_before(number))
        text = "".join(value for value, _ in spans)
        for pattern, style in ((self.kept, _KEPT), (self.found, _FOUND)):
            if pattern is not None:
                with suppress(TooSlow), impatient(_MOMENT):
                    spans = highlighted(spans, pattern.places(text), style)
        if self.lines.is_stamped and self.shows_stamps:
            spans.insert(0, (stamp_words(raw), DIM))
        if len(raw) >= MOST:  # the rest was not kept
            spans.append((ELLIPSIS, DIM))
        drawn = Strip(segments(spans, ON_PICKED if selected else ON_GROUND)), error_in(text) is not None
        self.strips[number, selected] = drawn
        while len(self.strips) > STRIPS:
            self.strips.popitem(last=False)
        return drawn
