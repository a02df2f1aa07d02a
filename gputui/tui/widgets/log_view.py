"""The end of a job's output. Only lines in sight are decoded; a flood costs one repaint a tick."""

from __future__ import annotations

import time
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip

from gputui.domain.text import plain
from gputui.tui.commands import LOG_COMMANDS, LOG_JOB_COMMANDS, MOVE_COMMANDS, bindings
from gputui.tui.keymap import keymap_of
from gputui.tui.log.buffer import LogBuffer
from gputui.tui.log.follower import LogFollower
from gputui.tui.log.reading import LogReading
from gputui.tui.pace import log_pace
from gputui.tui.present.cells import Span, fitted, segments
from gputui.tui.present.log_title import log_states
from gputui.tui.present.status import wrapped
from gputui.tui.present.style import BLUE, DIM, GROUND, PLAIN, RAISED, RED
from gputui.tui.widgets.grip import Grip

_GROUND = Style(bgcolor=GROUND)
_RAISED = Style(bgcolor=RAISED)
_SIDE = 16
_LOOK = 0.008
"""Seconds for which it is looked for something before keys and everything else have their turn."""
_REST = 0.004
_QUIET, _SOON = 0.15, 1.0
"""After so many seconds without a line, or in all, what was written before is taken to be there."""
_CALM = 0.12
"""Seconds between two paintings while it is looked for something."""


class LogNews(Message, bubble=False):
    """Lines came in, or the log is over."""


