"""GPUs in rows, one to a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rich.style import Style
from textual.strip import Strip

from gputui.tui.commands import GRID_COMMANDS, bindings
from gputui.tui.present.cells import Cell, Column, PlacedColumn, segments
from gputui.tui.present.gpu import gpu_cells, sick_words
from gputui.tui.present.gpu_rows import GPU_COLUMNS, GpuPicture
from gputui.tui.present.graphs import span_words
from gputui.tui.present.style import BLUE, DIM, RAISED
from gputui.tui.widgets.line_table import LineTable

_RAISED = Style(bgcolor=RAISED)


class GpuTable(LineTable[str]):
    """Table of GPUs by UUID."""

    BINDINGS: ClassVar = bindings(GRID_COMMANDS)
    COLUMNS: ClassVar = GPU_COLUMNS
    NOUN = "GPU"

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._picture = GpuPicture()
        self._unread: frozenset[str] = frozenset(("fan",))

    def columns(self) -> tuple[Column, ...]:
        """Return the columns for which any GPU has a reading."""
        return tuple(column for column in GPU_COLUMNS if column.key not in self._unread)

    def show(self, picture: GpuPicture, positions: Mapping[str, int], empty: tuple[Cell, ...]) -> None:
        """Show the GPUs, or the words where there is none."""
        seconds = self._span()
        self._picture, unread = picture, picture.unread()
        if self._span() != seconds:
            self._refresh_titles()
        if unread != self._unread:
            self._unread = unread
            self.keys = [key for key in self.keys if key in positions]  # drawn before the new ones are shown
            self.lay_out()
        self.show_rows(tuple(positions), positions, empty)

    def title_of(self, placed: PlacedColumn) -> str:
        """Return the title of a column; that of the history says how far back it goes."""
        title = super().title_of(placed)
        return f"{title} {span_words(placed.width, self._span())}" if placed.column.key == "history" else title

    def _span(self) -> int:
        """Return the seconds that graphs show; 0: live."""
        return next((row.look.seconds for row in self._picture.rows.values()), 0)

    def cell_of(self, key: str, column: str, room: int) -> Cell:
        """Return the content of a cell."""
        return gpu_cells(self._picture.rows[key], column, room)

    def whole_line(self, key: str) -> Cell | None:
        """Return why a GPU is lost or sick, in place of readings that there are not."""
        return sick_words(self._picture.rows[key], self.size.width)

    def redraw(self) -> None:
        """Update the visible rows; none while the cards are shown instead."""
        if self.display:
            super().redraw()

    def action_beside(self, step: int) -> None:
        """Select the next GPU, or the previous one."""
        self.move_to(self._row + step)

    def _titles(self) -> Strip:
        if self.keys:
            return super()._titles()
        words = segments([(" GPU", BLUE if self.has_focus else DIM)], _RAISED)
        return Strip(words).adjust_cell_length(self.size.width, _RAISED)
