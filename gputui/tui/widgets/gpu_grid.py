"""The GPUs, one line each."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from gputui.tui.present.cells import Cell, Column
from gputui.tui.present.gpu import GPU_COLUMNS, GpuPicture, gpu_cells
from gputui.tui.present.gpu_tiles import Arrangement, GridRoom, arrange
from gputui.tui.widgets.line_table import LineTable


class GpuGrid(LineTable[str]):
    """Rows by UUID."""

    COLUMNS: ClassVar = GPU_COLUMNS
    NOUN = "GPU"

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.picture = GpuPicture()
        self._has_fan = False
        self.arrangement = Arrangement()

    def columns(self) -> tuple[Column, ...]:
        """Without the fan where no board has one."""
        return tuple(column for column in GPU_COLUMNS if column.key != "fan" or self._has_fan)

    def show(self, picture: GpuPicture, empty: tuple[Cell, ...], room: GridRoom) -> None:
        """Show these readings, or these words when there is no GPU."""
        self.picture = picture
        keys = tuple(picture.rows)
        self.arrangement = arrange(len(keys), replace(room, mode="rows"), words=len(empty))
        self.styles.height = self.arrangement.rows
        if picture.has_fan() != self._has_fan:
            self._has_fan = picture.has_fan()
            self.lay_out()
        self.show_rows(keys, {key: row for row, key in enumerate(keys)}, empty)

    def cell_of(self, key: str, column: str, room: int) -> Cell:
        """What stands in that cell."""
        return gpu_cells(self.picture.rows[key], column, room)