class LogView(Grip, can_focus=True):
    """Follows the end of one log until it is scrolled or paused."""

    BINDINGS: ClassVar = [*bindings(MOVE_COMMANDS), *bindings(LOG_COMMANDS), *bindings(LOG_JOB_COMMANDS[:1])]
    DEFAULT_CSS = "LogView { height: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.follower: LogFollower | None = None
        self.reading = LogReading()
        self.repaints = 0
        """How often the whole pane was asked to be painted: what a test counts."""
        self._heading = ""
        self._told_over = False
        self._followed_at = self._ticked_at = self._painted_at = 0.0
        self._looks_on = False
        """A timer is set for looking further."""
        self.paints_soon = False
        """A timer is set for painting what was found."""
        self._said: list[str] = []
        """What was said of the search when it was painted."""

    @property
    def buffer(self) -> LogBuffer:
        """The lines that are kept."""
        return self.reading.buffer

    @property
    def follows(self) -> bool:
        """The end stays in sight."""
        return self.reading.window.follows

    def follow(self, follower: LogFollower, name: str) -> None:
        """Show this log from now on; the one before is closed."""
        self.stop()
        self.follower, self._heading = follower, name
        reading = LogReading()
        reading.look_like(self.reading)
        self.reading = reading
        self._told_over = False
        self._followed_at = time.monotonic()
        follower.start(self._tell)
        self.repaint()

    def stop(self) -> None:
        """Read no more."""
        if self.follower is not None:
            self.follower.close()

    def on_unmount(self) -> None:
        """Leave no thread reading for nobody."""
        self.stop()

    def _tell(self) -> None:
        """On the reader's thread: there is something to take."""
        self.post_message(LogNews())

    def on_log_news(self) -> None:
        """Look at once, or as soon as the last look is long enough ago: a silent log costs nothing."""
        wait = self._ticked_at + log_pace(self.app) - time.monotonic()
        if wait <= 0:
            self.tick()
        else:
            self.set_timer(wait, self.tick)

    def tick(self) -> None:
        """Take what came in, and paint once if anything did."""
        self._ticked_at = time.monotonic()
        follower = self.follower
        if follower is None:
            return
        is_over, stood = follower.is_over, self.reading.search.at
        lines, styles, skipped = follower.take()
        if lines or skipped:
            self.reading.painter.is_stamped = follower.is_stamped
            self.buffer.add(lines, skipped, styles)
            self.reading.search.step(_LOOK / 2)
            self._look_later()
        if is_over != self._told_over or lines or skipped:
            self._told_over = is_over
            self.repaint(is_same=self.reading.search.at == stood)

    @property
    def is_arriving(self) -> bool:
        """Whether what was written before it was followed is still on its way."""
        now = time.monotonic()
        is_quiet = self.buffer.end > 0 and now - self._ticked_at > _QUIET
        return self.follower is not None and not self._told_over and not is_quiet and now - self._followed_at < _SOON

    def look(self) -> None:
        """Go on looking for what is searched, filtered or an error, without ever keeping a key waiting."""
        self._looks_on = False
        search = self.reading.search
        stood = search.at
        changed = search.step(_LOOK)
        if search.at != stood:
            self.repaint()
        elif changed or search.words() != self._said:
            self._paint_soon()
        self._look_later()

    def _paint_soon(self) -> None:
        """Paint once for all that is found within a moment."""
        if not self.paints_soon:
            self.paints_soon = True
            self.set_timer(max(0.001, self._painted_at + _CALM - time.monotonic()), self._paint_found)

    def _paint_found(self) -> None:
        if self.paints_soon:
            self.repaint()

    def _look_later(self) -> None:
        if not self._looks_on and not self.reading.search.is_done:
            self._looks_on = True
            self.set_timer(_REST, self.look)

    @property
    def height(self) -> int:
        """Lines in sight, below the title; never more than the screen has, however high the pane is laid out."""
        return max(0, min(self.size.height, self.app.size.height) - 1)

    def action_down(self, step: int) -> None:
        """Scroll by lines; while lines are picked, pick further."""
        if self.reading.picked.is_on:
            self._pick_further(step)
            return
        self._scroll(step)

    def action_page(self, step: int) -> None:
        """Scroll by what is in sight."""
        self._scroll(step * max(1, self.height - 1))

    def action_first(self) -> None:
        """Go to the oldest line that is kept."""
        self.reading.window.to_first()
        self.repaint()
        self.at_first(is_asked=True)

    def action_last(self) -> None:
        """Follow the end again."""
        self.reading.window.to_last()
        self.repaint()

    def action_toggle_pause(self) -> None:
        """Stay here, or follow the end again."""
        self.reading.window.follows = not self.follows
        self.repaint()

    def action_sideways(self, step: int) -> None:
        """Move long lines under the pane."""
        painter = self.reading.painter
        painter.left = max(0, painter.left + step * _SIDE)
        self.repaint()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll down."""
        event.stop()
        self._scroll(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll up."""
        event.stop()
        self._scroll(-3)

    def on_resize(self) -> None:
        """Lines are cut elsewhere now."""
        self.reading.painter.width, self.reading.window.height = self.size.width, self.height
        self.repaint()

    def on_focus(self) -> None:
        """Show where the keys go."""
        self.repaint()

    on_blur = on_focus

    def at_first(self, *, is_asked: bool) -> None:
        """The oldest line is in sight: there may be earlier ones."""

    def at_last(self) -> None:
        """The last line that is shown is in sight, and is not the log's last."""

    def _scroll(self, rows: int) -> None:
        window = self.reading.window
        window.move(rows)
        self.repaint()
        if rows < 0 and window.is_at_first:
            self.at_first(is_asked=False)
        elif rows > 0 and window.is_at_last and not self.reading.lines.reaches_end:
            self.at_last()

    def _pick_further(self, step: int) -> None:
        lines, picked = self.reading.lines, self.reading.picked
        if not len(lines):  # a filter or a search leaves none
            return
        index = max(0, min(len(lines) - 1, lines.index(picked.head) + step))
        picked.extend(lines.number(index))
        if picked.head not in {row.number for row in self.reading.rows}:
            self.reading.window.move(step)
        self.repaint()

    def repaint(self, *, is_same: bool = False) -> None:
        """Work out what is in sight, and paint it once: the title alone where the rows are the same, and look it."""
        self.repaints += 1
        self._painted_at = time.monotonic()
        self.paints_soon = False
        stood = self.reading.rows
        self.reading.settle()
        self._said = self.reading.search.words()
        if is_same and stood and self.reading.rows == stood:
            self.refresh(Region(0, 0, self.size.width, 1))
        else:
            self.refresh()

    def row_at(self, y: int) -> int | None:
        """The number of the line that is shown there."""
        rows = self.reading.rows
        return rows[y - 1].number if 0 < y <= len(rows) else None

    def render_line(self, y: int) -> Strip:
        """The title, or a line of the log."""
        if y == 0:
            return self._title()
        reading = self.reading
        if y > len(reading.rows):
            return self._words_below(y - 1)
        row = reading.rows[y - 1]
        is_marked = row.number == reading.search.at
        return reading.painter.row(row, picked=is_marked or reading.picked.has(row.number), marked=is_marked)

    def _words_below(self, y: int) -> Strip:
        """What stands where no line is: an error, or what to do."""
        lines, style = [""], DIM
        if not self.reading.rows:
            told, style = self._no_lines()
            lines = wrapped(told, self.size.width - 2)
        words = lines[y] if y < len(lines) else ""
        spans: list[Span] = [(" ", DIM), *fitted(((words, style),), max(0, self.size.width - 1))]
        return Strip(segments(spans, _GROUND)).adjust_cell_length(self.size.width, _GROUND)

    def _no_lines(self) -> tuple[str, Style]:
        if self.follower is None:
            return f"Select a job and press {keymap_of(self).key('follow')} to follow its log.", DIM
        if self.buffer.end > self.buffer.first:
            return "No line matches.", DIM
        if self.follower.error:
            return f"The log cannot be read: {plain(self.follower.error, 300)}", RED
        return ("The job wrote nothing." if self.follower.is_over else "Nothing written yet."), DIM

    def _title(self) -> Strip:
        style = BLUE if self.has_focus else DIM
        spans: list[Span] = [("▌" if self.has_focus else " ", BLUE), ("LOG ", style), (self._heading, PLAIN)]
        if self.follower is not None:
            states = log_states(self.reading, self.follower, is_over=self._told_over)
            spans += [(f"  {words}", words_style) for words, words_style in states]
        return Strip(segments(fitted(tuple(spans), self.size.width), _RAISED), self.size.width)
