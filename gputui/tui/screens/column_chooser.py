"""Dialog to choose the columns of the queue, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from gputui.domain.queue_columns import QUEUE_COLUMNS
from gputui.tui.commands.command import bindings
from gputui.tui.commands.table import BACK, COLUMN_COMMANDS
from gputui.tui.present.cells import Cell, Column, cell
from gputui.tui.present.style import BLUE, DIM, PLAIN
from gputui.tui.queue.columns import ChosenColumns
from gputui.tui.screens.dialog import Dialog
from gputui.tui.widgets.line_table import LineTable
from gputui.tui.widgets.mouse import RowOpened
from gputui.tui.widgets.status_bars import KeyBar

_COLUMNS = (
    Column("shown", "", 3),
    Column("title", "COLUMN", 10),
    Column("about", "WHAT", 20, flex=1),
)


class _Columns(LineTable[str]):
    """Table of columns: the shown ones in order, then the others."""

    COLUMNS: ClassVar = _COLUMNS
    noun = "column"
    DEFAULT_CSS = "_Columns { height: 1fr; max-height: 24; }"

    def __init__(self) -> None:
        super().__init__(id="columns")
        self._shown: frozenset[str] = frozenset()

    @property
    def chosen(self) -> ChosenColumns:
        return ChosenColumns(tuple(key for key in self.keys if key in self._shown))

    def become(self, chosen: ChosenColumns) -> None:
        """Set the chosen columns, followed by the others."""
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
        return cell(shown.title if column == "title" else shown.about, PLAIN if is_shown else DIM)


class ColumnChooser(Dialog[ChosenColumns | None]):
    """Dialog that returns the chosen columns, or None."""

    BINDINGS: ClassVar = bindings((*COLUMN_COMMANDS, BACK))
    DEFAULT_CSS = """
    ColumnChooser .dialog { width: 84; height: 30; max-height: 96%; }
    ColumnChooser KeyBar { dock: none; }
    """

    def __init__(self, chosen: ChosenColumns, usual: ChosenColumns) -> None:
        super().__init__()
        self._chosen = chosen
        self._usual = usual

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Columns of the queue: the first ones stay longest on a narrow screen", classes="title")
            yield _Columns()
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

    def action_back(self) -> None:
        self.dismiss(None)

    @on(KeyBar.Clicked)
    async def run_clicked(self, event: KeyBar.Clicked) -> None:
        event.stop()
        await self.run_action(event.command.action)
