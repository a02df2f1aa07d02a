"""Lines of one row: status, summary, message, titles of panes, hints that name keys, keys, and the filter."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, ClassVar, cast

from msgspec import Struct, field
from textual import events
from textual.app import App, ComposeResult
from textual.containers import Horizontal, Vertical
from textual.geometry import Offset, Region
from textual.screen import Screen
from textual.strip import Strip
from textual.suggester import Suggester
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input, Static

from gputui.domain.errors import InputError
from gputui.domain.filter import FIELDS
from gputui.domain.snapshot import Notice
from gputui.domain.text import fit, plain, plural, width
from gputui.tui.commands import Command, place_of
from gputui.tui.input_queue import read_at
from gputui.tui.keymap import keymap_of
from gputui.tui.keys import NAMES, key_of
from gputui.tui.notifications import Notification
from gputui.tui.present.cells import (
    BLUE,
    DIM,
    ON_GROUND,
    ON_RAISED,
    PLAIN,
    SEVERITY_MARKS,
    SEVERITY_STYLES,
    STRONG,
    TRACK,
    Cell,
    Span,
    changed_runs,
    fitted,
    segments,
    width_of,
)

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
    return Strip(segments(fitted((*line, *end), room), ON_RAISED), room)


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


class Messages(Struct, eq=False):
    """The newest message, as long as it stays, and the progress of a long task; the lines of all screens show them."""

    app: App[Any]
    stays: Mapping[str, float] = field(default_factory=lambda: STAYS)
    newest: Notification | None = None
    missed: int = 0
    """Number of problems that newer messages replaced before their time."""
    progress: Cell = ()
    _timer: Timer | None = None

    def say(self, message: Notification) -> None:
        before = self.newest
        self.missed += before is not None and before.is_bad and before.text != message.text
        self._put(message)
        if (seconds := self.stays.get(message.severity)) is not None:
            self._timer = self.app.set_timer(seconds, self.clear)

    def note_key(self, now: datetime) -> None:
        newest = self.newest
        if newest is not None and newest.severity not in self.stays and abs(now - newest.at) >= LEGIBLE:
            self.clear()

    def clear(self) -> None:
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
        for screen in self.app.screen_stack:
            draw_line(screen)


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
        if (notices, hint) != (self._notices, self._hint):
            self._notices, self._hint = notices, hint
            self.draw()

    async def on_click(self) -> None:
        await self.run_action("app.notices")

    def draw(self) -> None:
        before, self._shown = self._shown, fitted(self._words(), max(0, self.size.width - 2))
        for start, end in changed_runs(before, self._shown):
            self.refresh(Region(1 + start, 0, end - start, 1))

    on_mount = on_resize = draw

    def _words(self) -> Cell:
        messages: Messages = cast("Any", self.app).messages
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
        return Strip(segments([(" ", DIM), *self._shown], ON_GROUND)).adjust_cell_length(self.size.width, ON_GROUND)


def line_of(screen: Screen[Any]) -> MessageLine:
    return screen.query_one(MessageLine)


def draw_line(screen: Screen[Any]) -> None:
    for line in screen.query(MessageLine):
        line.draw()


class StatusBar(Widget):
    DEFAULT_CSS = "StatusBar { height: 1; dock: top; }"
    _words: Cell = ()
    time = ""

    @property
    def room(self) -> int:
        return max(0, (self.size.width or self.app.size.width) - len("00:00:00") - 3)

    def show(self, words: Cell, time: str) -> None:
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
        return Strip(segments(spans, ON_RAISED)).adjust_cell_length(self.size.width, ON_RAISED)


class SummaryBar(Widget):
    """Line about all GPUs and the host; hidden while nothing is known, and on low screens."""

    DEFAULT_CSS = "SummaryBar { height: 1; display: none; }"
    LOW = 30
    """Screens with fewer rows have no such line, to leave the row to the queue."""
    _line: Cell = ()

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
        if line == self._line:
            return
        before, self._line = fitted(self._line, self.room), line
        self.display = bool(line)
        for start, end in changed_runs(before, fitted(line, self.room)):
            self.refresh(Region(1 + start, 0, end - start, 1))

    def render_line(self, y: int) -> Strip:
        spans: list[Span] = [(" ", DIM), *fitted(self._line, max(0, self.size.width - 1))]
        return Strip(segments(spans, ON_GROUND)).adjust_cell_length(self.size.width, ON_GROUND)


class KeyBar(Widget):
    DEFAULT_CSS = "KeyBar { height: 1; dock: bottom; }"
    _commands: tuple[Command, ...] = ()
    _always: tuple[Command, ...] = ()
    _before: Sequence[tuple[int, Command]] = ()
    _changed_at = 0.0
    """Time of the last change, on the clock of events."""
    _meant: Command | None = None

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
        return Strip(segments(spans, ON_RAISED)).adjust_cell_length(self.size.width, ON_RAISED)


def _length(command: Command) -> int:
    return len(command.first_key) + 1 + len(command.title)


MOST = 50


class FilterHistory(Struct, frozen=True):
    """Earlier filters, each once, the latest last."""

    texts: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, object]) -> FilterHistory:
        found = values.get("texts")
        texts = [text for text in found if isinstance(text, str)] if isinstance(found, list) else []
        return cls(tuple(texts[-MOST:]))

    def values(self) -> dict[str, object]:
        return {"texts": list(self.texts)}

    def with_one(self, text: str) -> FilterHistory:
        if not text.strip():
            return self
        return FilterHistory((*(kept for kept in self.texts if kept != text), text)[-MOST:])


_HINT = "bob state:pd gpus>=4 name~bert -is:held  ↑ earlier"
_EXAMPLES = {name: field.example for name, field in FIELDS.items()}
_LAST_WORD = re.compile(r"(?:^|\s)[-!]?([a-z]+)$")


class FieldNames(Suggester):
    def __init__(self, fields: Mapping[str, str] = _EXAMPLES) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._fields = fields

    async def get_suggestion(self, value: str) -> str | None:
        match = _LAST_WORD.search(value)
        if match is None or len(match[1]) < 2:
            return None
        name = next((field for field in self._fields if field.startswith(match[1])), None)
        if name is None:
            return None
        operator = re.sub(r"^[a-z]+", "", self._fields[name])[:1]
        return value[: match.start(1)] + name + operator


class FilterLine(Vertical):
    DEFAULT_CSS = """
    FilterLine { height: auto; display: none; background: $surface; }
    FilterLine.-open { display: block; }
    FilterLine Horizontal { height: 1; }
    FilterLine #sign { width: auto; padding: 0 0 0 1; color: $primary; text-style: bold; }
    FilterLine #matches { width: auto; padding: 0 2 0 1; color: $foreground 75%; }
    FilterLine #said { width: auto; padding: 0 1; color: $foreground 75%; }
    FilterLine Input { height: 1; width: 1fr; border: none; padding: 0 1; background: $surface; }
    FilterLine #fault { height: auto; max-height: 4; padding: 0 1; color: $warning; display: none; }
    FilterLine #fault.-shown { display: block; }
    """
    BINDINGS: ClassVar = []

    def __init__(self, hint: str = _HINT, fields: Mapping[str, str] = _EXAMPLES, noun: str = "job") -> None:
        super().__init__()
        self._field = Input(id="filter", placeholder=hint, compact=True, suggester=FieldNames(fields))
        self._noun = noun
        self._past: list[str] = []
        self._place = 0
        self._said = ("", "")

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Static("/", id="sign", markup=False)
            yield self._field
            yield Static("", id="matches", markup=False)
            yield Hints("", id="said")
        yield Static("", id="fault", markup=False)

    @property
    def is_open(self) -> bool:
        return self.has_class("-open")

    @property
    def is_typed(self) -> bool:
        return self._field.has_focus

    def open(self, history: FilterHistory) -> None:
        self._past = list(history.texts)
        self._place = len(self._past)
        self.add_class("-open")
        self._field.focus()

    def close(self) -> None:
        self.set_class(bool(self._field.value), "-open")

    def count(self, shown: int, of: int, *, is_typed: bool) -> None:
        matches = f"{shown} of {plural(of, self._noun)}" if self._field.value else ""
        said = "Enter keep  Esc show all" if is_typed else "Esc shows all"
        if (matches, said) != self._said:
            self._said = matches, said
            line = self.query_one("#matches", Static)
            line.update(matches)
            line.display = bool(matches)
            self.query_one("#said", Static).update(said)

    def show_fault(self, fault: InputError | None) -> None:
        words = ""
        if fault is not None:
            hint = f": {fault.hint}" if fault.hint else ""
            words = plain(f"! {fault.what}{hint}", 300)
        line = self.query_one("#fault", Static)
        line.update(words)
        line.set_class(bool(words), "-shown")

    def on_key(self, event: events.Key) -> None:
        if event.key in {"up", "down"} and self._past:
            event.stop()
            event.prevent_default()
            self._place = max(0, min(len(self._past), self._place + (-1 if event.key == "up" else 1)))
            field = self._field
            field.value = [*self._past, ""][self._place]
            field.cursor_position = len(field.value)
