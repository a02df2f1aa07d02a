"""Choosing the columns of the queue, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from gputui.tui.commands import BACK, COLUMN_COMMANDS, bindings
from gputui.tui.present.cells import Cell, Column, cell
from gputui.tui.present.style import BLUE, DIM, PLAIN
from gputui.tui.queue.columns import ABOUT, COLUMNS, Chosen
from gputui.tui.screens.dialog import Dialog
from gputui.tui.widgets.line import KeyBar
from gputui.tui.widgets.line_table import LineTable
from gputui.tui.widgets.row_clicks import RowOpened

_COLUMNS = (
    Column("shown", "", 3),
    Column("title", "COLUMN", 10),
    Column("about", "WHAT", 20, flex=1),
)


class _Columns(LineTable[str]):
    """Those shown, in their order, then the others."""

    COLUMNS: ClassVar = _COLUMNS
    NOUN = "column"
    DEFAULT_CSS = "_Columns { height: 1fr; max-height: 24; }"

    def __init__(self) -> None:
        super().__init__(id="columns")
        self._shown: frozenset[str] = frozenset()

    @property
    def chosen(self) -> Chosen:
        """Those that are to be shown, in their order."""
        return Chosen(tuple(key for key in self.keys if key in self._shown))

    def become(self, chosen: Chosen) -> None:
        """Show these as chosen, and then the others."""
        self._shown = frozenset(chosen.keys)
        self._order([*chosen.keys, *(key for key in COLUMNS if key not in self._shown)])

    def _order(self, keys: Sequence[str]) -> None:
        self.show_rows(keys, {key: row for row, key in enumerate(keys)})

    def toggle(self, key: str) -> None:
        """Show it, or not; one is left always. It stays where it is."""
        shown = self._shown ^ {key}
        self._shown = shown or self._shown
        self.redraw()

    def shift(self, key: str, step: int) -> None:
        """Put it so many places further down."""
        keys = [kept for kept in self.keys if kept != key]
        place = max(0, min(len(keys), list(self.keys).index(key) + step))
        self._order([*keys[:place], key, *keys[place:]])

    def cell_of(self, key: str, column: str, room: int) -> Cell:
        """What stands in that cell."""
        is_shown = key in self._shown
        if column == "shown":
            return cell("[x]" if is_shown else "[ ]", BLUE if is_shown else DIM)
        return cell(COLUMNS[key].title if column == "title" else ABOUT[key], PLAIN if is_shown else DIM)


class ColumnChooser(Dialog[Chosen | None]):
    """The columns; None when nothing is to be changed."""

    BINDINGS: ClassVar = bindings((*COLUMN_COMMANDS, BACK))
    DEFAULT_CSS = """
    ColumnChooser .dialog { width: 84; height: 30; max-height: 96%; }
    ColumnChooser KeyBar { dock: none; }
    """

    def __init__(self, chosen: Chosen, usual: Chosen) -> None:
        super().__init__()
        self._chosen = chosen
        self._usual = usual

    def compose(self) -> ComposeResult:
        """The columns and the keys."""
        with Vertical(classes="dialog"):
            yield Static("Columns of the queue: the first ones stay longest on a narrow screen", classes="title")
            yield _Columns()
            yield KeyBar(id="keys")

    def on_mount(self) -> None:
        """Show them."""
        self.query_one(KeyBar).show(tuple(command for command in COLUMN_COMMANDS if command.in_footer), (BACK,))
        self._table.focus()
        self.call_after_refresh(self._table.become, self._chosen)

    @property
    def _table(self) -> _Columns:
        return self.query_one(_Columns)

    @on(RowOpened)
    def action_toggle_column(self) -> None:
        """Show the column, or leave it out."""
        if key := self._table.cursor:
            self._table.toggle(key)

    def action_shift(self, step: int) -> None:
        """Move the column."""
        if key := self._table.cursor:
            self._table.shift(key, step)

    def action_usual(self) -> None:
        """Those that there were at first."""
        self._table.become(self._usual)

    def action_take(self) -> None:
        """Have these."""
        self.dismiss(self._table.chosen)

    def action_back(self) -> None:
        """As they were."""
        self.dismiss(None)

    @on(KeyBar.Clicked)
    async def run_clicked(self, event: KeyBar.Clicked) -> None:
        """Do what the words say that were clicked."""
        event.stop()
        await self.run_action(event.command.action)
