"""Menu of the commands for a row, at the position of a right click."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.geometry import Offset
from textual.screen import Screen

from gputui.domain.arrays import count
from gputui.domain.gpu import GpuView
from gputui.domain.gpu_names import index_of
from gputui.domain.job import Job
from gputui.domain.text import width
from gputui.tui.commands import Command, place_of
from gputui.tui.commands.places import MENUS, menu_words
from gputui.tui.keymap import keymap_of
from gputui.tui.present.job import job_title
from gputui.tui.screens.questions import Choose
from gputui.tui.widgets.cell_lines import CellLines


class Pointed(Choose):
    """List that returns the index of the chosen line; None for Escape and for a click outside the box."""

    def place_at(self, event: events.MouseEvent) -> int | None:
        """Return the index of the line under the pointer."""
        lines = self.query_one("#lines", CellLines).region
        if not lines.contains(event.screen_x, event.screen_y):
            return None
        place = self.first + event.screen_y - lines.y
        return place if place < len(self.texts) else None

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Move the cursor with the pointer."""
        if (place := self.place_at(event)) is not None:
            self.action_down(place - self.cursor)

    def on_click(self, event: events.Click) -> None:
        """Choose the line, or close on a click outside the box; a click on a hint presses its key."""
        place = self.place_at(event)
        if place is not None:
            event.prevent_default()
            self.action_down(place - self.cursor)
            self.action_take_line()
        elif not self.query_one(".dialog").region.contains(event.screen_x, event.screen_y):
            event.prevent_default()
            self.action_back()


_FRAME, _MARK = 4, 2
"""Cells of the box, and before each line."""


def open_menu(screen: Screen[Any], title: str, commands: Sequence[Command], at: Offset) -> None:
    """Open a menu of these commands on a screen, and run the chosen one there."""

    def chosen(number: int | None) -> None:
        if number is not None and (place := place_of(commands[number], screen)) is not None:
            screen.call_later(screen.app.run_action, commands[number].action, place)

    screen.app.push_screen(Menu(title, menu_words(tuple(commands)), at), chosen)


def row_words(jobs: Sequence[Job], view: GpuView | None) -> str:
    """Return the name of the target of a menu's commands."""
    if view is not None:
        return f"GPU {index_of(view)}"
    return f"{count(jobs)} jobs" if len(jobs) > 1 else job_title(jobs[0]) if jobs else ""


def open_row_menu(
    screen: Screen[Any], title: str, pane: str | None, works: Callable[[Command], bool], at: Offset
) -> None:
    """Open the menu of a row of a pane with the commands that work now, if there is any."""
    keymap = keymap_of(screen)
    commands = tuple(keymap.told(command) for command in MENUS.get(pane or "", ()) if works(command))
    if commands:
        open_menu(screen, title, commands, at)


class Menu(Pointed):
    """Menu that returns the index of the chosen line, by a click or as in any list."""

    DEFAULT_CSS: ClassVar = """
    Menu {
        align: left top; background: $background 0%;
        .dialog { width: auto; min-width: 0; max-width: 100%; max-height: 100%; padding: 0 1; }
        CellLines { margin-bottom: 0; }
    }
    """

    def __init__(self, title: str, lines: Sequence[str], at: Offset) -> None:
        super().__init__(title, lines, none="")
        self._at = at

    def compose(self) -> ComposeResult:
        """Yield only the lines; no key hints, since it closes like any menu."""
        with Vertical(classes="dialog") as box:
            box.border_title = self._heading
            yield CellLines(id="lines")

    def on_mount(self) -> None:
        """Place the menu beside the pointer, within the screen."""
        lines = max(width(self._heading) + _MARK, *(width(text) + _MARK for text in self.texts))
        self.query_one(CellLines).styles.width = lines
        right, low = self.app.size.width - lines - _FRAME, self.app.size.height - self.rows - 3
        self.query_one(".dialog").styles.offset = (max(0, min(self._at.x, right)), max(0, min(self._at.y, low)))

    @property
    def rows(self) -> int:
        return max(1, min(len(self.texts), self.app.size.height - 3))
