"""Search, filter and errors of a displayed log, each computed a few lines at a time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.log_errors import error_in
from gputui.domain.units import plural
from gputui.tui.log.buffer import LogBuffer
from gputui.tui.log.finder import Finder
from gputui.tui.log.pattern import Pattern, text_of
from gputui.tui.log.window import MOST_CONTEXT, LogWindow, ShownLines
from gputui.tui.present.log import without_stamp

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
        self._hits: Finder | None = None
        self._errors: Finder | None = None
        self._told: Finder | None = None
        """Finder of the last jump; the hit's rank is shown."""
        self._jump: PendingJump | None = None
        self.awaited: int | None = None
        """The line to go to once it and its surroundings are loaded."""

    @property
    def hits(self) -> Finder | None:
        """Finder of the search."""
        return self._hits

    def look_for(self, pattern: Pattern | None) -> None:
        """Search a pattern, and go to the first hit from the top of the window on, else to the last one above."""
        self.pattern, self.note, self.awaited = pattern, "", None
        top = self._window.top
        self._hits = self._told = self._finder(pattern.is_in, top) if pattern else None
        self._jump = PendingJump(self._hits, 1, top - 1, turns=True) if self._hits else None

    def narrow(self, pattern: Pattern | None) -> None:
        """Show only lines that match a pattern; all when None."""
        self.narrowed = pattern
        self._lines.filter = self._finder(pattern.is_in, self._buffer.end) if pattern else None
        self._buffer.found.clear()
        self._buffer.on_leave = self._keep_found if pattern else None

    def _keep_found(self, first: int, lines: Sequence[bytes]) -> None:
        """Keep the filtered lines when they leave memory."""
        if (finder := self._lines.filter) is not None:
            hits = finder.hits
            gone = hits[bisect_left(hits, first) : bisect_left(hits, first + len(lines))]
            self._buffer.found.add((number, lines[number - first]) for number in gone)

    def widen(self, step: int) -> None:
        """Show more lines around matching ones, or fewer."""
        self._lines.context = max(0, min(MOST_CONTEXT, self._lines.context + step))

    def go(self, step: int) -> None:
        """Go to the next hit of the search, or to the previous one."""
        if self._hits is not None:
            self._told = self._hits
            self._jump = PendingJump(self._hits, step, self._here)

    def go_to_error(self, step: int) -> None:
        """Go to the first error; from there to the next, or to the previous one."""
        if self._errors is None:
            self._errors = self._finder(lambda text: error_in(text) is not None, self._buffer.first)
        is_new = self._told is not self._errors
        self._told = self._errors
        self._jump = PendingJump(self._errors, step, self._buffer.first - 1 if is_new and step > 0 else self._here)

    @property
    def is_on(self) -> bool:
        """Return whether there is a search or a filter to end."""
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
        return all(finder.is_done(self._buffer) for finder in self._finders()) and self._waits_for_older

    @property
    def _waits_for_older(self) -> bool:
        """Return whether a jump has to wait for older lines to be searched."""
        return self._jump is None or not self._jump.finder.is_over

    def words(self) -> list[str]:
        """Return text for the title: the patterns, and the number of hits."""
        said = []
        if self._told is not None:
            said.append(self._rank_words(self._told))
        if self.narrowed is not None and self._lines.filter is not None:
            around = f" ±{self._lines.context}" if self._lines.context else ""
            said.append(f"&{self.narrowed.text}{around} {self._filter_words(self._lines.filter)}")
        return said

    def _filter_words(self, finder: Finder) -> str:
        shown = len(finder.hits) + len(self._buffer.found)
        found = plural(finder.count, "line")
        if shown < finder.count and finder.is_over:
            found = f"the last {shown:,} of {found}"
        return (finder.fault or found) + _left_words(finder)

    def _rank_words(self, finder: Finder) -> str:
        name = f"/{self.pattern.text}" if finder is self._hits and self.pattern else "error"
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
        kind = f": {self._kind_here()}" if finder is self._errors and rank else ""
        waits = ", loading…" if self.awaited is not None else ""
        return f"{name} {f'{rank:,} of {count}' if rank else count}{kind}{self.note}{waits}{left}"

    def _kind_here(self) -> str:
        known = self.at is not None and self._buffer.holds(self.at)
        raw = self._buffer.line(self.at) if known and self.at is not None else b""
        return error_in(text_of(without_stamp(raw) if self.is_stamped() else raw)) or ""

    @property
    def _here(self) -> int:
        return self.at if self.at is not None else self._window.top - 1

    def _finder(self, test: Callable[[str], bool], start: int) -> Finder:
        return Finder(test, start, self.is_stamped)

    def _finders(self) -> list[Finder]:
        return [finder for finder in (self._hits, self._lines.filter, self._errors) if finder is not None]

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
        """Show the awaited hit."""
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
