"""Pane of the GPUs: a table or cards, as the room allows."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical

from gputui.tui.present.cells import Cell
from gputui.tui.present.gpu_rows import GpuPicture
from gputui.tui.present.gpu_tiles import Arrangement, GridRoom, arrange
from gputui.tui.widgets.gpu_cards import GpuCards
from gputui.tui.widgets.gpu_table import GpuTable


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
