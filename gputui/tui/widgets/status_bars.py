"""Lines of one row: status, summary, message, titles of panes, hints that name keys, and keys at the bottom."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Protocol, cast

from rich.style import Style
from textual import events
from textual.app import App
from textual.geometry import Offset, Region
from textual.screen import Screen
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Static

from gputui.domain.snapshot import Notice
from gputui.domain.text import fit, plain, width
from gputui.tui.commands.command import Command, place_of
from gputui.tui.input_queue import read_at
from gputui.tui.keymap import keymap_of
from gputui.tui.keys import NAMES, key_of
from gputui.tui.notifications import Notification
from gputui.tui.present.cells import Cell, Span, changed_runs, fitted, segments, width_of
from gputui.tui.present.style import BLUE, DIM, GROUND, PLAIN, RAISED, SEVERITY_MARKS, SEVERITY_STYLES, STRONG, TRACK

_RAISED = Style(bgcolor=RAISED)
FOCUSED, UNFOCUSED = "━", "─"


def title_line(spans: Sequence[Span], room: int, *, has_focus: bool, right: str = "", aside: Cell = ()) -> Strip:
    """Return the title, a rule up to the right edge, and the text at its end; `aside` only if there is room."""
    end: Cell = ((f" {right} ", PLAIN),) if right else ((" ", PLAIN), *aside, (" ", PLAIN))
    if aside and width_of(spans) + width_of(end) + 3 > room:
        end = ()
    end = end if right or aside else ()
    rule = room - width_of(spans) - width_of(end) - 1
    line = list(spans)
    if rule > 0:
        line += [(" ", PLAIN), ((FOCUSED if has_focus else UNFOCUSED) * rule, BLUE if has_focus else TRACK)]
    return Strip(segments(fitted((*line, *end), room), _RAISED), room)


_NAMED = "|".join(sorted((re.escape(name) for name in NAMES.values() if len(name) > 1), key=len, reverse=True))
_KEY = rf"(?:(?:Ctrl|Alt|Shift)-\S+|F\d+|{_NAMED}|Backspace|Delete|Insert|\S)"


@cache
def _hint() -> re.Pattern[str]:
    """Return the pattern of `y Enter  yes` or `↓ ↑ scroll`: keys, and what they do."""
    return re.compile(rf"(?<!\S)(?P<keys>{_KEY}(?: {_KEY})*) +(?P<words>\S.*?)(?= {{2,}}{_KEY} |  {{3,}}|$)")


def key_at(text: str, x: int) -> str | None:
    """Return Textual's name of the key whose hint stands at cell `x` of a line; of several keys the one at `x`."""
    for hint in _hint().finditer(text):
        if hint.start() <= x < hint.end():
            keys, begin = list(re.finditer(r"\S+", hint["keys"])), hint.start("keys")
            return key_of(next((key[0] for key in keys if begin + key.start() <= x < begin + key.end()), keys[0][0]))
    return None


def press(widget: Widget, key: str | None) -> None:
    """Press that key; sent from the app, since a key that a screen sends would not bubble back to it."""
    if key is not None:
        widget.app.call_later(widget.app.simulate_key, key)


class Hints(Static):
    """Lines of hints; in a list of answers the whole line stands for its first key."""

    def __init__(self, text: str = "", *, id: str | None = None, classes: str = "keys") -> None:  # noqa: A002 - Textual's
        super().__init__(text, id=id, classes=classes, markup=False)

    def on_click(self, event: events.Click) -> None:
        lines, at = str(self.content).splitlines(), event.screen_offset - self.content_region.offset
        if not 0 <= at.y < len(lines):
            return
        is_answer = self.has_class("answers") and at.x < len(lines[at.y])
        press(self, key_at(lines[at.y], 0 if is_answer else at.x))


def edge_key_at(box: Widget, at: Offset) -> str | None:
    """Return the key whose hint stands at a place of the screen on the lower edge of a box."""
    edge, words = box.region, str(box.border_subtitle or "")
    if not words or at.y != edge.bottom - 1 or not edge.contains_point(at):
        return None
    drawn = box.render_lines(Region(0, edge.height - 1, edge.width, 1))[0].text
    start = drawn.find(words)
    return None if start < 0 else key_at(words, at.x - edge.x - start)


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
        self.draw()

    def on_resize(self) -> None:
        self.draw()

    async def on_click(self) -> None:
        await self.run_action("app.notices")

    def draw(self) -> None:
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
        return Strip(segments([(" ", DIM), *self._shown], _GROUND)).adjust_cell_length(self.size.width, _GROUND)


def line_of(screen: Screen[Any]) -> MessageLine:
    return screen.query_one(MessageLine)


