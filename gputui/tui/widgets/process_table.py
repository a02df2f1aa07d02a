"""Table of the process view."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events

from gputui.domain.gpu_processes import GpuProcessRow
from gputui.tui.present.cells import Cell, Column, PlacedColumn
from gputui.tui.present.process import PROCESS_VIEW_COLUMNS, ProcessOrder, view_cell
from gputui.tui.widgets.job_table import DOWN, UP, TitleClicked
from gputui.tui.widgets.line_table import LineTable


class GpuProcessTable(LineTable[str]):
    """Processes and containers on GPUs, by the key of their rows. A column of which nothing is known is left out."""

    NOUN = "process"

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._rows: dict[str, GpuProcessRow] = {}
        self._order = ProcessOrder()
        self._shown_columns: tuple[Column, ...] = PROCESS_VIEW_COLUMNS

    def show(self, rows: Sequence[GpuProcessRow], order: ProcessOrder, empty: Cell) -> None:
        """Show these rows."""
        self._rows = {row.key: row for row in rows}
        columns = tuple(column for column in PROCESS_VIEW_COLUMNS if column.key != "sm" or _any_share(rows))
        is_changed, self._order, self._shown_columns = (
            (order, columns) != (self._order, self._shown_columns),
            order,
            columns,
        )
        keys = list(self._rows)
        self.show_rows(keys, {key: place for place, key in enumerate(keys)}, (empty,))
        if is_changed:
            self.lay_out()

    @property
    def row(self) -> GpuProcessRow | None:
        """Row under the cursor."""
        return None if self.cursor is None else self._rows.get(self.cursor)

    def columns(self) -> tuple[Column, ...]:
        """Return the columns there may be."""
        return self._shown_columns

    def cell_of(self, key: str, column: str, room: int) -> Cell:
        """Return the content of a cell."""
        del room
        return view_cell(self._rows[key], column)

    def title_of(self, placed: PlacedColumn) -> str:
        """Return the title, with an arrow where rows are sorted by it."""
        column = placed.column
        if column.key != self._order.column:
            return column.title
        return column.title[: placed.width - 1] + (DOWN if self._order.is_down else UP)

    def on_click(self, event: events.Click) -> None:
        """Sort by the column whose title is clicked."""
        if event.y == self.head - 1 and (column := self.column_at(event.x)):
            self.post_message(TitleClicked(column.key))


def _any_share(rows: Sequence[GpuProcessRow]) -> bool:
    return any(row.sm is not None for row in rows)
