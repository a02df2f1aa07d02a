"""Viewer of a job's output, and the loader of lines that are not in memory.

Only visible lines are decoded, and a flood of lines costs one repaint per tick.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import ClassVar

from rich.style import Style
from textual.geometry import Region
from textual.message import Message
from textual.reactive import var
from textual.strip import Strip

from gputui.domain.job import Job
from gputui.domain.text import plain, plural
from gputui.tui.commands import LOG_COMMANDS, LOG_JOB_COMMANDS, MOVE_COMMANDS, bindings, named
from gputui.tui.keymap import keymap_of
from gputui.tui.present.cells import AMBER, BLUE, DIM, ON_GROUND, PLAIN, RED, STRONG, Cell, Span, fitted, segments
from gputui.tui.present.status import wrapped
from gputui.tui.progress import IsWanted, LatestWorker, log_pace
from gputui.tui.widgets.line_table import Grip, Wheel
from gputui.tui.widgets.log_follower import (
    ANCHOR,
    PAGE,
    EarlierLines,
    KnownLines,
    LogFollower,
    LogOf,
    LogOpener,
    ScanResult,
    read_earlier,
    read_region,
    scan,
    started_attempt,
)
from gputui.tui.widgets.log_lines import Finder, PackedLines
from gputui.tui.widgets.log_model import LogModel
from gputui.tui.widgets.log_pattern import Pattern
from gputui.tui.widgets.status_bars import title_line

_TYPED = 0.25
"""Seconds without a key press before the whole log is searched."""
_TOLD_EVERY = 0.2
BEGINS = "0 %"


class LogRead(Message, bubble=False):
    """Message from another thread that lines arrived or were read; `show` is called in the event loop."""

    def __init__(self, show: Callable[[], None]) -> None:
        super().__init__()
        self.show = show


class LogLoader:
    """Reads lines of a view's log that are not in memory. Never blocks: threads read, and a child process matches."""

    def __init__(self, view: LogView) -> None:
        self._view = view
        self.is_loading_earlier = False
        self._then_earlier: Callable[[], None] = lambda: None
        """Action for when earlier lines are here, or cannot be read."""
        self._shift: int | None = None
        """Position of a line from the start of the log, minus its number; None while unknown."""
        self._loading: int | None = None
        """Number of the line around which lines are being loaded."""

        def worker(failed: Callable[[Exception], None]) -> LatestWorker:
            return LatestWorker(view.post_message, lambda error: LogRead(lambda: failed(error)))

        unread = "earlier lines cannot be read"
        self._reads = worker(lambda error: self._show_earlier(view.follower, EarlierLines(fault=f"{unread}: {error}")))
        self._searches = worker(lambda error: self._show_scan(view.reading.search.hits, ScanResult(fault=str(error))))
        self._filters = worker(lambda error: self._show_scan(view.reading.lines.filter, ScanResult(fault=str(error))))
        self._regions = worker(lambda error: self._show_region(view.follower, None, lambda: None, str(error)))

    def close(self) -> None:
        for worker in (self._reads, self._searches, self._filters, self._regions):
            worker.close()

    def reset(self) -> None:
        self.is_loading_earlier, self._then_earlier = False, lambda: None
        self._shift, self._loading = None, None

    # a search before the oldest line

    def search(self, finder: Finder | None, pattern: Pattern | None) -> None:
        """Search the older lines too, once no key was pressed for a moment."""
        if finder is not None and pattern is not None:
            finder.progress = "" if self._view.reading.is_whole else BEGINS
            self._view.set_timer(_TYPED, lambda: self._scan(finder, pattern))

    def _is_wanted(self, finder: Finder | None) -> bool:
        reading = self._view.reading
        return finder is not None and (finder is reading.search.hits or finder is reading.lines.filter)

    def _scan(self, finder: Finder, pattern: Pattern) -> None:
        view, reading, follower = self._view, self._view.reading, self._view.follower
        if not self._is_wanted(finder) or follower is None or not view.is_attached:
            return
        if view.is_arriving:
            view.set_timer(_TYPED, lambda: self._scan(finder, pattern))
            return
        finder.begin_scan()
        if reading.is_whole:
            finder.progress, self._shift = "", -reading.lines.first
            view.search_further()
            return
        finder.progress = BEGINS
        lines, first, posted_at = reading.lines, reading.lines.first, 0.0
        known = self._known(lines.skipped if lines.gap is not None else 0)

        def tell(progress: str) -> None:
            nonlocal posted_at
            if time.monotonic() - posted_at >= _TOLD_EVERY:
                posted_at = time.monotonic()
                view.post_message(LogRead(lambda: show(progress)))

        def show(progress: str) -> None:
            if finder.progress and self._is_wanted(finder):
                finder.progress = progress
                view.repaint()

        def work(is_wanted: IsWanted) -> Message:
            wanted = lambda: is_wanted() and self._is_wanted(finder)  # noqa: E731
            result = scan(follower, pattern, known, first, wanted, tell)
            return LogRead(lambda: self._show_scan(finder, result))

        (self._filters if finder is lines.filter else self._searches).ask(work)

    def _known(self, skipped: int) -> KnownLines:
        lines = self._view.reading.lines
        return KnownLines(tuple(lines.kept.between(lines.first, lines.first + ANCHOR)), len(lines.kept) + skipped)

    def _show_scan(self, finder: Finder | None, result: ScanResult) -> None:
        if finder is None or finder.border is None or not self._is_wanted(finder):
            return
        view, lines = self._view, self._view.reading.lines
        finder.end_scan(result.numbers, result.uncounted, result.fault)
        if not result.fault:
            self._shift = result.shift
            if finder is lines.filter:
                lines.found.put_before(result.found)
        view.reading.painter.forget()
        view.search_further()
        view.repaint()

    # lines before the oldest

    def reach_start(self, *, is_asked: bool) -> None:
        """Load a page of earlier lines, as the oldest one is visible; with `is_asked`, as many as may be kept."""
        reading, lines = self._view.reading, self._view.reading.lines
        if lines.region is not None and lines.filter is None:
            if not is_asked:
                self.load_more(-1)
            elif self._shift is not None:
                self.load_around(-self._shift, reading.window.to_first)
        elif not reading.is_whole:
            wanted = lines.room if is_asked else min(PAGE, lines.room)
            self.load_earlier(wanted, reading.window.to_first if is_asked else lambda: None)

    def load_earlier(self, wanted: int, then: Callable[[], None]) -> None:
        follower = self._view.follower
        if follower is None or self.is_loading_earlier:
            return
        if wanted <= 0:
            self._view.show_note("older lines are not kept here: save the log to see all of it")
            return
        self.is_loading_earlier, self._then_earlier = True, then
        self._view.show_note("loading earlier lines…")
        known = self._known(self._view.reading.lines.skipped)

        def work(is_wanted: IsWanted) -> Message:
            earlier = read_earlier(follower, known, wanted, is_wanted)
            return LogRead(lambda: self._show_earlier(follower, earlier))

        self._reads.ask(work)

    def _show_earlier(self, follower: LogFollower | None, earlier: EarlierLines) -> None:
        """Prepend the lines; the oldest one keeps its place on the screen."""
        if follower is self._view.follower:
            self.is_loading_earlier, self._view.reading.note = False, earlier.fault
            self._view.reading.put_before(earlier)
            self._then_earlier()
            self._view.repaint()
            self._view.search_further()

    # lines around a hit

    @property
    def is_loading(self) -> bool:
        return self._loading is not None

    def load_more(self, step: int) -> None:
        """Load the part after the loaded one, or before it, unless that begins with the log."""
        region, shift = self._view.reading.lines.region, self._shift
        if region is not None and shift is not None and not self.is_loading and (step > 0 or region.first > -shift):
            self.load_around(region.first if step < 0 else region.end - 1, lambda: None)

    def load_around(self, number: int, then: Callable[[], None]) -> None:
        follower, shift = self._view.follower, self._shift
        if follower is None or shift is None or number == self._loading:
            return
        self._loading = number

        def work(is_wanted: IsWanted) -> Message:
            region = read_region(follower, shift, number, is_wanted)
            return LogRead(lambda: self._show_region(follower, region, then))

        self._regions.ask(work)

    def _show_region(
        self, follower: LogFollower | None, region: PackedLines | None, then: Callable[[], None], fault: str = ""
    ) -> None:
        reading, number = self._view.reading, self._loading
        if follower is not self._view.follower or number is None:
            return
        self._loading, reading.note = None, ""
        if region is not None and region.first <= number < region.end:
            reading.lines.region = region
            reading.window.follows = False
            then()
        else:
            reading.search.awaited = None
            reading.note = fault or "the log was truncated meanwhile: search again"
        self._view.repaint()


