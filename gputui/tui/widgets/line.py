"""Single lines of styled text: the status at the top, the keys at the bottom, notices between."""

from __future__ import annotations

from dataclasses import replace

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
from gputui.tui.keymap import keymap_of
from gputui.tui.present.cells import Cell, Span, fitted, segments
from gputui.tui.present.status import wrapped
from gputui.tui.present.style import BLUE, DIM, GROUND, PLAIN, RAISED, SEVERITY_STYLES, STRONG

_RAISED = Style(bgcolor=RAISED)
_GROUND = Style(bgcolor=GROUND)
_MARKS = {"error": "✗ ", "warning": "! "}


class StatusBar(Widget):
    """Words at the left, the time at the right."""

    DEFAULT_CSS = "StatusBar { height: 1; dock: top; }"

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._words: Cell = ()
        self.time = ""

    @property
    def room(self) -> int:
        """Cells there are for the words, beside the time."""
        return max(0, (self.size.width or self.app.size.width) - len("00:00:00") - 3)

    def show(self, words: Cell, time: str) -> None:
        """Show this; only what changed is sent."""
        if words != self._words:
            self._words = words
            self.refresh()
        if time != self.time:
            self.time = time
            self.refresh(Region(self.size.width - len(time) - 1, 0, len(time), 1))

    def render_line(self, y: int) -> Strip:
        """The line."""
        room = max(0, self.size.width - len(self.time) - 3)
        spans: list[Span] = [(" ", DIM), *fitted(self._words, room), (f" {self.time} ", DIM)]
        return Strip(segments(spans, _RAISED)).adjust_cell_length(self.size.width, _RAISED)


class NoticeBar(Widget):
    """What an operator must know now, a few lines at most; not there when there is nothing."""

    DEFAULT_CSS = "NoticeBar { height: 1; display: none; }"
    MOST = 3
    LOW = 30
    """Under so many rows of the screen a single one is for notices: the queue needs them more."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._notices: tuple[Notice, ...] = ()
        self._lines: list[Cell] = []

    @property
    def rows(self) -> int:
        """Lines that it takes."""
        return len(self._lines)

    def show(self, notices: tuple[Notice, ...]) -> None:
        """Show these, worst first."""
        words = keymap_of(self).words
        notices = tuple(replace(notice, text=words(notice.text)) for notice in notices)
        if notices != self._notices:
            self._notices = notices
            self._wrap(self.app.size.width)

    def on_resize(self) -> None:
        """Wrap anew."""
        self._wrap(self.app.size.width)

    def _wrap(self, width: int) -> None:
        """The worst in full, of the others their beginning; the rest as a number."""
        self._lines = self._one_line(width) if self.app.size.height < self.LOW else self._some_lines(width)
        self.display = bool(self._lines)
        self.styles.height = max(1, len(self._lines))
        self.refresh()

    def _one_line(self, width: int) -> list[Cell]:
        """The beginning of the worst, and where the rest is."""
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
        """Show all of them, in full."""
        await self.run_action("app.notices")

    def render_line(self, y: int) -> Strip:
        """A notice."""
        spans: list[Span] = [(" ", DIM)]
        if y < len(self._lines):
            spans += fitted(self._lines[y], max(0, self.size.width - 1))
        return Strip(segments(spans, _GROUND)).adjust_cell_length(self.size.width, _GROUND)


class KeyBar(Widget):
    """The keys that work now. A click on one is as good as the key."""

    DEFAULT_CSS = "KeyBar { height: 1; dock: bottom; }"

    class Clicked(Message):
        """A command was clicked."""

        def __init__(self, command: Command) -> None:
            super().__init__()
            self.command = command

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._commands: tuple[Command, ...] = ()
        self._always: tuple[Command, ...] = ()

    def show(self, commands: tuple[Command, ...], always: tuple[Command, ...] = ()) -> None:
        """Show these commands, as many as fit, and `always` at the right."""
        keymap = keymap_of(self)
        commands, always = keymap.footer(commands), keymap.footer(always)
        if (commands, always) != (self._commands, self._always):
            self._commands, self._always = commands, always
            self.refresh()

    def on_click(self, event: events.Click) -> None:
        """Say which command is under the pointer."""
        for x, command in self._places():
            if x <= event.x < x + _length(command):
                self.post_message(self.Clicked(command))

    def _places(self) -> list[tuple[int, Command]]:
        """The commands that fit, with where they stand."""
        right = self.size.width - sum(_length(command) + 2 for command in self._always) + 1
        places, x = [], 1
        for command in self._commands:
            if x + _length(command) > right - 2:
                break
            places.append((x, command))
            x += _length(command) + 2
        for command in self._always:
            places.append((right, command))
            right += _length(command) + 2
        return places

    def render_line(self, y: int) -> Strip:
        """The line; what does not fit is left out whole."""
        spans: list[Span] = []
        at = 0
        for x, command in self._places():
            spans += [(" " * (x - at), DIM), (command.first_key, STRONG + BLUE), (f" {command.title}", DIM)]
            at = x + _length(command)
        return Strip(segments(spans, _RAISED)).adjust_cell_length(self.size.width, _RAISED)


def _length(command: Command) -> int:
    return len(command.first_key) + 1 + len(command.title)
