"""Dialogs to choose a theme, or the columns of the queue and their order.

The selected theme is applied at once; Enter keeps it, Escape restores the previous one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from gputui.domain.queue_columns import QUEUE_COLUMNS
from gputui.tui.commands.command import bindings
from gputui.tui.commands.table import BACK, COLUMN_COMMANDS, MOVE_COMMANDS, TAKE_LINE
from gputui.tui.keymap import keymap_of
from gputui.tui.palette import AUTO
from gputui.tui.present.cells import Cell, Column, cell
from gputui.tui.present.style import BLUE, DIM, PLAIN
from gputui.tui.queue.rows import ChosenColumns
from gputui.tui.screens.dialog import Dialog, Leavable
from gputui.tui.themes import theme_names
from gputui.tui.widgets.line_table import LineTable, RowOpened
from gputui.tui.widgets.status_bars import KeyBar, edge_key_at, press


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
        self._before = self.app.theme
        names = (AUTO, *theme_names())
        with Vertical(classes="box") as box:
            box.border_title = "Theme"
            key = keymap_of(self).key
            box.border_subtitle = f"{key('take_line')} keep   {key('back')} back"
            words = ("auto, by the settings" if name == AUTO else name for name in names)
            options = map(lambda text, name: Option(text, id=name), words, names)
            choices = OptionList(*options, markup=False, compact=True)
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


_COLUMNS = (Column("shown", "", 3), Column("title", "COLUMN", 10), Column("about", "WHAT", 20, flex=1))


class _Columns(LineTable[str]):
    """Table of columns: the shown ones in order, then the others."""

    COLUMNS: ClassVar = _COLUMNS
    noun = "column"
    DEFAULT_CSS = "_Columns { height: 1fr; max-height: 24; }"

    def __init__(self, absent: Mapping[str, str]) -> None:
        super().__init__(id="columns")
        self._absent = absent
        self._shown: frozenset[str] = frozenset()

    @property
    def chosen(self) -> ChosenColumns:
        return ChosenColumns(tuple(key for key in self.keys if key in self._shown))

    def become(self, chosen: ChosenColumns) -> None:
        self._shown = frozenset(chosen.keys)
        self._order([*chosen.keys, *(key for key in QUEUE_COLUMNS if key not in self._shown)])

    def _order(self, keys: Sequence[str]) -> None:
        self.show_rows(keys, {key: row for row, key in enumerate(keys)})

    def toggle(self, key: str) -> None:
        """Show or hide a column in its place; the last shown one stays."""
        shown = self._shown ^ {key}
        self._shown = shown or self._shown
        self.redraw()

    def shift(self, key: str, step: int) -> None:
        """Move a column down by `step` places."""
        keys = [kept for kept in self.keys if kept != key]
        place = max(0, min(len(keys), list(self.keys).index(key) + step))
        self._order([*keys[:place], key, *keys[place:]])

    def cell_of(self, key: str, column: str, room: int) -> Cell:
        is_shown = key in self._shown
        if column == "shown":
            return cell("[x]" if is_shown else "[ ]", BLUE if is_shown else DIM)
        shown = QUEUE_COLUMNS[key]
        words = shown.title if column == "title" else self._absent.get(key, shown.about)
        return cell(words, PLAIN if is_shown and key not in self._absent else DIM)


class ColumnChooser(Dialog[ChosenColumns | None]):
    """Dialog that returns the chosen columns, or None."""

    BINDINGS: ClassVar = bindings((*COLUMN_COMMANDS, BACK))
    DEFAULT_CSS = """
    ColumnChooser .dialog { width: 84; height: 30; max-height: 96%; }
    ColumnChooser KeyBar { dock: none; }
    """

    def __init__(self, chosen: ChosenColumns, usual: ChosenColumns, absent: Mapping[str, str]) -> None:
        """`absent` are those for which the cluster has no values, each with its sentence."""
        super().__init__()
        self._absent = absent
        self._chosen = chosen
        self._usual = usual

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Columns of the queue: the first ones stay longest on a narrow screen", classes="title")
            yield _Columns(self._absent)
            yield KeyBar(id="keys")

    def on_mount(self) -> None:
        self.query_one(KeyBar).show(tuple(command for command in COLUMN_COMMANDS if command.in_footer), (BACK,))
        self.table.focus()
        self.call_after_refresh(self.table.become, self._chosen)

    @property
    def table(self) -> _Columns:
        return self.query_one(_Columns)

    @on(RowOpened)
    def action_toggle_column(self) -> None:
        if key := self.table.cursor:
            self.table.toggle(key)

    def action_shift(self, step: int) -> None:
        if key := self.table.cursor:
            self.table.shift(key, step)

    def action_usual(self) -> None:
        self.table.become(self._usual)

    def action_take(self) -> None:
        self.dismiss(self.table.chosen)
