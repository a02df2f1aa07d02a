"""Pane of the GPUs: a table, grouped by node where there are several, or cards, depending on the room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import ClassVar

from msgspec import Struct
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.geometry import Region
from textual.strip import Strip

from gputui.domain.gpu import index_of
from gputui.domain.text import plural
from gputui.tui.commands import GRID_COMMANDS, MOVE_COMMANDS, bindings
from gputui.tui.present.cells import (
    BLUE,
    DIM,
    ON_GROUND,
    ON_PICKED,
    ON_PICKED_FAINT,
    ON_RAISED,
    STRONG,
    Cell,
    Column,
    PlacedColumn,
    Span,
    cell,
    changed_runs,
    segments,
    span_words,
)
from gputui.tui.present.gpu import (
    LINE_FULL,
    card_lines,
    compact_line,
    compact_title,
    gpu_cells,
    node_line,
    node_titles,
    sick_words,
)
from gputui.tui.present.gpu_rows import GPU_COLUMNS, GpuNode, GpuPicture
from gputui.tui.widgets.line_table import CursorMoved, LineTable, Rows, tell_click


class GpuTable(LineTable[str]):
    """Table of GPUs by UUID; those of several nodes are grouped under a line for each node."""

    BINDINGS: ClassVar = bindings(GRID_COMMANDS)
    COLUMNS: ClassVar = GPU_COLUMNS
    noun = "GPU"

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._picture = GpuPicture()
        self._columns = self._picture.columns(("fan",))
        self.nodes: Mapping[str, GpuNode] = {}
        """The nodes by the keys of their lines, in the order shown; empty if there is only one."""
        self.by_idleness = False
        self.opened: dict[str, bool] = {}
        """Whether each node is open that the user has opened or closed."""
        self._are_open = False
        """True if all others are."""

    def show_nodes(self, picture: GpuPicture, room: int) -> list[str]:
        """Set the nodes; return the keys of their lines and of the GPUs below them."""
        nodes = list(picture.nodes)
        if self.by_idleness:
            nodes.sort(key=lambda node: (-node.free, node.load or 0.0))
        self.nodes = {node.key: node for node in nodes}
        self._are_open = len(nodes) + len(picture.rows) <= room
        return [key for node in nodes for key in (node.key, *self.uuids(node.key))]

    @property
    def are_closed(self) -> bool:
        return bool(self.nodes) and not any(map(self.is_open, self.nodes))

    def is_open(self, key: str) -> bool:
        return self.opened.get(key, self._are_open)

    def node_of(self, key: str | None) -> str | None:
        """Return the key of the node of a line: the node itself, or a GPU in it."""
        if key in self.nodes:
            return key
        nodes = self.nodes.values()
        return next((node.key for node in nodes if any(key == row.view.gpu.uuid for row in node.rows)), None)

    def uuids(self, key: str | None) -> tuple[str, ...]:
        node = self.nodes.get(key) if key is not None else None
        return tuple(row.view.gpu.uuid for row in node.rows) if node is not None and self.is_open(node.key) else ()

    def columns(self) -> tuple[Column, ...]:
        return self._columns

    def show(self, picture: GpuPicture, positions: Mapping[str, int], empty: tuple[Cell, ...]) -> None:
        titled = self._titled()
        self._picture, columns = picture, picture.columns(picture.unread())
        if self._titled() != titled:
            self._refresh_titles()
        if columns != self._columns:
            self._columns = columns
            self.keys = [key for key in self.keys if key in positions]  # drawn before the new ones are shown
            self.lay_out()
        self.show_rows(tuple(positions), positions, empty)

    def title_of(self, placed: PlacedColumn) -> str:
        title = self._picture.title_of(placed)
        return f"{title} {span_words(placed.width, self._span())}" if placed.column.key == "history" else title

    def _titled(self) -> tuple[int, str, int]:
        return self._span(), self._picture.model, len(self._picture.rows)

    def _span(self) -> int:
        return next((row.look.seconds for row in self._picture.rows.values()), 0)

    def cell_of(self, key: str, column: str, room: int) -> Cell:
        row = self._picture.rows[key]
        return cell(index_of(row.view), DIM) if column == "index" else gpu_cells(row, column, room)

    def whole_line(self, key: str) -> Cell | None:
        if (node := self.nodes.get(key)) is not None:
            return node_line(node, tuple(self.nodes.values()), is_open=self.is_open(key))
        return sick_words(self._picture.rows[key], self.size.width, has_model=not self._picture.model)

    def redraw(self) -> None:
        if self.display:
            super().redraw()

    def action_beside(self, step: int) -> None:
        self.move_to(self._row + step)

    def _titles(self) -> Strip:
        if self.keys and self.are_closed:
            style = STRONG + BLUE if self.has_focus else DIM
            spans = [("▌" if self.has_focus else " ", BLUE), *node_titles(tuple(self.nodes.values()), style)]
            strip = Strip(segments(spans, ON_RAISED)).adjust_cell_length(self.size.width, ON_RAISED)
            return self._with_position(strip)
        if self.keys:
            return super()._titles()
        words = segments([(" GPU", BLUE if self.has_focus else DIM)], ON_RAISED)
        return Strip(words).adjust_cell_length(self.size.width, ON_RAISED)


_GAP: Span = (" ", Style())
_MARK: Span = ("▌", BLUE)


class _Tile(Struct, frozen=True):
    key: str
    picked: bool
    lines: tuple[Cell, ...]


class GpuCards(Rows, can_focus=True):
    """Tiles of GPUs by UUID, one of which is selected. Only changed cells are redrawn."""

    BINDINGS: ClassVar = [*bindings(MOVE_COMMANDS), *bindings(GRID_COMMANDS)]
    DEFAULT_CSS = "GpuCards { height: 1fr; }"

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.keys: Sequence[str] = ()
        self.cursor: str | None = None
        self.top = 0
        self._picture = GpuPicture()
        self._unread: frozenset[str] = frozenset()
        self._arrangement = Arrangement()
        self._is_followed = True
        """True if the view keeps the cursor visible, until the user scrolls away from it."""
        self._tiles: list[_Tile] = []

    def show(self, picture: GpuPicture, positions: Mapping[str, int], arrangement: Arrangement) -> None:
        count_changed = len(positions) != len(self.keys)
        self._picture, self.keys, self._unread = picture, tuple(positions), picture.unread_fields()
        moved = self.cursor not in positions
        if moved:
            self.cursor = self.keys[0] if self.keys else None
        if arrangement != self._arrangement:
            self._arrangement = arrangement
            self.lay_out()
        if self._is_followed:
            self._bring_into_sight()
        self._clamp()
        if count_changed:
            self.refresh()
        self.redraw()
        if moved:
            self.post_message(CursorMoved())

    @property
    def height(self) -> int:
        return self._bands * self._arrangement.across

    @property
    def head(self) -> int:
        return int(self._arrangement.kind == "compact")

    @property
    def _row(self) -> int:
        return self.keys.index(self.cursor) if self.cursor in self.keys else 0

    @property
    def _bands(self) -> int:
        return max(0, self.size.height - self.head) // max(1, self._arrangement.height)

    # movement

    def move_to(self, row: int) -> None:
        if self.keys:
            self.cursor = self.keys[max(0, min(row, len(self.keys) - 1))]
            self._is_followed = True
            self._bring_into_sight()
            self.redraw()
            self.post_message(CursorMoved())

    def action_down(self, step: int) -> None:
        across = self._arrangement.across
        row = self._row + step * across
        if across > 1 and row >= len(self.keys) and self._row // across < (len(self.keys) - 1) // across:
            row = len(self.keys) - 1
        if 0 <= row < len(self.keys) or across == 1:
            self.move_to(row)

    def action_beside(self, step: int) -> None:
        self.move_to(self._row + step)

    def action_page(self, step: int) -> None:
        self.move_to(self._row + step * max(1, self.height - 1))

    def on_click(self, event: events.Click) -> None:
        layout, y = self._arrangement, event.y - self.head
        row = self.top + y // layout.height * layout.across + min(event.x // max(1, layout.width), layout.across - 1)
        if y >= 0 and row < min(len(self.keys), self.top + self.height):
            self.move_to(row)
            tell_click(self, event)

    def turn_wheel(self, step: int, y: int) -> None:
        layout = self._arrangement  # by whole bands of tiles, at least one
        self._go_to(self.top + (1 if step > 0 else -1) * layout.across * max(1, abs(step) // layout.height))
        self._is_followed = self.top <= self._row < self.top + self.height

    def _bring_into_sight(self) -> None:
        across = self._arrangement.across
        band, top = self._row // across, self.top // across
        top = min(top, band)
        if self._bands and band >= top + self._bands:
            top = band - self._bands + 1
        self._go_to(top * across)

    def _go_to(self, top: int) -> None:
        before, self.top = self.top, top
        self._clamp()
        if self.top != before:
            self.refresh(Region(0, 0, self.size.width, 1))
            self.redraw()

    def _clamp(self) -> None:
        across = self._arrangement.across
        bands = self._arrangement.bands(len(self.keys))
        self.top = max(0, min(self.top // across, bands - self._bands)) * across

    # drawing

    def lay_out(self) -> None:
        self._tiles = []
        if self._is_followed:
            self._bring_into_sight()
        self._clamp()
        self.refresh()
        self.redraw()

    on_resize = on_focus = on_blur = lay_out

    def redraw(self) -> None:
        """Update the visible tiles, and refresh the changed cells; does nothing while rows are shown instead."""
        if not self.is_attached or not self.size.width or not self.display:
            return
        layout, tiles = self._arrangement, []
        for key in self.keys[self.top : self.top + self.height]:
            row, room = self._picture.rows[key], layout.width - 2
            lines: tuple[Cell, ...] = (compact_line(row, room),) if layout.kind == "compact" else ()
            lines = lines or card_lines(row, room, layout.height, self._unread)
            tiles.append(_Tile(key, key == self.cursor, lines))
        changed: list[Region] = []
        for place, tile in enumerate(tiles):
            shown = self._tiles[place] if place < len(self._tiles) else None
            if tile != shown:
                changed += self._changed_regions(place, shown, tile)
        if changed:
            self.refresh(*changed)  # all at once: each call costs more than a region
        if len(tiles) < len(self._tiles):
            self.refresh()
        self._tiles = tiles

    def _changed_regions(self, place: int, shown: _Tile | None, tile: _Tile) -> list[Region]:
        layout = self._arrangement
        y = self.head + place // layout.across * layout.height
        x = place % layout.across * layout.width
        if shown is None or (shown.key, shown.picked, len(shown.lines)) != (tile.key, tile.picked, len(tile.lines)):
            return [Region(x, y, layout.width, layout.height)]
        return [
            Region(x + 1 + start, y + line, end - start, 1)
            for line, (before, after) in enumerate(zip(shown.lines, tile.lines, strict=True))
            if before != after
            for start, end in changed_runs(before, after)
        ]

    def render_line(self, y: int) -> Strip:
        layout, inside = self._arrangement, y - self.head
        if inside < 0:
            title = [_GAP, *compact_title(layout.width - 2), _GAP]
            strip = Strip(segments(title * layout.across, ON_RAISED)).adjust_cell_length(self.size.width, ON_RAISED)
            return self._with_position(strip)
        band, line = divmod(inside, layout.height)
        drawn: list[Segment] = []
        for tile in self._tiles[band * layout.across : (band + 1) * layout.across]:  # there are no others than fit
            ground = ON_RAISED if line == 0 and layout.kind == "cards" else ON_GROUND
            if line == 0 and tile.picked:
                ground = ON_PICKED if self.has_focus else ON_PICKED_FAINT
            mark = _MARK if tile.picked and self.has_focus else _GAP
            drawn += [*segments([mark, *tile.lines[line]], ground), *segments([_GAP], ON_GROUND)]
        strip = Strip(drawn).adjust_cell_length(self.size.width, ON_GROUND)
        return self._with_position(strip) if y == 0 else strip

    def _with_position(self, strip: Strip) -> Strip:
        if len(self.keys) <= self.height:
            return strip
        last = min(self.top + self.height, len(self.keys))
        words = f" {self.top + 1}–{last} of {plural(len(self.keys), 'GPU')} "
        room = self.size.width - len(words)
        return Strip([*strip.crop(0, room), Segment(words, ON_RAISED + DIM)], self.size.width)


class GpuGrid(Vertical):
    """Contains a table and cards, one of which is shown; cursor and focus move from one to the other."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.picture = GpuPicture()
        self.arrangement = Arrangement()
        self.table = GpuTable(id="gpu-table")
        self.cards = GpuCards(id="gpu-cards")
        self.cards.display = False

    def compose(self) -> ComposeResult:
        yield self.table
        yield self.cards

    @property
    def shown(self) -> GpuTable | GpuCards:
        return self.cards if self.has_tiles else self.table

    @property
    def has_tiles(self) -> bool:
        return self.arrangement.kind != "rows"

    def show(self, picture: GpuPicture, empty: tuple[Cell, ...], room: GridRoom) -> None:
        self.picture = picture
        positions = {key: row for row, key in enumerate(picture.rows)}
        before, self.arrangement = self.shown, arrange(len(positions), room, words=len(empty))
        kind, mode = self.arrangement.kind, room.mode
        # below their nodes, if there are several and cards would not fit or be empty
        if picture.nodes and mode != "compact" and (kind != "cards" or (mode == "auto" and picture.has_no_probe)):
            table, most = self.table, room.fixed or room.most
            was_closed = table.are_closed
            keys = table.show_nodes(picture, most - 1)
            table.noun = "node" if table.are_closed else "line"
            self.arrangement = Arrangement(rows=room.fixed or min(len(keys) + 1, max(2, most)))
            if table.are_closed != was_closed:
                table.refresh()
            positions = {key: row for row, key in enumerate(keys)}
        if self.shown is not before:
            shown = self.shown
            shown.cursor, had_focus = before.cursor, before.has_focus
            shown.display = True
            if had_focus:
                shown.focus()
            before.display = False
            shown.lay_out()
        self.styles.height = self.arrangement.rows
        if self.has_tiles:
            self.cards.show(picture, positions, self.arrangement)
        else:
            self.table.show(picture, positions, empty)

    @property
    def node(self) -> str | None:
        key = self.table.node_of(self.cursor) if self.has_nodes else None
        return self.table.nodes[key].name if key else None

    @property
    def has_nodes(self) -> bool:
        return not self.has_tiles and bool(self.table.nodes)

    def fold(self) -> None:
        table = self.table
        if (key := table.node_of(self.cursor)) is not None:
            table.opened[key] = not table.is_open(key)
            table.cursor = key

    def show_whole_node(self) -> None:
        """Scroll so that the GPUs of the selected node are visible as far as they fit."""
        row = self.keys.index(self.table.cursor) if self.table.cursor in self.keys else 0
        count = len(self.table.uuids(self.table.cursor))
        self.move_to(row + min(count, self.shown.height - 1))
        self.move_to(row)

    def fold_all(self) -> None:
        table = self.table
        table.cursor = table.node_of(self.cursor)
        table.opened = dict.fromkeys(table.nodes, table.are_closed)

    def sort(self) -> bool:
        self.table.by_idleness = not self.table.by_idleness
        self.table.rearrange()
        return self.table.by_idleness

    def focus(self, scroll_visible: bool = True) -> GpuGrid:
        self.shown.focus(scroll_visible)
        return self

    # the widget that is shown

    @property
    def keys(self) -> Sequence[str]:
        return self.shown.keys

    @property
    def cursor(self) -> str | None:
        return self.shown.cursor

    def move_to(self, row: int) -> None:
        self.shown.move_to(row)


