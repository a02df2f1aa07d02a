"""Lines of cells and a table of lines, of which only what is visible and changed is drawn; and mouse gestures."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from msgspec import Struct
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Offset, Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from gputui.domain.text import plural
from gputui.tui.commands import MOVE_COMMANDS, bindings
from gputui.tui.present.cells import (
    BLUE,
    DIM,
    FAINT,
    GROUND,
    ON_GROUND,
    ON_PICKED,
    ON_PICKED_FAINT,
    ON_RAISED,
    RAISED,
    STRONG,
    TRACK,
    Cell,
    Column,
    PlacedColumn,
    Span,
    changed_runs,
    fitted,
    joined,
    lay_out,
    segments,
)


@dataclass(eq=False)
class GripMoved(Message):
    """Message that the upper edge of a pane was dragged down by that many rows."""

    pane: Widget
    rows: int


class _Held(Widget):
    _grips_at: int | None = None
    """Row or column of the screen at which it is held."""

    def on_mouse_up(self) -> None:
        if self._grips_at is not None:
            self._grips_at = None
            self.release_mouse()

    def on_mouse_release(self) -> None:
        self._grips_at = None


class Grip(_Held):
    was_dragged = False
    """True if the button was released after a drag, which is not a click."""

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self.was_dragged = False
        if event.y == 0 and event.button == 1:
            self._grips_at = event.screen_y
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._grips_at is not None and event.screen_y != self._grips_at:
            self.was_dragged = True
            self.post_message(GripMoved(self, event.screen_y - self._grips_at))
            self._grips_at = event.screen_y


RIGHT = 3


class RowOpened(Message):
    """Message that a row was double-clicked."""


@dataclass(eq=False)
class MenuAsked(Message):
    at: Offset


def tell_click(table: Widget, event: events.Click) -> None:
    if event.button == RIGHT:
        table.post_message(MenuAsked(event.screen_offset))
    elif event.chain == 2:
        table.post_message(RowOpened())


_LINE = Strip([Segment("│", Style(color=FAINT, bgcolor=GROUND))], 1)


@dataclass(eq=False)
class DividerMoved(Message):
    """Message that the line was dragged to the right by that many columns."""

    columns: int


class Divider(_Held):
    DEFAULT_CSS = "Divider { width: 1; height: 1fr; display: none; }"

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if event.button == 1:
            self._grips_at = event.screen_x
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._grips_at is not None and event.screen_x != self._grips_at:
            self.post_message(DividerMoved(event.screen_x - self._grips_at))
            self._grips_at = event.screen_x

    def render_line(self, y: int) -> Strip:
        return _LINE


class CellLines(Widget):
    """Text without markup, on the background of a panel or another one."""

    DEFAULT_CSS = "CellLines { height: 1; width: 1fr; }"

    def __init__(self, *, id: str, background: str = RAISED) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._ground = Style(bgcolor=background)
        self.lines: Sequence[Cell] = ()
        self._rows = 1

    def show(self, lines: Sequence[Cell]) -> None:
        before, self.lines = self.lines, lines
        for y, line in enumerate(lines):
            if y >= len(before) or before[y] != line:
                self.refresh(Region(0, y, self.size.width, 1))
        if len(lines) < len(before):
            self.refresh()

    def make_room(self, rows: int) -> None:
        if rows != self._rows:
            self.styles.height = self._rows = rows

    def fill(self, lines: Sequence[Cell]) -> None:
        """Set the lines, and the height to their number; a container scrolls if they do not fit."""
        self.make_room(len(lines))
        self.show(lines)

    def grow(self, lines: Sequence[Cell]) -> None:
        """Set the lines, and raise the height to their number; it never shrinks, so that nothing jumps."""
        self.make_room(max(self._rows, len(lines)))
        self.show(lines)

    def render_line(self, y: int) -> Strip:
        line = self.lines[y] if y < len(self.lines) else ()
        room = self.size.width
        return Strip(segments(fitted(line, room), self._ground)).adjust_cell_length(room, self._ground)


_MARGIN: Span = (" ", Style())


class Wheel(Widget):
    """Widget that the mouse's wheel scrolls, three lines at a time."""

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.turn_wheel(3, event.y)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.turn_wheel(-3, event.y)

    def turn_wheel(self, step: int, y: int) -> None:
        """Scroll by that many lines, with the pointer on line `y`."""
        raise NotImplementedError


class Rows(Wheel):
    """Widget of rows, to the first and the last of which keys go."""

    def move_to(self, row: int) -> None:
        """Move to a row, or to the nearest that there is."""
        raise NotImplementedError

    def action_first(self) -> None:
        self.move_to(0)

    def action_last(self) -> None:
        self.move_to(sys.maxsize)


