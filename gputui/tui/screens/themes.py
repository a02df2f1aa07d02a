"""Dialog to choose a theme: the selected theme is applied at once, Enter keeps it, Escape restores the previous one."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from gputui.tui.commands.command import bindings
from gputui.tui.commands.table import BACK, MOVE_COMMANDS, TAKE_LINE
from gputui.tui.keymap import keymap_of
from gputui.tui.screens.dialog import Leavable
from gputui.tui.themes.palette import AUTO
from gputui.tui.themes.selection import theme_names
from gputui.tui.widgets.status_bars import edge_key_at, press


class Themes(Leavable[None], ModalScreen[None]):
    """A list at the right edge, so that its effect stays visible."""

    BINDINGS: ClassVar = bindings((*MOVE_COMMANDS[:2], TAKE_LINE, BACK))
    DEFAULT_CSS = """
    Themes {
        align: right middle;
        background: transparent;
        .box { width: 30; height: auto; max-height: 90%; background: $surface; border: round $primary; padding: 0 1; }
        OptionList { height: auto; max-height: 1fr; border: none; padding: 0; background: $surface; }
        OptionList:focus { background-tint: transparent; }
    }
    """

    def __init__(self, chosen: str, try_on: Callable[[str], None], keep: Callable[[str], None]) -> None:
        super().__init__()
        self._chosen = chosen
        self._try_on = try_on
        self._keep_theme = keep

    def compose(self) -> ComposeResult:
        """Yield the names; `auto` first."""
        self._before = self.app.theme
        names = (AUTO, *theme_names())
        with Vertical(classes="box") as box:
            box.border_title = "Theme"
            key = keymap_of(self).key
            box.border_subtitle = f"{key('take_line')} keep   {key('back')} back"
            choices = OptionList(*(Option(_words(name), id=name) for name in names), markup=False, compact=True)
            choices.highlighted = names.index(self._chosen) if self._chosen in names else 0
            yield choices

    def on_click(self, event: events.Click) -> None:
        if event.widget is not None:
            press(self, edge_key_at(event.widget, event.screen_offset))

    @on(OptionList.OptionHighlighted)
    def _look(self, event: OptionList.OptionHighlighted) -> None:
        self._try_on(str(event.option.id))

    @on(OptionList.OptionSelected)
    def _keep(self, event: OptionList.OptionSelected) -> None:
        self._keep_theme(str(event.option.id))
        self.dismiss()

    def action_back(self) -> None:
        self._try_on(self._before)
        self.dismiss()

    def action_down(self, step: int) -> None:
        names = self.query_one(OptionList)
        names.action_cursor_down() if step > 0 else names.action_cursor_up()

    def action_take_line(self) -> None:
        self.query_one(OptionList).action_select()


def _words(name: str) -> str:
    return "auto, by the settings" if name == AUTO else name