def draw_line(screen: Screen[Any]) -> None:
    """Draw the line of a screen, unless that is not composed yet."""
    for line in screen.query(MessageLine):
        line.draw()


class StatusBar(Widget):
    """Status text at the left, the time at the right."""

    DEFAULT_CSS = "StatusBar { height: 1; dock: top; }"

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._words: Cell = ()
        self.time = ""

    @property
    def room(self) -> int:
        """Number of cells for the text, beside the time."""
        return max(0, (self.size.width or self.app.size.width) - len("00:00:00") - 3)

    def show(self, words: Cell, time: str) -> None:
        """Show text and time; only changes are sent."""
        if words != self._words:
            self._words = words
            self.refresh()
        if time != self.time:
            longest = max(len(time), len(self.time))
            self.time = time
            self.refresh(Region(self.size.width - longest - 1, 0, longest, 1))

    async def on_click(self) -> None:
        await self.run_action("app.notices")

    def render_line(self, y: int) -> Strip:
        room = max(0, self.size.width - len(self.time) - 3)
        spans: list[Span] = [(" ", DIM), *fitted(self._words, room), (f" {self.time} ", DIM)]
        return Strip(segments(spans, _RAISED)).adjust_cell_length(self.size.width, _RAISED)


class SummaryBar(Widget):
    """Line about all GPUs and the host; hidden while nothing is known, and on low screens."""

    DEFAULT_CSS = "SummaryBar { height: 1; display: none; }"
    LOW = 30
    """Screens with fewer rows have no such line, to leave the row to the queue."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._line: Cell = ()

    @property
    def has_room(self) -> bool:
        return self.app.size.height >= self.LOW

    @property
    def room(self) -> int:
        return max(0, self.app.size.width - 2)

    @property
    def rows(self) -> int:
        return int(bool(self._line))

    def show(self, line: Cell) -> None:
        """Show the line; an empty one takes no row."""
        if line == self._line:
            return
        before, self._line = fitted(self._line, self.room), line
        self.display = bool(line)
        for start, end in changed_runs(before, fitted(line, self.room)):
            self.refresh(Region(1 + start, 0, end - start, 1))

    def render_line(self, y: int) -> Strip:
        spans: list[Span] = [(" ", DIM), *fitted(self._line, max(0, self.size.width - 1))]
        return Strip(segments(spans, _GROUND)).adjust_cell_length(self.size.width, _GROUND)


class KeyBar(Widget):
    """Keys available now. A click on one runs its command."""

    DEFAULT_CSS = "KeyBar { height: 1; dock: bottom; }"

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._commands: tuple[Command, ...] = ()
        self._always: tuple[Command, ...] = ()
        self._before: list[tuple[int, Command]] = []
        """Commands before the last change, with their places."""
        self._changed_at = 0.0
        """Time of the last change, on the clock of events."""
        self._meant: Command | None = None
        """Command at which a button was pressed."""

    def show(self, commands: tuple[Command, ...], always: tuple[Command, ...] = ()) -> None:
        """Show the commands that fit, the first ones first, and `always` at the right, of which the last ones stay."""
        keymap = keymap_of(self)
        commands, always = keymap.footer(commands), keymap.footer(always)
        if (commands, always) != (self._commands, self._always):
            self._before, self._changed_at = self._places(), time.monotonic()
            self._commands, self._always = commands, always
            self.refresh()

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Find the command; a press that was made before the commands changed means one of the earlier ones."""
        places = self._before if read_at(self.app) < self._changed_at else self._places()
        at = (command for x, command in places if x <= event.x < x + _length(command))
        self._meant = next(at, None)

    async def on_click(self) -> None:
        if self._meant is not None and (place := place_of(self._meant, self.screen)):
            await self.app.run_action(self._meant.action, default_namespace=place)

    def _places(self) -> list[tuple[int, Command]]:
        """Return the commands that fit, with their places; a shorter one may take the room that a longer one left."""
        right, permanent = self.size.width + 1, []
        for command in reversed(self._always):
            if (place := right - _length(command) - 2) < 1:
                break
            right = place
            permanent.append((place, command))
        places, x = [], 1
        for command in self._commands:
            if x + _length(command) <= right - 2:
                places.append((x, command))
                x += _length(command) + 2
        return [*places, *reversed(permanent)]

    def render_line(self, y: int) -> Strip:
        spans: list[Span] = []
        at = 0
        for x, command in self._places():
            spans += [(" " * (x - at), DIM), (command.first_key, STRONG + BLUE), (f" {command.title}", DIM)]
            at = x + _length(command)
        return Strip(segments(spans, _RAISED)).adjust_cell_length(self.size.width, _RAISED)


def _length(command: Command) -> int:
    return len(command.first_key) + 1 + len(command.title)