class Page(Rows, can_focus=True):
    """A page that may be longer than the screen. Each cell is one line, cut at the right edge."""

    BINDINGS: ClassVar = bindings(MOVE_COMMANDS)
    DEFAULT_CSS = "Page { height: 1fr; }"

    class Scrolled(Message):
        """Message: other lines are visible."""

    top = 0
    _cells: Sequence[Cell] = ()
    _shown: Sequence[list[Span]] = ()

    def show(self, lines: Sequence[Cell]) -> None:
        self._cells = lines
        self.move_to(self.top)

    @property
    def position(self) -> str:
        """Return `1-20 of 44 lines`; empty if all are visible."""
        height, count = self.size.height, len(self._cells)
        return "" if count <= height else f"{self.top + 1}–{min(count, self.top + height)} of {count} lines"

    def action_down(self, step: int) -> None:
        self.move_to(self.top + step)

    def turn_wheel(self, step: int, y: int) -> None:
        self.move_to(self.top + step)

    def action_page(self, step: int) -> None:
        self.move_to(self.top + step * max(1, self.size.height - 2))

    def on_resize(self) -> None:
        self._shown = ()
        self.move_to(self.top)

    def move_to(self, row: int) -> None:
        before, self.top = self.top, max(0, min(row, len(self._cells) - self.size.height))
        width, height = self.size
        lines = [fitted(cell, max(0, width - 1)) for cell in self._cells[self.top : self.top + height]]
        lines += [fitted((), max(0, width - 1))] * (height - len(lines))
        for y, line in enumerate(lines):
            shown = self._shown[y] if y < len(self._shown) else None
            if shown is None:
                self.refresh(Region(0, y, width, 1))
            elif shown != line:
                for start, end in changed_runs(shown, line):
                    self.refresh(Region(1 + start, y, end - start, 1))
        self._shown = lines
        if self.top != before:
            self.post_message(self.Scrolled())

    def render_line(self, y: int) -> Strip:
        line = self._shown[y] if y < len(self._shown) else []
        return Strip(segments([_MARGIN, *line], ON_GROUND)).adjust_cell_length(self.size.width, ON_GROUND)


K = TypeVar("K")
_GAP = " "


class _Line(Struct, frozen=True):
    key: object
    picked: bool
    cells: tuple[tuple[Span, ...], ...]
    lead: str = _GAP
    """Character before the row, in the first cell."""
    is_whole: bool = False
    """True if the row is one cell, regardless of the columns."""


_BLANK = _Line(None, False, ())


class CursorMoved(Message):
    """Message that another row is selected, or that the user selected the same one."""


