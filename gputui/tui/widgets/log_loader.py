"""Loads lines of a log that are not in memory: earlier ones, hits of a search, and the lines around a hit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from textual.message import Message

from gputui.tui.log.buffer import LogRegion
from gputui.tui.log.finder import Finder, OlderHits, Pattern
from gputui.tui.log.follower import (
    ANCHOR,
    PAGE,
    EarlierLines,
    KnownLines,
    LogFollower,
    ScanResult,
    read_earlier,
    read_region,
    scan,
)
from gputui.tui.progress import IsWanted, LatestWorker

if TYPE_CHECKING:
    from gputui.tui.widgets.log_view import LogView

_TYPED = 0.25
"""Seconds without a key press before the whole log is searched."""
_TOLD_EVERY = 0.2
BEGINS = "0 %"


class ScanProgressed(Message, bubble=False):
    """Message with the progress of a search."""

    def __init__(self, finder: Finder, progress: str) -> None:
        super().__init__()
        self.finder, self.progress = finder, progress


class ScanDone(Message, bubble=False):
    """Message with the hits of a search in older lines."""

    def __init__(self, finder: Finder, scanned: ScanResult) -> None:
        super().__init__()
        self.finder, self.scanned = finder, scanned


class RegionLoaded(Message, bubble=False):
    """Message with the requested part of a log."""

    def __init__(self, follower: LogFollower | None, region: LogRegion | None, fault: str = "") -> None:
        super().__init__()
        self.follower, self.region, self.fault = follower, region, fault


class EarlierLoaded(Message, bubble=False):
    """Message with the lines before the oldest one, and the follower of their log."""

    def __init__(self, follower: LogFollower | None, earlier: EarlierLines) -> None:
        super().__init__()
        self.follower = follower
        self.earlier = earlier


class LogLoader:
    """Loads lines that a pane's buffer does not contain. Never blocks: threads read, and a child process matches."""

    def __init__(self, pane: LogView) -> None:
        self._pane = pane
        self._reads = LatestWorker(pane.post_message, lambda error: EarlierLoaded(pane.follower, _failed(error)))
        self.is_loading_earlier = False
        """Lines before the oldest one are being read."""
        self._then_earlier: Callable[[], None] = _do_nothing
        """Called when they have been read."""
        self._searched: Finder | None = None
        self._filtered: Finder | None = None
        self._searches = LatestWorker(pane.post_message, lambda error: self._failed(self._searched, error))
        self._filters = LatestWorker(pane.post_message, lambda error: self._failed(self._filtered, error))
        self._regions = LatestWorker(pane.post_message, lambda error: RegionLoaded(pane.follower, None, str(error)))
        self._shift: int | None = None
        self._loading: int | None = None
        """Number of the line around which lines are being loaded."""
        self._then: Callable[[], None] | None = None

    def close(self) -> None:
        """Stop all work."""
        self._searched = self._filtered = None
        for worker in (self._reads, self._searches, self._filters, self._regions):
            worker.close()

    def reset(self) -> None:
        """Prepare for another log."""
        self.is_loading_earlier, self._then_earlier = False, _do_nothing
        self._shift = self._loading = self._then = None
        self._searched = self._filtered = None

    def begin(self, finder: Finder | None, pattern: Pattern | None, *, is_filter: bool) -> None:
        """Search the older lines too, once no key was pressed for a moment; None ends the search."""
        if is_filter:
            self._filtered = finder
        else:
            self._searched = finder
        if finder is not None and pattern is not None:
            progress = "" if self._pane.reading.is_whole else BEGINS
            finder.outside = OlderHits(border=self._pane.buffer.first, progress=progress)
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
        finder.outside = OlderHits(
            border=first, shift=-first if is_whole else None, progress="" if is_whole else BEGINS
        )
        finder.missed = 0
        if is_whole:
            self._shift = -first
            pane.search_further()
            return
        known = KnownLines(
            tuple(raw for _, raw in buffer.between(first, first + ANCHOR)),
            buffer.end - first + (buffer.skipped if buffer.gap is not None else 0),
        )

        def work(is_wanted: IsWanted) -> Message:
            wanted = lambda: is_wanted() and self._is_wanted(finder)  # noqa: E731
            return ScanDone(finder, scan(follower, pattern, known, first, wanted, self._teller(finder)))

        (self._filters if is_filter else self._searches).ask(work)

    def _teller(self, finder: Finder) -> Callable[[str], None]:
        """Return a callback that posts progress a few times a second."""
        told_at = 0.0

        def tell(progress: str) -> None:
            nonlocal told_at
            if time.monotonic() - told_at >= _TOLD_EVERY:
                told_at = time.monotonic()
                self._pane.post_message(ScanProgressed(finder, progress))

        return tell

    def _failed(self, finder: Finder | None, error: Exception) -> Message:
        return ScanDone(finder or Finder(bool, 0), ScanResult(fault=str(error)))

    def take_progress(self, message: ScanProgressed) -> bool:
        """Store the progress of a search; return whether it is still wanted."""
        outside = message.finder.outside
        if outside is None or not outside.progress or not self._is_wanted(message.finder):
            return False
        outside.progress = message.progress
        return True

    def take_scan(self, message: ScanDone) -> bool:
        """Store the hits of a search; return whether it is still wanted."""
        finder, scanned = message.finder, message.scanned
        if finder.outside is None or not self._is_wanted(finder):
            return False
        if scanned.fault:
            finder.outside.fail(scanned.fault)
            return True
        finder.outside.finish(scanned.numbers, scanned.uncounted, scanned.shift)
        self._shift = scanned.shift
        if finder is self._filtered:
            self._pane.buffer.found.put_before(scanned.found)
        return True

    # lines before the oldest

    def reach_start(self, *, is_asked: bool) -> None:
        """Load a page of earlier lines, as the oldest one is visible; with `is_asked`, as many as may be kept."""
        reading, buffer = self._pane.reading, self._pane.buffer
        if buffer.region is not None and reading.search.narrowed is None:
            if is_asked:
                if self._shift is not None:
                    self._load(-self._shift, reading.window.to_first)
            else:
                self._load_more(-1)
        elif reading.is_whole:
            return
        elif is_asked:
            self.load_earlier(buffer.room, reading.window.to_first)
        else:
            self.load_earlier(min(PAGE, buffer.room), _do_nothing)

    def reach_end(self) -> None:
        """Load the lines after a loaded part, as its last line is visible."""
        self._load_more(1)

    def load_earlier(self, wanted: int, then: Callable[[], None]) -> None:
        """Load up to `wanted` lines before the oldest, then call `then`."""
        follower, buffer = self._pane.follower, self._pane.buffer
        if follower is None or self.is_loading_earlier:
            return
        if wanted <= 0:
            self._pane.show_note("older lines are not kept here: save the log to see all of it")
            return
        self.is_loading_earlier, self._then_earlier = True, then
        self._pane.show_note("loading earlier lines…")
        anchor = tuple(raw for _, raw in buffer.between(buffer.first, buffer.first + ANCHOR))
        known = KnownLines(anchor, buffer.end - buffer.first + buffer.skipped)

        def work(is_wanted: IsWanted) -> Message:
            return EarlierLoaded(follower, read_earlier(follower, known, wanted, is_wanted))

        self._reads.ask(work)

    def take_earlier(self, message: EarlierLoaded) -> bool:
        """Prepend the lines; the oldest one keeps its place on the screen. Return whether they were wanted."""
        if message.follower is not self._pane.follower:
            return False
        reading, earlier = self._pane.reading, message.earlier
        self.is_loading_earlier, reading.note = False, earlier.fault
        reading.put_before(earlier)
        self._then_earlier()
        return True

    # lines around a hit

    @property
    def is_loading(self) -> bool:
        """Return whether a part of the log is being loaded."""
        return self._loading is not None

    def load_awaited(self) -> None:
        """Load the lines around the hit that the search waits for, unless that is under way."""
        target = self._pane.reading.search.awaited
        if target is not None and target != self._loading:
            self._load(target, self._pane.reading.search.arrive)

    def _load(self, number: int, then: Callable[[], None]) -> None:
        """Load the lines around that line."""
        follower, shift = self._pane.follower, self._shift
        if follower is None or shift is None:
            return
        self._loading, self._then = number, then
        self._regions.ask(lambda is_wanted: RegionLoaded(follower, read_region(follower, shift, number, is_wanted)))

    def _load_more(self, step: int) -> None:
        """Load the lines before or after the displayed part."""
        region = self._pane.buffer.region
        if self._loading is None and region is not None and not (step < 0 and region.is_start):
            self._load(region.first if step < 0 else region.end - 1, lambda: None)

    def take_region(self, message: RegionLoaded) -> str:
        """Show the part that was loaded; return an error message, or an empty string."""
        if message.follower is not self._pane.follower or self._loading is None:
            return ""
        number, then = self._loading, self._then
        self._loading = self._then = None
        region = message.region
        if region is None or not region.first <= number < region.end:
            self._pane.reading.search.awaited = None
            return message.fault or "the log was truncated meanwhile: search again"
        self._pane.buffer.region = region
        self._pane.reading.window.follows = False
        if then is not None:
            then()
        return ""


def _do_nothing() -> None:
    """Do nothing, as a default callback."""


def _failed(error: Exception) -> EarlierLines:
    return EarlierLines.none(f"earlier lines cannot be read: {error}")
