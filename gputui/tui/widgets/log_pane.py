"""A log with everything that is done to one: searched, filtered, looked through for errors, copied and saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message

from gputui.domain.units import plural
from gputui.tui.log.earlier import ANCHOR, PAGE, Earlier, Known, read_earlier
from gputui.tui.log.follower import LogFollower
from gputui.tui.log.pattern import pattern_of
from gputui.tui.log.pick import copied_text
from gputui.tui.newest import IsWanted, Newest
from gputui.tui.widgets.log_saving import SavingView
from gputui.tui.widgets.log_whole import IslandCame, ScanCame, ScanMoved, WholeLog

_SHORTLY = 0.05


class EarlierCame(Message, bubble=False):
    """What the log holds before its oldest line, for the one that was followed when it was asked for."""

    def __init__(self, follower: LogFollower | None, earlier: Earlier) -> None:
        super().__init__()
        self.follower = follower
        self.earlier = earlier


class LogPane(SavingView):
    """Keys act on the log that is shown."""

    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._reads = Newest(self.post_message, lambda error: EarlierCame(self.follower, _failed(error)))
        self._whole = WholeLog(self)
        self.is_loading = False
        """What came before is on its way."""
        self._picks = False
        """The button was pressed on a line."""
        self._then: Callable[[], None] = _nothing
        """What is done when what came before is there."""

    def follow(self, follower: LogFollower, name: str) -> None:
        """Show this log from now on."""
        self.is_loading, self._then = False, _nothing
        self._whole.forget()
        self._whole.begin(None, None, is_filter=False)
        self._whole.begin(None, None, is_filter=True)
        super().follow(follower, name)

    def on_unmount(self) -> None:
        """Leave no thread behind."""
        super().on_unmount()
        self._reads.close()
        self._whole.close()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave a key to others while it has nothing to do here."""
        search, reading = self.reading.search, self.reading
        if action == "clear_log":
            return reading.picked.is_on or search.is_on
        if action == "found":
            return search.pattern is not None
        if action == "context":
            return search.narrowed is not None
        return super().check_action(action, parameters)

    # looking for something

    def action_search(self) -> None:
        """Ask what to search, and show it as it is typed."""
        search, window = self.reading.search, self.reading.window
        stood = (window.top, window.part, window.follows, search.at)

        def typed(text: str) -> None:
            window.top, window.part, window.follows, search.at = stood
            self.buffer.drop_before_gap()
            search.look_for(pattern_of(text))
            self._whole.begin(search.hits, search.pattern, is_filter=False)
            self.look()

        self._ask("/", search.pattern.text if search.pattern else "", typed)

    def action_found(self, step: int) -> None:
        """To the next line with what is searched, or the one before."""
        self.reading.search.go(step)
        self.look()

    def action_narrow(self) -> None:
        """Ask what the lines that are shown must have."""
        search = self.reading.search

        def typed(text: str) -> None:
            self.buffer.drop_before_gap()
            search.narrow(pattern_of(text))
            self._whole.begin(self.reading.lines.filter, search.narrowed, is_filter=True)
            self.look()

        self._ask("&", search.narrowed.text if search.narrowed else "", typed)

    def action_context(self, step: int) -> None:
        """Show more lines around those that match, or fewer."""
        self.reading.search.widen(step)
        self.repaint()

    def action_error(self, step: int) -> None:
        """To the first error of the whole log, as far as it is kept; then to the next."""
        if self.is_arriving:
            self._try_again(step)
        elif not self.reading.is_whole and not self.reading.was_extended:
            self._load(self.buffer.room, lambda: self.reading.search.go_to_error(step))
        else:
            self.reading.search.go_to_error(step)
            self.look()

    def _try_again(self, step: int) -> None:
        """Look for the error when the lines are there, if this log is still the one that is shown then."""
        follower, self.is_loading = self.follower, True

        def again() -> None:
            if self.follower is follower:
                self.is_loading = False
                self.action_error(step)

        self.set_timer(_SHORTLY, again)

    def action_clear_log(self) -> None:
        """Pick nothing, else search nothing, else show all lines."""
        if self.reading.picked.is_on:
            self.reading.picked.drop()
        else:
            search = self.reading.search
            search.clear()
            if search.pattern is None:
                self._whole.begin(None, None, is_filter=False)
            if search.narrowed is None:
                self._whole.begin(None, None, is_filter=True)
        self.reading.painter.forget()
        self.repaint()

    def _ask(self, word: str, before: str, typed: Callable[[str], None]) -> None:
        from gputui.tui.screens.log_prompt import LogPrompt

        def shown(text: str) -> None:
            typed(text)
            self.reading.painter.forget()
            self.repaint()

        self.app.push_screen(LogPrompt(word, before, shown))

    # how it looks

    def action_toggle_wrap(self) -> None:
        """Break long lines, or cut them."""
        painter = self.reading.painter
        painter.wraps, painter.left = not painter.wraps, 0
        self.reading.window.part = 0
        self.repaint()

    def action_toggle_stamps(self) -> None:
        """Show when each line was written, or not."""
        painter = self.reading.painter
        painter.shows_stamps = not painter.shows_stamps
        painter.forget()
        self.repaint()

    # what came before

    def at_first(self, *, is_asked: bool) -> None:
        """Load what came before: a page, or as much as may be kept."""
        if self.buffer.island is not None and self.reading.search.narrowed is None:
            if is_asked:
                self._whole.load_start(self.reading.window.to_first)
            else:
                self._whole.load_more(-1)
        elif self.reading.is_whole:
            return
        elif is_asked:
            self._load(self.buffer.room, self.reading.window.to_first)
        else:
            self._load(min(PAGE, self.buffer.room), _nothing)

    @property
    def is_loading_part(self) -> bool:
        """Whether a part of the log that is not in memory is on its way."""
        return self._whole.is_loading

    def at_last(self) -> None:
        """Load what follows the part that is shown."""
        self._whole.load_more(1)

    def look(self) -> None:
        """Look on in memory, and load the surroundings of a hit that is not there."""
        super().look()
        self._whole.load_awaited()

    def on_scan_moved(self, message: ScanMoved) -> None:
        """Say how far the search is."""
        if self._whole.take_progress(message):
            self.repaint()

    def on_scan_came(self, message: ScanCame) -> None:
        """Show what was found, or go there."""
        if self._whole.take_scan(message):
            self.reading.painter.forget()
            self.look()
            self.repaint()

    def on_island_came(self, message: IslandCame) -> None:
        """Show the part of the log that was gone to."""
        self.reading.note = self._whole.take_island(message)
        self.repaint()

    def _load(self, wanted: int, then: Callable[[], None]) -> None:
        follower, buffer = self.follower, self.buffer
        if follower is None or self.is_loading:
            return
        if wanted <= 0:
            self._say("more is not kept here: save the log to see all of it")
            return
        self.is_loading, self._then = True, then
        self._say("loading what came before…")
        anchor = tuple(raw for _, raw in buffer.between(buffer.first, buffer.first + ANCHOR))
        known = Known(anchor, buffer.end - buffer.first + buffer.skipped)

        def work(is_wanted: IsWanted) -> Message:
            return EarlierCame(follower, read_earlier(follower, known, wanted, is_wanted))

        self._reads.ask(work)

    def on_earlier_came(self, message: EarlierCame) -> None:
        """Put it before the oldest line, which stays where it is on the screen."""
        if message.follower is not self.follower:
            return
        reading, earlier = self.reading, message.earlier
        self.is_loading, reading.note = False, earlier.fault
        reading.put_before(earlier)
        self._then()
        self.repaint()
        self.look()

    def _say(self, words: str) -> None:
        self.reading.note = words
        self.repaint()

    # taking something along

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Pick a line; drag to pick more."""
        if (number := self.row_at(event.y)) is not None:
            self._picks = True
            self.capture_mouse()
            self.reading.picked.begin(number)
            self.repaint()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Pick as far as the pointer."""
        number = self.row_at(event.y)
        if self._picks and number is not None and number != self.reading.picked.head:
            self.reading.window.follows = False  # or lines would run away from under the pointer
            self.reading.picked.extend(number)
            self.repaint()

    def on_mouse_up(self) -> None:
        """Pick no further."""
        if self._picks:
            self._picks = False
            self.release_mouse()

    def action_pick(self) -> None:
        """Begin to pick lines at the one that was gone to, or the first in sight; again: pick nothing."""
        reading = self.reading
        if reading.picked.is_on:
            reading.picked.drop()
        elif numbers := reading.shown_numbers():
            reading.window.follows = False
            reading.picked.begin(reading.search.at if reading.search.at in numbers else numbers[0])
        self.repaint()

    def action_copy_lines(self) -> None:
        """Copy the lines that are picked, or else those in sight, to the terminal's clipboard."""
        reading = self.reading
        numbers = reading.shown_numbers()
        text, count = copied_text(self.buffer, numbers, is_stamped=reading.painter.is_stamped)
        if not count:
            return
        self.app.copy_to_clipboard(text)
        left_out = len(numbers) - count
        more = f"; {plural(left_out, 'line')} did not fit" if left_out else ""
        self.app.notify(f"Copied {plural(count, 'line')}{more}", markup=False, timeout=4)
        reading.picked.drop()
        self.repaint()


def _nothing() -> None:
    """Leave it at that."""


def _failed(error: Exception) -> Earlier:
    return Earlier((), False, f"what came before cannot be read: {error}")
