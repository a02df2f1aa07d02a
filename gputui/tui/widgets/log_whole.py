"""Searches, for one pane, the part of its log that is not in memory, and loads what surrounds a hit there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from textual.message import Message

from gputui.tui.log.earlier import ANCHOR, Known
from gputui.tui.log.finder import Finder
from gputui.tui.log.outside import Island, Outside
from gputui.tui.log.pattern import Pattern
from gputui.tui.log.whole import Scanned, read_island, scan
from gputui.tui.newest import IsWanted, Newest

if TYPE_CHECKING:
    from gputui.tui.log.follower import LogFollower
    from gputui.tui.widgets.log_view import LogView

_TYPED = 0.25
"""Seconds after the last key before all of the log is searched."""
_TOLD_EVERY = 0.2
BEGINS = "0 %"


class ScanMoved(Message, bubble=False):
    """How far a search is."""

    def __init__(self, finder: Finder, progress: str) -> None:
        super().__init__()
        self.finder, self.progress = finder, progress


class ScanCame(Message, bubble=False):
    """Message with the hits of a search in older lines."""

    def __init__(self, finder: Finder, scanned: Scanned) -> None:
        super().__init__()
        self.finder, self.scanned = finder, scanned


class IslandCame(Message, bubble=False):
    """A part of the log that was asked for."""

    def __init__(self, follower: LogFollower | None, island: Island | None, fault: str = "") -> None:
        super().__init__()
        self.follower, self.island, self.fault = follower, island, fault


class WholeLog:
    """Never blocks: workers read, and a process of its own matches."""

    def __init__(self, pane: LogView) -> None:
        self._pane = pane
        self._searched: Finder | None = None
        self._filtered: Finder | None = None
        self._searches = Newest(pane.post_message, lambda error: self._failed(self._searched, error))
        self._filters = Newest(pane.post_message, lambda error: self._failed(self._filtered, error))
        self._islands = Newest(pane.post_message, lambda error: IslandCame(pane.follower, None, str(error)))
        self._shift: int | None = None
        self._loading: int | None = None
        """Number of the line around which a part is being loaded."""
        self._then: Callable[[], None] | None = None

    def close(self) -> None:
        """Give everything up."""
        self._searched = self._filtered = None
        for worker in (self._searches, self._filters, self._islands):
            worker.close()

    def forget(self) -> None:
        """Begin with another log."""
        self._shift = self._loading = self._then = None

    def begin(self, finder: Finder | None, pattern: Pattern | None, *, is_filter: bool) -> None:
        """Search the older lines too, when no key was pressed for a moment."""
        if is_filter:
            self._filtered = finder
        else:
            self._searched = finder
        if finder is not None and pattern is not None:
            progress = "" if self._pane.reading.is_whole else BEGINS
            finder.outside = Outside(border=self._pane.buffer.first, progress=progress)
            self._start_later(finder, pattern, is_filter)

    def _start_later(self, finder: Finder, pattern: Pattern, is_filter: bool) -> None:
        self._pane.set_timer(_TYPED, lambda: self._start(finder, pattern, is_filter))

    def _is_wanted(self, finder: Finder) -> bool:
        return finder is self._searched or finder is self._filtered

    def _start(self, finder: Finder, pattern: Pattern, is_filter: bool) -> None:
        pane, buffer, follower = self._pane, self._pane.buffer, self._pane.follower
        if not self._is_wanted(finder) or follower is None or not pane.is_attached:
            return
        if pane.is_arriving:
            self._start_later(finder, pattern, is_filter)
            return
        first, is_whole = buffer.first, pane.reading.is_whole
        finder.outside = Outside(border=first, shift=-first if is_whole else None, progress="" if is_whole else BEGINS)
        finder.missed = 0
        if is_whole:
            self._shift = -first
            pane.look()
            return
        known = Known(
            tuple(raw for _, raw in buffer.between(first, first + ANCHOR)),
            buffer.end - first + (buffer.skipped if buffer.gap is not None else 0),
        )

        def work(is_wanted: IsWanted) -> Message:
            wanted = lambda: is_wanted() and self._is_wanted(finder)  # noqa: E731
            return ScanCame(finder, scan(follower, pattern, known, first, wanted, self._teller(finder)))

        (self._filters if is_filter else self._searches).ask(work)

    def _teller(self, finder: Finder) -> Callable[[str], None]:
        """Return what tells the pane of progress, a few times a second."""
        told_at = 0.0

        def tell(progress: str) -> None:
            nonlocal told_at
            if time.monotonic() - told_at >= _TOLD_EVERY:
                told_at = time.monotonic()
                self._pane.post_message(ScanMoved(finder, progress))

        return tell

    def _failed(self, finder: Finder | None, error: Exception) -> Message:
        return ScanCame(finder or Finder(bool, 0), Scanned(fault=str(error)))

    def take_progress(self, message: ScanMoved) -> bool:
        """Note how far a search is; whether it is still wanted."""
        outside = message.finder.outside
        if outside is None or not outside.progress or not self._is_wanted(message.finder):
            return False
        outside.progress = message.progress
        return True

    def take_scan(self, message: ScanCame) -> bool:
        """Take in what a search found; whether it is still wanted."""
        finder, scanned = message.finder, message.scanned
        if finder.outside is None or not self._is_wanted(finder):
            return False
        if scanned.fault:
            finder.outside.fail(scanned.fault)
            return True
        finder.outside.finish(scanned.numbers, scanned.uncounted, scanned.shift)
        self._shift = scanned.shift
        if finder is self._filtered:
            self._pane.buffer.found = {**scanned.found, **self._pane.buffer.found}
        return True

    @property
    def is_loading(self) -> bool:
        """Whether a part of the log is on its way."""
        return self._loading is not None

    def load_awaited(self) -> None:
        """Load the surroundings of the hit that is waited for, unless they are on their way."""
        target = self._pane.reading.search.awaited
        if target is not None and target != self._loading:
            self.load(target, self._pane.reading.search.arrive)

    def load(self, number: int, then: Callable[[], None]) -> None:
        """Load the lines around that one."""
        follower, shift = self._pane.follower, self._shift
        if follower is None or shift is None:
            return
        self._loading, self._then = number, then
        self._islands.ask(lambda is_wanted: IslandCame(follower, read_island(follower, shift, number, is_wanted)))

    def load_start(self, then: Callable[[], None]) -> None:
        """Load the first lines of the log."""
        if self._shift is not None:
            self.load(-self._shift, then)

    def load_more(self, step: int) -> None:
        """Load what comes before the part that is shown, or behind it."""
        island = self._pane.buffer.island
        if self._loading is None and island is not None and not (step < 0 and island.is_start):
            self.load(island.first if step < 0 else island.end - 1, lambda: None)

    def take_island(self, message: IslandCame) -> str:
        """Show the part that came; return what is wrong with it."""
        if message.follower is not self._pane.follower or self._loading is None:
            return ""
        number, then = self._loading, self._then
        self._loading = self._then = None
        island = message.island
        if island is None or not island.first <= number < island.end:
            self._pane.reading.search.awaited = None
            return message.fault or "the log was cut meanwhile: search it anew"
        self._pane.buffer.island = island
        self._pane.reading.window.follows = False
        if then is not None:
            then()
        return ""
