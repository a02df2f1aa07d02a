"""Pane of the GPUs: a table or cards, as the room allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.style import Style
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.strip import Strip

from gputui.tui.commands import GRID_COMMANDS, bindings
from gputui.tui.present.cells import Cell, Column, PlacedColumn, segments
from gputui.tui.present.gpu import gpu_cells, sick_words
from gputui.tui.present.gpu_rows import GPU_COLUMNS, GpuPicture
from gputui.tui.present.gpu_tiles import Arrangement, GridRoom, arrange
from gputui.tui.present.graphs import span_words
from gputui.tui.present.style import BLUE, DIM, RAISED
from gputui.tui.widgets.gpu_cards import GpuCards
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


class GpuGrid(Vertical):
    """Holds a table and cards, of which one is shown; cursor and focus go along from one to the other."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.picture = GpuPicture()
        self.arrangement = Arrangement()
        self.table = GpuTable(id="gpu-table")
        self.cards = GpuCards(id="gpu-cards")
        self.cards.display = False

    def compose(self) -> ComposeResult:
        """Yield table and cards."""
        yield self.table
        yield self.cards

    @property
    def shown(self) -> GpuTable | GpuCards:
        """The widget that is shown."""
        return self.cards if self.has_tiles else self.table

    @property
    def has_tiles(self) -> bool:
        """Return whether GPUs are drawn as tiles, several side by side."""
        return self.arrangement.kind != "rows"

    def show(self, picture: GpuPicture, empty: tuple[Cell, ...], room: GridRoom) -> None:
        """Show the readings, or the words where there is no GPU."""
        self.picture = picture
        positions = {key: row for row, key in enumerate(picture.rows)}
        before, self.arrangement = self.shown, arrange(len(positions), room, words=len(empty))
        if self.shown is not before:
            self._change_over(before)
        self.styles.height = self.arrangement.rows
        if self.has_tiles:
            self.cards.show(picture, positions, self.arrangement)
        else:
            self.table.show(picture, positions, empty)

    def _change_over(self, before: GpuTable | GpuCards) -> None:
        """Show the other widget, with the cursor and the focus of this one."""
        shown = self.shown
        shown.cursor, had_focus = before.cursor, before.has_focus
        shown.display = True
        if had_focus:
            shown.focus()
        before.display = False
        shown.lay_out()

    def focus(self, scroll_visible: bool = True) -> GpuGrid:
        """Focus the widget that is shown."""
        self.shown.focus(scroll_visible)
        return self

    # the widget that is shown

    @property
    def keys(self) -> Sequence[str]:
        """UUIDs of the GPUs."""
        return self.shown.keys

    @property
    def cursor(self) -> str | None:
        """UUID of the selected GPU."""
        return self.shown.cursor

    @property
    def top(self) -> int:
        """Number of the first visible GPU."""
        return self.shown.top

    @property
    def height(self) -> int:
        """Number of GPUs for which there is room."""
        return self.shown.height

    @property
    def head(self) -> int:
        """Number of lines above the GPUs."""
        return self.shown.head

    def move_to(self, row: int) -> None:
        """Select a GPU by its number."""
        self.shown.move_to(row)