_KEYS_SHOWN = named("error pin_log logs pause_log log_search log_only log_times save_log")
_SIDE = 16
_LOOK = 0.008
"""Seconds of searching at a time, before keys and everything else get their turn."""
_REST = 0.004
_QUIET, _SOON = 0.15, 1.0
"""Seconds without a line, and in total, after which earlier output counts as read."""
_CALM = 0.12
"""Seconds between two repaints while lines are searched."""


class LogView(Grip, Wheel, can_focus=True):
    """Follows the end of one log until it is scrolled or paused."""

    BINDINGS: ClassVar = [*bindings(MOVE_COMMANDS), *bindings(LOG_COMMANDS), *bindings(LOG_JOB_COMMANDS[:1])]
    DEFAULT_CSS = "LogView { height: 1fr; }"
    is_pinned: var[bool] = var(False, init=False)

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.follower: LogFollower | None = None
        self.reading = LogModel()
        self.loader = LogLoader(self)
        self._heading = ""
        self._waits = ""
        """Text for a job without a log, instead of a log."""
        self._no_job = ""
        self._ways: tuple[Cell, ...] = ()
        """Text for an empty queue, instead of a log."""
        self._lists_keys = False
        self._shown_title = Strip([])
        self._aside: Cell = ()
        self._is_ended = False
        self._rest = self._shown_rest = b""
        """Line that has not ended yet: the latest, and the one that is shown."""
        self._followed_at = self._ticked_at = self._painted_at = 0.0
        self._searches_soon = False
        self.paints_soon = False
        self._said: list[str] = []

    @property
    def follows(self) -> bool:
        return self.reading.window.follows

    def follow(self, follower: LogFollower, name: str) -> None:
        self.stop()
        self.loader.reset()
        self.follower, self._heading, self._waits, self._rest = follower, name, "", b""
        self.reading = LogModel(self.reading)
        self._is_ended = False
        self._followed_at = time.monotonic()
        follower.start(lambda: self.post_message(LogRead(self._take_soon)))
        self.repaint()

    def wait_for(self, name: str, words: str) -> None:
        if (name, words) == (self._heading, self._waits):
            return
        self.stop()
        self.follower, self._heading, self._waits, self._rest = None, name, words, b""
        self.reading = LogModel(self.reading)
        self.repaint()

    def watch_is_pinned(self) -> None:
        self.refresh(Region(0, 0, self.size.width, 1))

    def stop(self) -> None:
        if self.follower is not None:
            self.follower.close()

    def on_unmount(self) -> None:
        self.stop()
        self.loader.close()

    def on_log_read(self, message: LogRead) -> None:
        message.show()

    def _take_soon(self) -> None:
        """Process new lines at once, or when the minimum pause is over; a silent log costs nothing."""
        wait = self._ticked_at + log_pace(self.app) - time.monotonic()
        if wait <= 0:
            self.tick()
        else:
            self.set_timer(wait, self.tick)

    def tick(self) -> None:
        self._ticked_at = time.monotonic()
        follower = self.follower
        if follower is None:
            return
        is_over, stood = follower.is_over, self.reading.search.at
        lines, skipped = follower.take()
        has_news = len(lines) > 0
        if has_news:
            self.reading.lines.is_stamped = follower.is_stamped
            self.reading.lines.add(lines, skipped)
            self.reading.search.step(_LOOK / 2)
            self._search_later()
        if is_over != self._is_ended or has_news or follower.rest != self._rest:
            self._is_ended, self._rest = is_over, follower.rest
            self.repaint(is_same=self.reading.search.at == stood and self._rest_row == self._shown_rest)

    @property
    def is_arriving(self) -> bool:
        now = time.monotonic()
        is_quiet = self.reading.lines.end > 0 and now - self._ticked_at > _QUIET
        return self.follower is not None and not self._is_ended and not is_quiet and now - self._followed_at < _SOON

    def search_further(self) -> None:
        """Search, filter and look for errors in further lines, without delaying keys."""
        self._searches_soon = False
        search = self.reading.search
        stood = search.at
        changed = search.step(_LOOK)
        if search.at != stood:
            self.repaint()
        elif (changed or search.words() != self._said) and not self.paints_soon:
            self.paints_soon = True  # all hits of a moment are painted at once
            pause = max(0.001, self._painted_at + _CALM - time.monotonic())
            self.set_timer(pause, lambda: self.repaint() if self.paints_soon else None)
        self._search_later()
        if search.awaited is not None:
            self.loader.load_around(search.awaited, search.arrive)

    def _search_later(self) -> None:
        if not self._searches_soon and not self.reading.search.is_done:
            self._searches_soon = True
            self.set_timer(_REST, self.search_further)

    @property
    def height(self) -> int:
        """Number of visible lines below the title.

        Never more than the screen has, however high the layout makes the pane.
        """
        return max(0, min(self.size.height, self.app.size.height) - 1)

    def action_down(self, step: int) -> None:
        lines, selection = self.reading.lines, self.reading.selection
        if not selection.is_on:
            self.turn_wheel(step)
        elif numbers := lines.numbers:  # a filter or a search may leave none
            index = max(0, min(len(numbers) - 1, lines.index(selection.head) + step))
            selection.extend(numbers[index])
            if selection.head not in {row.number for row in self.reading.rows}:
                self.reading.window.move(step)
            self.repaint()

    def action_page(self, step: int) -> None:
        self.turn_wheel(step * max(1, self.height - 1))

    def action_first(self) -> None:
        self.reading.window.to_first()
        self.repaint()
        self.loader.reach_start(is_asked=True)

    def action_last(self) -> None:
        self.reading.window.to_last()
        self.repaint()

    def action_toggle_pause(self) -> None:
        self.reading.window.follows = not self.follows
        self.repaint()

    def action_sideways(self, step: int) -> None:
        painter = self.reading.painter
        painter.left = max(0, painter.left + step * _SIDE)
        self.repaint()

    def on_resize(self) -> None:
        self.reading.painter.width = self.size.width
        self.repaint()

    def on_focus(self) -> None:
        self.repaint()

    on_blur = on_focus

    def turn_wheel(self, step: int, y: int = 0) -> None:
        window = self.reading.window
        window.move(step)
        self.repaint()
        if step < 0 and window.is_at_first:
            self.loader.reach_start(is_asked=False)
        elif step > 0 and window.is_at_last and not self.reading.lines.reaches_end:
            self.loader.load_more(1)

    def repaint(self, *, is_same: bool = False) -> None:
        """Compute and paint the visible rows; `is_same`: only the title, unless the rows differ."""
        self._painted_at = time.monotonic()
        self.paints_soon = False
        stood, self._shown_rest = self.reading.rows, self._rest_row
        self.reading.window.height = max(0, self.height - bool(self._shown_rest))
        self.reading.settle()
        self._search_later()  # lines may have left memory that a filter still shows
        self._said = self.reading.search.words()
        has_news = not (is_same and stood and self.reading.rows == stood)
        if has_news:
            self.refresh(Region(0, 1, self.size.width, max(0, self.size.height - 1)))
        title = self._title()
        if title != self._shown_title or not has_news:
            self._shown_title = title
            self.refresh(Region(0, 0, self.size.width, 1))

    @property
    def _rest_row(self) -> bytes:
        """Line that has not ended yet, if it is in sight: below the last line of the log."""
        return self._rest if self.follows and self.reading.lines.filter is None else b""

    def show_note(self, words: str) -> None:
        self.reading.note = words
        self.repaint()

    def show_aside(self, words: Cell) -> None:
        if words != self._aside:
            self._aside = words
            self.refresh(Region(0, 0, self.size.width, 1))

    def row_at(self, y: int) -> int | None:
        rows = self.reading.rows
        return rows[y - 1].number if 0 < y <= len(rows) else None

    def render_line(self, y: int) -> Strip:
        if y == 0:
            self._shown_title = self._title()
            return self._shown_title
        reading = self.reading
        if y == len(reading.rows) + 1 and self._shown_rest:
            return reading.painter.rest(self._shown_rest)
        if y > len(reading.rows):
            return self._words_below(y - 1)
        row = reading.rows[y - 1]
        is_marked = row.number == reading.search.at
        return reading.painter.row(row, selected=is_marked or reading.selection.has(row.number), marked=is_marked)

    def _words_below(self, y: int) -> Strip:
        lines: list[Cell] = []
        if not self.reading.rows and not self._shown_rest:
            text, style = self._no_lines()
            lines = [((words, style),) for words in wrapped(text, self.size.width - 2)]
            if self._lists_keys and self.follower is None and not self._waits:  # nothing else would be there
                shown = keymap_of(self).footer(_KEYS_SHOWN)
                keys = [((f" {command.first_key:<8} ", BLUE), (command.help, DIM)) for command in shown]
                lines += self._ways or keys
        spans: list[Span] = [(" ", DIM), *fitted(lines[y] if y < len(lines) else (), max(0, self.size.width - 1))]
        return Strip(segments(spans, ON_GROUND)).adjust_cell_length(self.size.width, ON_GROUND)

    def _no_lines(self) -> tuple[str, Style]:
        if self._waits:
            return self._waits, DIM
        if self.follower is None:
            return self._no_job or f"Select a job and press {keymap_of(self).key('follow')} to follow its log.", DIM
        if self.reading.lines.kept:
            return "No line matches.", DIM
        if self.follower.error:
            error = plain(self.follower.error, 300)
            return (error, DIM) if self.follower.is_refused else (f"The log cannot be read: {error}", RED)
        return ("The job wrote nothing." if self.follower.is_over else "Nothing written yet."), DIM

    def list_keys(self, no_job: str = "", ways: tuple[Cell, ...] = ()) -> None:
        """List the keys of logs from now on while there is no log: the queue has been read.

        `no_job` says that the queue is empty; empty if it has jobs. `ways` to submit are listed instead of keys.
        """
        if not self._lists_keys or (no_job, ways) != (self._no_job, self._ways):
            self._lists_keys, self._no_job, self._ways = True, no_job, ways
            self.repaint()

    def _title(self) -> Strip:
        """Return the title with the states, the most important first, since a narrow pane cuts the rest."""
        style = STRONG + BLUE if self.has_focus else DIM
        spans: list[Span] = [("▌" if self.has_focus else " ", BLUE), ("LOG ", style), (self._heading, PLAIN)]
        if self.is_pinned:
            spans.append(("  ● pinned", STRONG + BLUE))
        if (follower := self.follower) is not None:
            spans += [(f"  {words}", style) for words, style in self._states(follower)]
        return title_line(spans, self.size.width, has_focus=self.has_focus, aside=self._aside)

    def _states(self, follower: LogFollower) -> Iterator[Span]:
        reading, painter = self.reading, self.reading.painter
        if reading.selection.is_on:
            yield f"{plural(len(reading.shown_numbers()), 'line')} selected", BLUE
        if not reading.window.follows:
            below = reading.window.below
            yield f"‖ paused, {plural(below, 'line')} below" if below else "‖ paused", AMBER + STRONG
        for words in reading.search.words():
            yield plain(words, 80), BLUE
        if reading.note:
            yield plain(reading.note, 120), AMBER
        if self._is_ended and follower.error is None:  # a stream that broke off has not ended
            yield "ended", DIM
        if reading.lines.skipped:
            yield f"{reading.lines.skipped:,} lines skipped", AMBER
        if follower.error and len(reading.lines.kept):
            yield plain(follower.error, 200), RED
        if painter.wraps:
            yield "wrapped", DIM
        if painter.shows_stamps and not reading.lines.is_stamped:
            yield "no timestamps", DIM


class JobLog(LogView, can_focus=False):
    """End of a job's log on the job's page. Keys go to the page; the wheel scrolls the log."""

    DEFAULT_CSS = "JobLog { height: 1fr; display: none; }"
    _begun = 0

    def show_of(self, job: Job, opener: LogOpener, *, is_room: bool) -> None:
        attempt = started_attempt(job)
        self.display = is_room and attempt > 0
        if self.display and attempt > self._begun:
            self._begun = attempt
            self.follow(LogFollower(opener, job.id, None), LogOf(job.id).heading(job))
