"""The line above the keys: the newest message; without one a long task, the worst notice, or a hint for newcomers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol, cast

from rich.style import Style
from textual.app import App
from textual.geometry import Region
from textual.screen import Screen
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget

from gputui.domain.snapshot import Notice
from gputui.domain.text import fit, plain, width
from gputui.tui.keymap import keymap_of
from gputui.tui.notifications import Notification
from gputui.tui.present.cells import Cell, Span, changed_runs, fitted, segments
from gputui.tui.present.style import BLUE, DIM, GROUND, PLAIN, SEVERITY_MARKS, SEVERITY_STYLES

LEGIBLE = timedelta(seconds=1)
"""Time from which a key or click removes an error; before that it was not read."""
STAYS = {"information": 5.0, "warning": 10.0}
"""Seconds for which a message stays; an error stays until a key or a newer message."""
_ROOM_FOR_WORDS = 100
"""Cells from which a text that is cut says in words how to read the rest."""
_GROUND = Style(bgcolor=GROUND)


class Messages:
    """The newest message, as long as it stays, and the progress of a long task; the lines of all screens show them."""

    def __init__(self, app: App[Any]) -> None:
        self._app = app
        self._timer: Timer | None = None
        self.stays: Mapping[str, float] = STAYS
        self.newest: Notification | None = None
        self.missed = 0
        """Number of problems that newer messages replaced before their time."""
        self.progress: Cell = ()
        """Progress of a long task; empty if there is none."""

    def say(self, message: Notification) -> None:
        """Show a message in place of the one before."""
        before = self.newest
        self.missed += before is not None and before.is_bad and before.text != message.text
        self._put(message)
        if (seconds := self.stays.get(message.severity)) is not None:
            self._timer = self._app.set_timer(seconds, self.clear)

    def note_key(self, now: datetime) -> None:
        """Remove an error that was there long enough to be read."""
        newest = self.newest
        if newest is not None and newest.severity not in self.stays and abs(now - newest.at) >= LEGIBLE:
            self.clear()

    def clear(self) -> None:
        """Remove the message; the list of notices still has it."""
        self.missed = 0
        self._put(None)

    def show_progress(self, progress: Cell) -> None:
        """Show the progress of a long task; one that begins takes the place of an older message."""
        if progress and not self.progress:
            self.clear()
        self.progress = progress
        self._draw()

    def _put(self, message: Notification | None) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        self.newest = message
        self._draw()

    def _draw(self) -> None:
        for screen in self._app.screen_stack:
            draw_line(screen)


class ShowsMessages(Protocol):
    """App whose screens have lines of messages."""

    messages: Messages


class MessageLine(Widget):
    """Row of messages, which every screen has at all times, so that no message covers or moves anything.

    Of several screens in sight, the one in front shows the message.
    """

    def __init__(self) -> None:
        super().__init__(id="messages")
        self._notices: Sequence[Notice] = ()
        self._hint = ""
        self._shown: list[Span] = []

    def show(self, notices: Sequence[Notice], hint: str) -> None:
        """Set what the line shows while there is no message: the worst notice, which comes first, or the hint."""
        if (notices, hint) != (self._notices, self._hint):
            self._notices, self._hint = notices, hint
            self.draw()

    def on_mount(self) -> None:
        """Show the message that came before this screen."""
        self.draw()

    def on_resize(self) -> None:
        """Cut the text at the new width."""
        self.draw()

    async def on_click(self) -> None:
        """Show everything in full."""
        await self.run_action("app.notices")

    def draw(self) -> None:
        """Draw the cells that have changed."""
        before, self._shown = self._shown, fitted(self._words(), max(0, self.size.width - 2))
        for start, end in changed_runs(before, self._shown):
            self.refresh(Region(1 + start, 0, end - start, 1))

    def _words(self) -> Cell:
        messages = cast("ShowsMessages", self.app).messages
        if self.screen is self.app.screen:
            if (newest := messages.newest) is not None:
                return self._cut(newest.severity, newest.text, messages.missed)
            if messages.progress:
                return messages.progress
        words = keymap_of(self).words
        if self._notices:
            worst = self._notices[0]
            return self._cut(worst.severity, plain(words(worst.text), 600), len(self._notices) - 1)
        return ((words(self._hint), BLUE),)

    def _cut(self, severity: str, text: str, more: int) -> Cell:
        """Return the text, or its beginning and how to read the whole, and the number of others."""
        mark, room = SEVERITY_MARKS.get(severity, "· "), self.size.width - 2
        style = SEVERITY_STYLES.get(severity, PLAIN)
        words = PLAIN if severity == "information" else style
        if not more and width(mark + text) <= room:
            return ((mark, style), (text, words))
        key = keymap_of(self).key("notices")
        how = f"once closed, {key} shows all" if self.screen.is_modal else f"{key} shows all"
        hint = f"  +{more}, {how}" if more else f"  {how}"
        if room < _ROOM_FOR_WORDS and width(mark + text + hint) > room:
            hint = f"  {key}: +{more}" if more else f"  {key}: all"
        return ((mark, style), (fit(text, max(0, min(width(text), room - len(mark + hint)))), words), (hint, DIM))

    def render_line(self, y: int) -> Strip:
        """Render the line."""
        del y
        return Strip(segments([(" ", DIM), *self._shown], _GROUND)).adjust_cell_length(self.size.width, _GROUND)


def line_of(screen: Screen[Any]) -> MessageLine:
    """Return the line of a screen."""
    return screen.query_one(MessageLine)


def draw_line(screen: Screen[Any]) -> None:
    """Draw the line of a screen, unless that is not composed yet."""
    for line in screen.query(MessageLine):
        line.draw()