class LineTable(Rows, Generic[K], can_focus=True):
    """Rows with keys. The cursor stays on its key when rows move; only visible keys are drawn."""

    BINDINGS: ClassVar = bindings(MOVE_COMMANDS)
    DEFAULT_CSS = "LineTable { height: 1fr; }"
    COLUMNS: ClassVar[tuple[Column, ...]] = ()
    noun = "row"
    head = 1
    """Lines above the rows; the last of them has the titles."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.keys: Sequence[K] = ()
        self.cursor: K | None = None
        self.top = 0
        self._positions: Mapping[K, int] = {}
        self._row = 0
        self._is_followed = True
        """The view keeps the cursor in sight: until somebody scrolls away from it, or its row leaves the view."""
        self._gap: int | None = None
        """Row that the cursor's key left while the view stayed; keys move from here while it is invisible."""
        self._is_rearranged = True
        """True if the user asked for other rows, so that the view moves to the cursor."""
        self.placed: tuple[PlacedColumn, ...] = ()
        self._lines: list[_Line] = []
        self._empty: tuple[Cell, ...] = ()

    def cell_of(self, key: K, column: str, room: int) -> Cell:
        raise NotImplementedError

    def lead_of(self, key: K) -> str:
        return _GAP

    def title_of(self, placed: PlacedColumn) -> str:
        return placed.column.title

    def column_at(self, x: int) -> Column | None:
        return next((p.column for p in self.placed if p.x <= x <= p.x + p.width), None)

    def key_at(self, y: int) -> K | None:
        row = self.row_at(y - self.head)
        return self.keys[row] if row is not None else None

    def row_at(self, y: int) -> int | None:
        return self.top + y if 0 <= y < len(self.keys) - self.top else None

    def between(self, y: int) -> Cell | None:
        """Return what is on that line if it is no row; None: nothing."""
        return None

    def heading(self, y: int) -> Strip:
        return Strip.blank(self.size.width, ON_RAISED)

    def columns(self) -> tuple[Column, ...]:
        return self.COLUMNS

    def heir_of(self, key: K) -> K | None:
        """Return the row that takes the cursor of a row which is gone; None: the one in its place."""
        return None

    def whole_line(self, key: K) -> Cell | None:
        """Return the content of a row without columns; None for all others."""
        return None

    def rearrange(self) -> None:
        """Move the view to the cursor with the next rows, since the user asked for others."""
        self._is_rearranged = True
        self.follow_cursor()

    def show_rows(self, keys: Sequence[K], positions: Mapping[K, int], empty: tuple[Cell, ...] = ()) -> None:
        """Show these rows. The cursor stays on its key; if that is gone, on the row in its place.

        The view stays with the visible rows, whatever is added or removed above them. It follows the cursor's row if
        others push that out of it, but not if that row itself goes to another place.
        """
        count_changed = len(keys) != len(self.keys)
        empty_changed = empty != self._empty
        top = self._steady_top(keys, positions)
        before, row = self.keys, self._row
        self.keys, self._positions, self._empty = keys, positions, empty
        stood, was_in_sight = row, self.has_cursor_in_sight
        moved = self._find_cursor()
        if top is not None:
            stood += top - self.top
            self.top = top
            if was_in_sight and self._is_followed and self.height and not self.has_cursor_in_sight:
                self._is_followed = not self._has_jumped(before, row)
                self._gap = None if self._is_followed else stood
        self._is_rearranged = False
        self._place()
        if count_changed or (empty_changed and not keys):
            self._refresh_titles()
            if not keys or empty_changed:
                self.refresh()
        self.redraw()
        if moved:
            self.post_message(CursorMoved())

    def _steady_top(self, keys: Sequence[K], positions: Mapping[K, int]) -> int | None:
        """Return the first row with which most visible rows keep their places; None: the cursor decides."""
        if keys is self.keys or self._is_rearranged or not self.keys:
            return None
        if self.top == 0:
            return 0
        keys_before = (self.keys[row] for row in range(self.top, min(self.top + self.height, len(self.keys))))
        offsets = Counter(row - y for y, key in enumerate(keys_before) if (row := positions.get(key)) is not None)
        return max(0, min(offsets.most_common(1)[0][0], len(keys) - self.height)) if offsets else None

    def _has_jumped(self, before: Sequence[K], row: int) -> bool:
        """Return whether the cursor's row has passed half of those that were above it, or half of those below it."""
        places, here = self._positions, self._row
        over = [places[key] > here for key in before[max(0, row - self.height) : row] if key in places]
        under = [places[key] < here for key in before[row + 1 : row + 1 + self.height] if key in places]
        return any(passed and 2 * sum(passed) >= len(passed) for passed in (over, under))

    @property
    def height(self) -> int:
        return max(0, self.size.height - self.head)

    @property
    def page(self) -> int:
        return self.height

    @property
    def has_cursor_in_sight(self) -> bool:
        return self.top <= self._row < self.top + self.height

    def redraw(self) -> None:
        if self.placed and self.is_attached:
            # on a tiny terminal a fractional layout may give thousands of rows, none of which is visible
            for y in range(min(self.height, self.app.size.height)):
                self._redraw_line(y)

    def _redraw_line(self, y: int) -> None:
        row = self.row_at(y)
        key = self.keys[row] if row is not None else None
        whole = self.between(y) if key is None else self.whole_line(key)
        cells: tuple[tuple[Span, ...], ...] = ()
        if whole is not None:
            cells = (tuple(fitted(whole, max(0, self.size.width - 1))),)
        elif key is not None:
            cells = tuple(
                tuple(fitted(self.cell_of(key, p.column.key, p.width), p.width, right=p.column.right))
                for p in self.placed
            )
        lead = self.lead_of(key) if key is not None else _GAP
        line = _Line(key, key is not None and row == self._row, cells, lead, whole is not None)
        shown = self._lines[y] if y < len(self._lines) else None
        if line == shown:
            return
        is_row = shown is not None and line.cells and not (line.is_whole or shown.is_whole)
        if shown is None or not is_row or (line.key, line.picked, line.lead) != (shown.key, shown.picked, shown.lead):
            self.refresh(Region(0, y + self.head, self.size.width, 1))
        else:
            for placed, before, after in zip(self.placed, shown.cells, line.cells, strict=True):
                if before != after and (runs := changed_runs(before, after)):
                    start, end = runs[0][0], runs[-1][1]
                    self.refresh(Region(placed.x + start, y + self.head, end - start, 1))
        self._lines[y : y + 1] = [line]

    def move_to(self, row: int) -> None:
        if not self.keys:
            return
        left, top = self._row, self.top
        self._row = max(0, min(row, len(self.keys) - 1))
        self.cursor = self.keys[self._row]
        self.follow_cursor()
        self._bring_into_sight()
        drawn = range(self.top, self.top + len(self._lines))
        if top != self.top or left not in drawn or self._row not in drawn:
            self.redraw()
        else:
            for changed in {left, self._row}:
                self._redraw_line(changed - self.top)
        self.post_message(CursorMoved())

    def action_down(self, step: int) -> None:
        self.move_to(self._row_before_step(step) + step)

    def action_page(self, step: int) -> None:
        self.move_to(self._row_before_step(step) + step * max(1, self.page - 1))

    def follow_cursor(self) -> None:
        self._is_followed, self._gap = True, None

    def _row_before_step(self, step: int) -> int:
        """Return the row from which keys move: the cursor's, or the edge of the gap that it left."""
        if self._gap is None or self.has_cursor_in_sight:
            return self._row
        return self._gap - 1 if step > 0 else self._gap

    def on_resize(self) -> None:
        self.lay_out()

    def lay_out(self) -> None:
        self.placed = lay_out(self.columns(), self.size.width)
        self._lines = []
        self._place()
        self.refresh()
        self.redraw()

    def on_focus(self) -> None:
        self._lines = []
        self.redraw()
        self.refresh()

    on_blur = on_focus

    def on_click(self, event: events.Click) -> None:
        if (row := self.row_at(event.y - self.head)) is not None:
            self.move_to(row)
            tell_click(self, event)

    def turn_wheel(self, step: int, y: int) -> None:
        self.top += step
        self._clamp()
        self._is_followed, self._gap = self.has_cursor_in_sight, None
        self._refresh_titles()
        self.redraw()

    def _find_cursor(self) -> bool:
        before = self.cursor
        if before is not None and before not in self._positions:
            self.cursor = self.heir_of(before)
        if self.cursor is not None and (row := self._positions.get(self.cursor)) is not None:
            self._row = row
            return self.cursor != before
        self._row = max(0, min(self._row, len(self.keys) - 1))
        self.cursor = self.keys[self._row] if self.keys else None
        return self.cursor != before

    def _bring_into_sight(self) -> None:
        top = min(self.top, self._row)
        if self.height and self._row >= top + self.height:
            top = self._row - self.height + 1
        if top != self.top:
            self.top = top
            self._refresh_titles()

    def _clamp(self) -> None:
        self.top = max(0, min(self.top, len(self.keys) - self.height))

    def _place(self) -> None:
        if self._is_followed:
            self._bring_into_sight()
        self._clamp()

    def _refresh_titles(self) -> None:
        self.refresh(Region(0, self.head - 1, self.size.width, 1))

    def render_line(self, y: int) -> Strip:
        if y < self.head:
            return self._titles() if y == self.head - 1 else self.heading(y)
        row = y - self.head
        line = self._lines[row] if row < len(self._lines) else _BLANK
        if not line.cells:
            if self.keys or not self.size.width:
                return Strip.blank(self.size.width, ON_GROUND)
            spans: list[Span] = [(_GAP, DIM)]
            if row < len(self._empty):
                spans += fitted(self._empty[row], self.size.width - 1)
            return Strip(segments(spans, ON_GROUND)).adjust_cell_length(self.size.width, ON_GROUND)
        ground = (ON_PICKED if self.has_focus else ON_PICKED_FAINT) if line.picked else ON_GROUND
        picked = line.picked and self.has_focus and line.lead == _GAP
        return self._strip([("▌" if picked else line.lead, BLUE)], line.cells, ground)

    def _strip(self, start: list[Span], cells: Sequence[Sequence[Span]], ground: Style) -> Strip:
        spans = (*start, *joined(cells, (_GAP, TRACK)))
        return Strip(segments(spans, ground)).adjust_cell_length(self.size.width, ground)

    def _titles(self) -> Strip:
        style = STRONG + BLUE if self.has_focus else DIM
        cells = [fitted(((self.title_of(p), style),), p.width, right=p.column.right) for p in self.placed]
        return self._with_position(self._strip([("▌" if self.has_focus else _GAP, BLUE)], cells, ON_RAISED))

    def _with_position(self, strip: Strip) -> Strip:
        words = self.position_words()
        if words and not self.has_cursor_in_sight:
            words = f" cursor in row {self._row + 1:,} ·{words}"
        room = self.size.width - len(words)
        return Strip([*strip.crop(0, room), Segment(words, ON_RAISED + DIM)], self.size.width) if words else strip

    def position_words(self) -> str:
        if len(self.keys) <= self.height:
            return ""
        last = min(self.top + self.height, len(self.keys))
        return f" {self.top + 1}–{last} of {plural(len(self.keys), self.noun)} "