CARD_LEAST, CARD_MOST = 6, 36
"""Minimum and maximum rows of a card: title, four bars and the elapsed time, or with high graphs between them."""
CARD_SHORT = 5
"""Minimum rows in a pane whose height is fixed, as if it fills the screen: without the elapsed time."""
CARD_WIDTH = 29
"""Minimum cells of a card, including the one that separates it from the next."""
CARD_WIDEST = 110
"""Cells from which two cards are better than one."""


class GridRoom(Struct, frozen=True):
    width: int = 80
    most: int = 12
    fixed: int | None = None
    """Fixed number of rows; None: as many as needed."""
    mode: str = "auto"
    """`auto`, `cards`, `rows` or `compact`."""


class Arrangement(Struct, frozen=True):
    kind: str = "rows"
    """`cards`, `rows` or `compact`."""
    across: int = 1
    width: int = 0
    """Cells of each, including the separator; only if there are several side by side."""
    height: int = 1
    rows: int = 2
    """Rows of the whole grid, including titles."""

    def bands(self, count: int) -> int:
        return ceil(count / self.across)


def arrange(count: int, room: GridRoom, *, words: int = 1) -> Arrangement:
    """Return the best arrangement of that many GPUs; `words`: the lines shown if there is none."""
    most = room.fixed or room.most
    if count == 0:
        return Arrangement(rows=room.fixed or 1 + max(1, words))
    rows = Arrangement(rows=room.fixed or min(count + 1, max(2, room.most)))
    if room.mode in {"rows", "compact"}:
        return rows if room.mode == "rows" else _compact(count, room)
    if (cards := _cards(count, room)) is not None:
        return cards
    if room.mode != "cards":
        return rows if count + 1 <= most else _compact(count, room)
    across = max(1, min(count, room.width // CARD_WIDTH))  # as many as fit; the others are reached by scrolling
    height = min(CARD_LEAST, max(3, most))
    lines = room.fixed or min(max(height, most // height * height), ceil(count / across) * height)
    return Arrangement("cards", across, room.width // across, height, lines)


def _cards(count: int, room: GridRoom) -> Arrangement | None:
    """Return cards for all GPUs; None if they do not fit. Unless resized they take a little less than allowed."""
    best: tuple[tuple[int, bool], Arrangement] | None = None
    width, most = room.width, room.fixed or room.most * 9 // 10
    least = CARD_LEAST if room.fixed is None else CARD_SHORT
    for across in range(1, min(count, max(1, width // CARD_WIDTH)) + 1):
        bands = ceil(count / across)
        height = min(CARD_MOST, most // bands)
        is_too_wide = width // across > CARD_WIDEST and across < count
        if height < least or width // across < CARD_WIDTH or is_too_wide:
            continue
        found = Arrangement("cards", across, min(CARD_WIDEST, width // across), height, room.fixed or bands * height)
        score = (min(height, 9), count % across == 0)  # rows from which a wider card is better than a higher one
        if best is None or score > best[0]:
            best = (score, found)
    return best[1] if best else None


def _compact(count: int, room: GridRoom) -> Arrangement:
    """Return as few tiles side by side as show all GPUs at once; if impossible, as many as fit."""
    most = room.fixed or room.most
    full = max(1, room.width // LINE_FULL)
    widest = max(1, room.width // 38)  # cells from which more of them side by side are better
    narrowest = max(1, room.width // 26)  # minimum cells of a GPU that shares its line with others
    across = next((n for n in range(widest, narrowest + 1) if ceil(count / n) + 1 <= most), narrowest)
    if room.mode == "auto" and ceil(count / full) + 1 <= most * 2 // 3:
        across = full
    across = max(1, min(across, count))
    across = ceil(count / ceil(count / across))  # as few side by side as the same number of lines holds: wider and even
    rows = room.fixed or min(ceil(count / across) + 1, max(2, most))
    return Arrangement("compact", across, room.width // across, 1, rows)
