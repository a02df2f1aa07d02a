"""Status at the top of the screen, the summary below the GPUs, and keys at the bottom."""

from __future__ import annotations

import time

from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from gputui.tui.commands import Command
from gputui.tui.input_queue import read_at
from gputui.tui.keymap import keymap_of
from gputui.tui.present.cells import Cell, Span, changed_runs, fitted, segments
from gputui.tui.present.style import BLUE, DIM, GROUND, RAISED, STRONG

_RAISED = Style(bgcolor=RAISED)
_GROUND = Style(bgcolor=GROUND)


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
