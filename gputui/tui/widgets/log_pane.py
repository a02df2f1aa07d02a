"""The end of a job's output. Only lines in sight are decoded; a flood costs one repaint a tick."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from gputui.domain.units import plural
from gputui.tui.commands import LOG_COMMANDS, MOVE_COMMANDS, bindings
from gputui.tui.keymap import keymap_of
from gputui.tui.logs import LogBuffer, LogFollower
from gputui.tui.present.cells import Span, fitted, segments
from gputui.tui.present.log import log_spans
from gputui.tui.present.style import AMBER, BLUE, DIM, GROUND, PLAIN, RAISED, RED, STRONG

_GROUND = Style(bgcolor=GROUND)
_RAISED = Style(bgcolor=RAISED)
_TICK = 0.1
"""Seconds between two looks at what came in, at least."""
_SIDE = 16
_STRIPS = 500


class LogNews(Message, bubble=False):
    """Lines came in, or the log is over."""


class LogPane(Widget, can_focus=True):
    """Follows the end of one log until it is scrolled or paused."""

    BINDINGS: ClassVar = [*bindings(MOVE_COMMANDS), *bindings(LOG_COMMANDS)]
    DEFAULT_CSS = "LogPane { height: 1fr; }"

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.follower: LogFollower | None = None
        self.buffer = LogBuffer()
        self.follows = True
        """The end stays in sight."""
        self.repaints = 0
        """How often the whole pane was asked to be painted: what a test counts."""
        self._heading = ""
        self._top = 0
        self._left = 0
        self._told_over = False
        self._ticked_at = 0.0
        self._strips: OrderedDict[int, Strip] = OrderedDict()

    def follow(self, follower: LogFollower, name: str) -> None:
        """Show this log from now on; the one before is closed."""
        self.stop()
        self.follower, self._heading = follower, name
        self.buffer = LogBuffer()
        self.follows, self._told_over = True, False
        self._top = self._left = 0
        self._strips.clear()
        follower.start(self._tell)
        self._repaint()

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
        wait = self._ticked_at + _TICK - time.monotonic()
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
        is_over = follower.is_over
        lines, skipped = follower.take()
        if lines or skipped:
            self.buffer.add(lines, skipped)
        if is_over != self._told_over or lines or skipped:
            self._told_over = is_over
            self._settle()
            self._repaint()

    @property
    def height(self) -> int:
        """Lines in sight, below the title."""
        return max(0, self.size.height - 1)

    def action_down(self, step: int) -> None:
        """Scroll by lines."""
        self._go_to(self._top + step)

    def action_page(self, step: int) -> None:
        """Scroll by what is in sight."""
        self._go_to(self._top + step * max(1, self.height - 1))

    def action_first(self) -> None:
        """Go to the oldest line that is kept."""
        self._go_to(self.buffer.first)

    def action_last(self) -> None:
        """Follow the end again."""
        self._go_to(self.buffer.end)

    def action_toggle_pause(self) -> None:
        """Stay here, or follow the end again."""
        self.follows = not self.follows
        self._settle()
        self._repaint()

    def action_sideways(self, step: int) -> None:
        """Move long lines under the pane."""
        self._left = max(0, self._left + step * _SIDE)
        self._strips.clear()
        self._repaint()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll down."""
        event.stop()
        self._go_to(self._top + 3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll up."""
        event.stop()
        self._go_to(self._top - 3)

    def on_resize(self) -> None:
        """Lines are cut elsewhere now."""
        self._strips.clear()
        self._settle()
        self._repaint()

    def on_focus(self) -> None:
        """Show where the keys go."""
        self._repaint()

    on_blur = on_focus

    def _go_to(self, top: int) -> None:
        self.follows = top >= self.buffer.end - self.height
        self._top = top
        self._settle()
        self._repaint()

    def _settle(self) -> None:
        """Keep the top between the oldest line and the last page."""
        last_page = max(self.buffer.first, self.buffer.end - self.height)
        self._top = last_page if self.follows else min(max(self._top, self.buffer.first), last_page)

    def _repaint(self) -> None:
        self.repaints += 1
        self._prepare()
        self.refresh()

    def _prepare(self) -> None:
        """Make the strips of the lines in sight that are not made yet."""
        for number, raw in self.buffer.between(self._top, self._top + self.height):
            if number not in self._strips:
                self._strips[number] = self._made(raw, self.buffer.style_before(number))
        while len(self._strips) > _STRIPS:
            self._strips.popitem(last=False)

    def _made(self, raw: bytes, style: Style) -> Strip:
        strip = Strip(segments(log_spans(raw, style), _GROUND))
        return strip.crop(self._left, self._left + self.size.width - 1) if self.size.width else strip

    def render_line(self, y: int) -> Strip:
        """The title, or a line of the log."""
        if y == 0:
            return self._title()
        number = self._top + y - 1
        made = self._strips.get(number) if number < self.buffer.end else None
        if made is None:
            return self._words_below(y - 1)
        blank: list[Span] = [(" ", DIM)]
        return Strip([*segments(blank, _GROUND), *made]).adjust_cell_length(self.size.width, _GROUND)

    def _words_below(self, y: int) -> Strip:
        """What stands where no line is: an error, or what to do."""
        words, style = "", DIM
        if y == 0 and self.buffer.end == 0:
            words, style = self._no_lines()
        spans: list[Span] = [(" ", DIM), *fitted(((words, style),), max(0, self.size.width - 1))]
        return Strip(segments(spans, _GROUND)).adjust_cell_length(self.size.width, _GROUND)

    def _no_lines(self) -> tuple[str, Style]:
        if self.follower is None:
            return f"Select a job and press {keymap_of(self).key('follow')} to follow its log.", DIM
        if self.follower.error:
            return f"The log cannot be read: {self.follower.error}", RED
        return ("The job wrote nothing." if self.follower.is_over else "Nothing written yet."), DIM

    def _title(self) -> Strip:
        style = BLUE if self.has_focus else DIM
        spans: list[Span] = [("▌" if self.has_focus else " ", BLUE), ("LOG ", style), (self._heading, PLAIN)]
        spans += [(f"  {words}", words_style) for words, words_style in self._states()]
        return Strip(segments(fitted(tuple(spans), self.size.width), _RAISED), self.size.width)

    def _states(self) -> list[tuple[str, Style]]:
        if self.follower is None:
            return []
        states = [("ended", DIM)] if self._told_over else []
        if not self.follows:
            below = max(0, self.buffer.end - self._top - self.height)
            states.append((f"‖ paused, {plural(below, 'line')} below", AMBER + STRONG))
        if self.buffer.skipped:
            states.append((f"{self.buffer.skipped:,} lines skipped", AMBER))
        if self.follower.error and self.buffer.end:
            states.append((self.follower.error, RED))
        return states
