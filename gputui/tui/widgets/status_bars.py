"""Status at the top of the screen, keys at the bottom, and notices below the status."""

from __future__ import annotations

import time

from msgspec.structs import replace
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from gputui.domain.snapshot import Notice
from gputui.domain.text import fit, plain
from gputui.domain.text import width as cell_width
from gputui.tui.commands import Command
from gputui.tui.input_queue import read_at
from gputui.tui.keymap import keymap_of
from gputui.tui.present.cells import Cell, Span, changed_runs, fitted, segments
from gputui.tui.present.status import wrapped
from gputui.tui.present.style import BLUE, DIM, GROUND, PLAIN, RAISED, SEVERITY_STYLES, STRONG

_RAISED = Style(bgcolor=RAISED)
_GROUND = Style(bgcolor=GROUND)
_MARKS = {"error": "✗ ", "warning": "! "}


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
        """Show everything that is wrong in full, and the events."""
        await self.run_action("app.notices")

    def render_line(self, y: int) -> Strip:
        """Render the line."""
        room = max(0, self.size.width - len(self.time) - 3)
        spans: list[Span] = [(" ", DIM), *fitted(self._words, room), (f" {self.time} ", DIM)]
        return Strip(segments(spans, _RAISED)).adjust_cell_length(self.size.width, _RAISED)


class NoticeBar(Widget):
    """Notices that need an operator's attention, in a few lines; hidden if there are none."""

    DEFAULT_CSS = "NoticeBar { height: 1; display: none; }"
    MOST = 3
    LOW = 30
    """Screens with fewer rows show one line of notices, to leave rows to the queue."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._notices: tuple[Notice, ...] = ()
        self._lines: list[Cell] = []

    @property
    def rows(self) -> int:
        """Number of lines that it takes."""
        return len(self._lines)

    def show(self, notices: tuple[Notice, ...]) -> None:
        """Show the notices, worst first."""
        words = keymap_of(self).words
        notices = tuple(replace(notice, text=words(notice.text)) for notice in notices)
        if notices != self._notices:
            self._notices = notices
            self._wrap(self.app.size.width)

    def on_resize(self) -> None:
        """Wrap at the new width."""
        self._wrap(self.app.size.width)

    def _wrap(self, width: int) -> None:
        """Show the worst notice in full, the beginning of others, and the number of the rest."""
        self._lines = self._one_line(width) if self.app.size.height < self.LOW else self._some_lines(width)
        self.display = bool(self._lines)
        self.styles.height = max(1, len(self._lines))
        self.refresh()

    def _one_line(self, width: int) -> list[Cell]:
        """Return the beginning of the worst notice, and the key that shows the rest."""
        if not self._notices:
            return []
        worst, more = self._notices[0], len(self._notices) - 1
        style = SEVERITY_STYLES.get(worst.severity, PLAIN)
        text = _MARKS.get(worst.severity, "· ") + plain(worst.text, 600)
        room = width - 2
        if not more and cell_width(text) <= room:
            return [((text, style),)]
        key = keymap_of(self).key("notices")
        hint = f"  +{more}, {key} shows all" if more else f"  {key} shows all"
        return [((fit(text, room - len(hint)), style), (hint, DIM))]

    def _some_lines(self, width: int) -> list[Cell]:
        lines: list[Cell] = []
        for notice in self._notices:
            style = SEVERITY_STYLES.get(notice.severity, PLAIN)
            mark = _MARKS.get(notice.severity, "· ")
            text = wrapped(plain(notice.text, 600), width - 4)
            kept = text if not lines else [" ".join(text)]
            lines += [(((mark if i == 0 else "  "), style), (line, style)) for i, line in enumerate(kept)]
        if len(lines) > self.MOST:
            more = len(self._notices) - 1
            lines = [
                *lines[: self.MOST - 1],
                (
                    (f"  and {more} more, " if more else "  … ", DIM),
                    (f"{keymap_of(self).key('notices')} shows all", DIM),
                ),
            ]
        return lines

    async def on_click(self) -> None:
        """Show all notices in full."""
        await self.run_action("app.notices")

    def render_line(self, y: int) -> Strip:
        """Render a line of notices."""
        spans: list[Span] = [(" ", DIM)]
        if y < len(self._lines):
            spans += fitted(self._lines[y], max(0, self.size.width - 1))
        return Strip(segments(spans, _GROUND)).adjust_cell_length(self.size.width, _GROUND)


class SummaryBar(Widget):
    """Line about all GPUs and the host; hidden while nothing is known, and on low screens."""

    DEFAULT_CSS = "SummaryBar { height: 1; display: none; }"
    LOW = NoticeBar.LOW
    """Screens with fewer rows have no such line, to leave the row to the queue."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._line: Cell = ()

    @property
    def has_room(self) -> bool:
        """Return whether the screen has a row for it."""
        return self.app.size.height >= self.LOW

    @property
    def room(self) -> int:
        """Number of cells for the line."""
        return max(0, self.app.size.width - 2)

    @property
    def rows(self) -> int:
        """Number of rows that it takes."""
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
        """Render the line."""
        spans: list[Span] = [(" ", DIM), *fitted(self._line, max(0, self.size.width - 1))]
        return Strip(segments(spans, _GROUND)).adjust_cell_length(self.size.width, _GROUND)


class HintBar(Widget):
    """Line for newcomers; hidden if it is empty."""

    DEFAULT_CSS = "HintBar { height: 1; display: none; }"

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._text = ""

    @property
    def rows(self) -> int:
        """Number of rows that it takes."""
        return int(bool(self._text))

    def show(self, text: str) -> None:
        """Show the text; an empty one takes no row."""
        if text != self._text:
            self._text = text
            self.display = bool(text)
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """Render the line."""
        words = fit(keymap_of(self).words(self._text), max(0, self.size.width - 1))
        return Strip(segments([(" ", DIM), (words, BLUE)], _GROUND)).adjust_cell_length(self.size.width, _GROUND)


class KeyBar(Widget):
    """Keys available now. A click on one runs its command."""

    DEFAULT_CSS = "KeyBar { height: 1; dock: bottom; }"

    class Clicked(Message):
        """Message that a command was clicked."""

        def __init__(self, command: Command) -> None:
            super().__init__()
            self.command = command

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

    def on_click(self) -> None:
        """Send a message about the clicked command."""
        if self._meant is not None:
            self.post_message(self.Clicked(self._meant))

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
        """Render the line; commands that do not fit are left out."""
        spans: list[Span] = []
        at = 0
        for x, command in self._places():
            spans += [(" " * (x - at), DIM), (command.first_key, STRONG + BLUE), (f" {command.title}", DIM)]
            at = x + _length(command)
        return Strip(segments(spans, _RAISED)).adjust_cell_length(self.size.width, _RAISED)


def _length(command: Command) -> int:
    return len(command.first_key) + 1 + len(command.title)
