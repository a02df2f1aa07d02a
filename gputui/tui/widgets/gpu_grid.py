"""The GPUs: one line each, or cards, or several to a line, as the room allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.strip import Strip

from gputui.tui.commands import GRID_COMMANDS, bindings
from gputui.tui.present.cells import Cell, Column, Span, changed_runs, segments
from gputui.tui.present.gpu import gpu_cells
from gputui.tui.present.gpu_card import Line, card_lines, compact_line, compact_title
from gputui.tui.present.gpu_columns import GPU_COLUMNS
from gputui.tui.present.gpu_row import GpuPicture
from gputui.tui.present.gpu_tiles import Arrangement, GridRoom, arrange
from gputui.tui.present.style import BLUE, DIM, GROUND, PICKED, PICKED_FAINT, RAISED
from gputui.tui.widgets.line_table import LineTable
from gputui.tui.widgets.row_clicks import tell_click

_GROUND = Style(bgcolor=GROUND)
_RAISED = Style(bgcolor=RAISED)
_PICKED = Style(bgcolor=PICKED)
_PICKED_FAINT = Style(bgcolor=PICKED_FAINT)
_GAP: Span = (" ", Style())
_MARK: Span = ("▌", BLUE)


@dataclass(frozen=True)
class _Tile:
    """A GPU as it stands on the screen."""

    key: str
    picked: bool
    lines: tuple[Line, ...]


class GpuGrid(LineTable[str]):
    """GPUs by UUID; the cursor stays on its GPU however they are drawn."""

    BINDINGS: ClassVar = bindings(GRID_COMMANDS)
    COLUMNS: ClassVar = GPU_COLUMNS
    NOUN = "GPU"

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.picture = GpuPicture()
        self.arrangement = Arrangement()
        self._unread: frozenset[str] = frozenset(("fan",))
        self._tiles: list[_Tile] = []
        """Those in sight, in the order of reading."""

    @property
    def has_tiles(self) -> bool:
        """Whether several stand side by side."""
        return self.arrangement.kind != "rows"

    def columns(self) -> tuple[Column, ...]:
        """Without those of which no GPU has a reading."""
        return tuple(column for column in GPU_COLUMNS if column.key not in self._unread)

    def show(self, picture: GpuPicture, empty: tuple[Cell, ...], room: GridRoom) -> None:
        """Show these readings, or these words when there is no GPU."""
        self.picture = picture
        keys = tuple(picture.rows)
        arrangement = arrange(len(keys), room, words=len(empty))
        unread = picture.unread()
        if arrangement != self.arrangement or unread != self._unread:
            self.arrangement, self._unread = arrangement, unread
            self.keys = [key for key in self.keys if key in picture.rows]  # drawn before the new ones are shown
            self.styles.height = arrangement.rows
            self.lay_out()
        self.styles.height = arrangement.rows
        self.show_rows(keys, {key: row for row, key in enumerate(keys)}, empty)

    def cell_of(self, key: str, column: str, room: int) -> Cell:
        """What stands in that cell."""
        return gpu_cells(self.picture.rows[key], column, room)

    @property
    def height(self) -> int:
        """GPUs in sight; where there are tiles, whole bands of them."""
        if not self.has_tiles:
            return super().height
        return self._bands * self.arrangement.across

    @property
    def _titles_high(self) -> int:
        return 1 if self.arrangement.kind == "compact" else 0

    @property
    def _bands(self) -> int:
        return max(0, self.size.height - self._titles_high) // max(1, self.arrangement.height)

    def lay_out(self) -> None:
        """Draw all of it anew."""
        self._tiles = []
        super().lay_out()

    def on_focus(self) -> None:
        """Show where the keys go: Textual goes on to the table's own."""
        self._tiles = []

    on_blur = on_focus

    def action_down(self, step: int) -> None:
        """To the GPU below, or above."""
        across = self.arrangement.across if self.has_tiles else 1
        row = self._row + step * across
        if across > 1 and row >= len(self.keys) and self._row // across < (len(self.keys) - 1) // across:
            row = len(self.keys) - 1
        if 0 <= row < len(self.keys) or across == 1:
            self.move_to(row)

    def action_beside(self, step: int) -> None:
        """To the next GPU, or the one before."""
        self.move_to(self._row + step)

    def on_click(self, event: events.Click) -> None:
        """Select a GPU; open it at the second click."""
        if not self.has_tiles:
            return  # Textual goes on to the table's own
        event.prevent_default()
        made, y = self.arrangement, event.y - self._titles_high
        row = self.top + y // made.height * made.across + min(event.x // made.width, made.across - 1)
        if y >= 0 and row < min(len(self.keys), self.top + self.height):
            self.move_to(row)
            tell_click(self, event)

    def redraw(self) -> None:
        """Make what is in sight anew, and refresh the cells that differ from what is shown."""
        if not self.has_tiles:
            super().redraw()
            return
        if not self.is_attached or not self.size.width:
            return
        tiles = [self._tile(row) for row in range(self.top, min(len(self.keys), self.top + self.height))]
        for place, tile in enumerate(tiles):
            shown = self._tiles[place] if place < len(self._tiles) else None
            if tile != shown:
                self._refresh_tile(place, shown, tile)
        if len(tiles) < len(self._tiles):
            self.refresh()
        self._tiles = tiles

    def _look(self, top: int, event: events.MouseEvent) -> None:
        """By whole bands of tiles, one at least."""
        if self.has_tiles:
            made = self.arrangement
            notch = made.across * max(1, 3 // made.height)
            top = self.top + (notch if top > self.top else -notch)
        super()._look(top, event)

    def _tile(self, row: int) -> _Tile:
        key, made = self.keys[row], self.arrangement
        self.drawn += 1
        room = made.width - 2
        row_ = self.picture.rows[key]
        lines = (compact_line(row_, room),) if made.kind == "compact" else card_lines(row_, room, made.height)
        return _Tile(key, row == self._row, lines)

    def _refresh_tile(self, place: int, shown: _Tile | None, tile: _Tile) -> None:
        made = self.arrangement
        y = self._titles_high + place // made.across * made.height
        x = place % made.across * made.width
        if shown is None or shown.key != tile.key or shown.picked != tile.picked:
            self.refresh(Region(x, y, made.width, made.height))
            return
        for line, (before, after) in enumerate(zip(shown.lines, tile.lines, strict=True)):
            for start, end in changed_runs(before, after) if before != after else ():
                self.refresh(Region(x + 1 + start, y + line, end - start, 1))

    def render_line(self, y: int) -> Strip:
        """A line of all tiles that it goes through."""
        if not self.has_tiles or not self.keys:
            return super().render_line(y)
        made, inside = self.arrangement, y - self._titles_high
        if inside < 0:
            return self._compact_titles()
        band, line = divmod(inside, made.height)
        tiles = self._tiles[band * made.across : (band + 1) * made.across] if band < self._bands else []
        spans = [segment for tile in tiles for segment in self._drawn(tile, line)]
        strip = Strip(spans).adjust_cell_length(self.size.width, _GROUND)
        return self._with_position(strip) if y == 0 else strip

    def _drawn(self, tile: _Tile, line: int) -> list[Segment]:
        """One line of one tile: its mark, its cells, and the gap to the next."""
        ground = _GROUND
        if line == 0 and tile.picked:
            ground = _PICKED if self.has_focus else _PICKED_FAINT
        elif line == 0 and self.arrangement.kind == "cards":
            ground = _RAISED
        marked = _MARK if tile.picked and self.has_focus else _GAP
        return [*segments([marked, *tile.lines[line]], ground), *segments([_GAP], _GROUND)]

    def _titles(self) -> Strip:
        if self.keys:
            return super()._titles()
        return Strip(segments([(" GPU", BLUE if self.has_focus else DIM)], _RAISED)).adjust_cell_length(
            self.size.width, _RAISED
        )

    def _compact_titles(self) -> Strip:
        made = self.arrangement
        title = [_GAP, *compact_title(made.width - 2), _GAP]
        strip = Strip(segments(title * made.across, _RAISED)).adjust_cell_length(self.size.width, _RAISED)
        return self._with_position(strip)

    def _bring_into_sight(self) -> None:
        if not self.has_tiles:
            super()._bring_into_sight()
            return
        across = self.arrangement.across
        band, top = self._row // across, self.top // across
        top = min(top, band)
        if self._bands and band >= top + self._bands:
            top = band - self._bands + 1
        self._go_to(top * across)

    def _go_to(self, top: int) -> None:
        if top != self.top:
            self.top = top
            self._refresh_titles()

    def _clamp(self) -> None:
        if not self.has_tiles:
            super()._clamp()
            return
        across = self.arrangement.across
        bands = self.arrangement.bands(len(self.keys))
        self.top = max(0, min(self.top // across, bands - self._bands)) * across
