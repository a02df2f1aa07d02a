"""What is looked for in a log that is shown: a search, a filter and the errors, each found a little at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gputui.domain.units import plural
from gputui.tui.log.buffer import LogBuffer
from gputui.tui.log.finder import Finder
from gputui.tui.log.lines import MOST_CONTEXT, LogLines
from gputui.tui.log.pattern import Pattern, text_of
from gputui.tui.log.window import LogWindow
from gputui.tui.present.log_errors import error_in
from gputui.tui.present.log_stamp import without_stamp


@dataclass(frozen=True)
class Jump:
    """Where to go as soon as it is known."""

    finder: Finder
    step: int
    """1: to the next hit after `start`; -1: to the one before."""
    start: int
    turns: bool = False
    """Where there is none ahead, go to the nearest behind rather than round."""


class LogSearch:
    """Moves the window to what is found."""

    def __init__(self, buffer: LogBuffer, lines: LogLines, window: LogWindow) -> None:
        self._buffer, self._lines, self._window = buffer, lines, window
        self.pattern: Pattern | None = None
        """What is searched."""
        self.narrowed: Pattern | None = None
        """Only lines with it are shown."""
        self.at: int | None = None
        """The line that was gone to."""
        self.note = ""
        """What came of the last jump."""
        self.is_stamped: Callable[[], bool] = lambda: False
        self._hits: Finder | None = None
        self._errors: Finder | None = None
        self._told: Finder | None = None
        """What the last jump was among: its rank is shown."""
        self._jump: Jump | None = None

    def look_for(self, pattern: Pattern | None) -> None:
        """Search it, and go to the first from the top of the window on, else to the last above."""
        self.pattern, self.note = pattern, ""
        top = self._window.top
        self._hits = self._told = self._finder(pattern.is_in, top) if pattern else None
        self._jump = Jump(self._hits, 1, top - 1, turns=True) if self._hits else None

    def narrow(self, pattern: Pattern | None) -> None:
        """Show only lines with it; all when None."""
        self.narrowed = pattern
        self._lines.filter = self._finder(pattern.is_in, self._buffer.end) if pattern else None

    def widen(self, step: int) -> None:
        """Show more lines around those that match, or fewer."""
        self._lines.context = max(0, min(MOST_CONTEXT, self._lines.context + step))

    def go(self, step: int) -> None:
        """To the next line with what is searched, or the one before."""
        if self._hits is not None:
            self._told = self._hits
            self._jump = Jump(self._hits, step, self._here)

    def go_to_error(self, step: int) -> None:
        """To the first error; from there to the next, or the one before."""
        if self._errors is None:
            self._errors = self._finder(lambda text: error_in(text) is not None, self._buffer.first)
        is_new = self._told is not self._errors
        self._told = self._errors
        self._jump = Jump(self._errors, step, self._buffer.first - 1 if is_new and step > 0 else self._here)

    @property
    def is_on(self) -> bool:
        """Whether there is anything to clear."""
        return self.pattern is not None or self.at is not None or self.narrowed is not None

    def clear(self) -> bool:
        """Give up the search, then the filter, then the context; whether there was anything."""
        if self.pattern is not None or self.at is not None:
            self.look_for(None)
            self.at = self._told = self._errors = None
            return True
        if self.narrowed is not None:
            self.narrow(None)
            return True
        return False

    def step(self, seconds: float) -> bool:
        """Look on for so long at most; whether anything changed on the screen."""
        changed = False
        for finder in self._finders():
            if not finder.is_done(self._buffer):
                changed |= finder.step(self._buffer, seconds)
        return self._try_jump() or changed

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to be looked at."""
        return self._jump is None and all(finder.is_done(self._buffer) for finder in self._finders())

    def words(self) -> list[str]:
        """What is looked for and how much of it was found, for the title."""
        said = []
        if self._told is not None:
            said.append(self._rank_words(self._told))
        if self.narrowed is not None and self._lines.filter is not None:
            around = f" ±{self._lines.context}" if self._lines.context else ""
            found = self._lines.filter.fault or plural(len(self._lines.filter.hits), "line")
            said.append(f"&{self.narrowed.text}{around} {found}")
        return said

    def _rank_words(self, finder: Finder) -> str:
        name = f"/{self.pattern.text}" if finder is self._hits and self.pattern else "error"
        if finder.fault:
            return f"{name} {finder.fault}"
        if not finder.hits:
            return f"{name}: {'none' if finder.is_done(self._buffer) else 'looking…'}"
        rank = finder.rank(self.at) if self.at is not None else None
        count = f"{len(finder.hits):,}"
        kind = f": {self._kind_here()}" if finder is self._errors and rank else ""
        return f"{name} {f'{rank:,} of {count}' if rank else count}{kind}{self.note}"

    def _kind_here(self) -> str:
        known = self.at is not None and self._buffer.first <= self.at < self._buffer.end
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
        jump = self._jump
        if jump is None:
            return False
        is_done = jump.finder.is_done(self._buffer)
        if not is_done and not jump.finder.knows(jump.start, jump.step):
            return False
        target = jump.finder.after(jump.start) if jump.step > 0 else jump.finder.before(jump.start)
        if target is None and not is_done:
            return False
        self._jump, self.note = None, ""
        self._land(jump, target)
        return True

    def _land(self, jump: Jump, target: int | None) -> None:
        hits = jump.finder.hits
        if target is None and hits:
            if jump.turns:
                target = hits[-1]
            else:
                target = hits[0] if jump.step > 0 else hits[-1]
                self.note = ", from the start again" if jump.step > 0 else ", from the end again"
        if target is not None:
            self.at = target
            self._window.show(target)
