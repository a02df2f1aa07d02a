"""A table that draws only the rows that can be seen, and sends only the cells that changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from gputui.domain.units import plural
from gputui.tui.commands import MOVE_COMMANDS, bindings
from gputui.tui.present.cells import Cell, Column, Placed, Span, changed_part, fitted, lay_out, segments
from gputui.tui.present.style import BLUE, DIM, GROUND, PICKED, PICKED_FAINT, RAISED, TRACK
from gputui.tui.widgets.row_clicks import tell_click

K = TypeVar("K")
_GROUND = Style(bgcolor=GROUND)
_RAISED = Style(bgcolor=RAISED)
_PICKED = Style(bgcolor=PICKED)
_PICKED_FAINT = Style(bgcolor=PICKED_FAINT)
_GAP = " "


@dataclass(frozen=True)
class _Line:
    """A row as it stands on the screen."""

    key: object
    picked: bool
    cells: tuple[tuple[Span, ...], ...]
    lead: str = _GAP
    """What stands before it, in the first cell."""


_BLANK = _Line(None, False, ())


class CursorMoved(Message):
    """Another row is selected, or the same one by hand."""


class LineTable(Widget, Generic[K], can_focus=True):
    """Rows known by a key. The cursor stays on its key when rows move; only keys in sight are ever drawn."""

    BINDINGS: ClassVar = bindings(MOVE_COMMANDS)
    DEFAULT_CSS = "LineTable { height: 1fr; }"
    COLUMNS: ClassVar[tuple[Column, ...]] = ()
    NOUN = "row"
    head = 1
    """Lines above the rows; the last of them has the titles."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.keys: Sequence[K] = ()
        self.cursor: K | None = None
        self.top = 0
        self.drawn = 0
        """How many rows were made: what a test counts."""
        self._positions: Mapping[K, int] = {}
        self._row = 0
        self._is_followed = True
        """The view keeps the cursor in sight: until somebody scrolls away from it, or its row leaves the view."""
        self._gap: int | None = None
        """Row that the cursor's key left when the view stayed behind: keys move from here while it is out of sight."""
        self._placed: tuple[Placed, ...] = ()
        self._lines: list[_Line] = []
        self._empty: tuple[Cell, ...] = ()

    def cell_of(self, key: K, column: str, room: int) -> Cell:
        """What stands in that cell."""
        raise NotImplementedError

    def lead_of(self, key: K) -> str:
        """The character before the row."""
        del key
        return _GAP

    def title_of(self, placed: Placed) -> str:
        """What stands above that column."""
        return placed.column.title

    def column_at(self, x: int) -> Column | None:
        """The column there."""
        return next((p.column for p in self._placed if p.x <= x <= p.x + p.width), None)

    def heading(self, y: int) -> Strip:
        """A line above the titles."""
        del y
        return Strip.blank(self.size.width, _RAISED)

    def columns(self) -> tuple[Column, ...]:
        """The columns there may be."""
        return self.COLUMNS

    def stays_behind(self) -> bool:
        """Return whether the view stays where it is, wherever the cursor's row went since it was last shown."""
        return False

    def show_rows(self, keys: Sequence[K], positions: Mapping[K, int], empty: tuple[Cell, ...] = ()) -> None:
        """Show these rows. The cursor stays on its key; if that is gone, on what took its place."""
        count_changed = len(keys) != len(self.keys)
        empty_changed = empty != self._empty
        self.keys, self._positions, self._empty = keys, positions, empty
        stood = self._row
        moved = self._find_cursor()
        if self._is_followed and self.stays_behind():
            self._is_followed, self._gap = False, stood
        if self._is_followed:
            self._bring_into_sight()
        self._clamp()
        if count_changed or (empty_changed and not keys):
            self._refresh_titles()
            if not keys or empty_changed:
                self.refresh()
        self.redraw()
        if moved:
            self.post_message(CursorMoved())

    @property
    def height(self) -> int:
        """Rows in sight, below the titles."""
        return max(0, self.size.height - self.head)

    @property
    def has_cursor_in_sight(self) -> bool:
        """Whether the cursor's row is in sight."""
        return self.top <= self._row < self.top + self.height

    def redraw(self) -> None:
        """Make the rows in sight anew, and refresh the cells that differ from what is shown."""
        if not self._placed or not self.is_attached:
            return
        # where a terminal has next to no rows, a layout of fractions may give thousands: none of them can be seen
        for y in range(min(self.height, self.app.size.height)):
            line = self._make(y)
            shown = self._lines[y] if y < len(self._lines) else None
            if line == shown:
                continue
            if (
                shown is None
                or not line.cells
                or line.key != shown.key
                or line.picked != shown.picked
                or line.lead != shown.lead
            ):
                self.refresh(Region(0, y + self.head, self.size.width, 1))
            else:
                self._refresh_cells(y, shown, line)
            self._lines[y : y + 1] = [line]

    def move_to(self, row: int) -> None:
        """Put the cursor there."""
        if not self.keys:
            return
        self._row = max(0, min(row, len(self.keys) - 1))
        self.cursor = self.keys[self._row]
        self.follow_cursor()
        self._bring_into_sight()
        self.redraw()
        self.post_message(CursorMoved())

    def action_down(self, step: int) -> None:
        """Move the cursor by rows."""
        self.move_to(self._row_before_step(step) + step)

    def action_page(self, step: int) -> None:
        """Move the cursor by what is in sight."""
        self.move_to(self._row_before_step(step) + step * max(1, self.height - 1))

    def follow_cursor(self) -> None:
        """Keep the cursor in sight from now on."""
        self._is_followed, self._gap = True, None

    def _row_before_step(self, step: int) -> int:
        """Return the row from which keys move: the cursor's, or the edge of the gap that it left."""
        if self._gap is None or self.has_cursor_in_sight:
            return self._row
        return self._gap - 1 if step > 0 else self._gap

    def action_first(self) -> None:
        """Move the cursor to the first row."""
        self.move_to(0)

    def action_last(self) -> None:
        """Move the cursor to the last row."""
        self.move_to(len(self.keys) - 1)

    def on_resize(self) -> None:
        """Lay the columns out anew."""
        self.lay_out()

    def lay_out(self) -> None:
        """Choose the columns that fit."""
        self._placed = lay_out(self.columns(), self.size.width)
        self._lines = []
        if self._is_followed:
            self._bring_into_sight()
        self._clamp()
        self.refresh()
        self.redraw()

    def on_focus(self) -> None:
        """Show where the keys go."""
        self._lines = []
        self.redraw()
        self.refresh()

    on_blur = on_focus

    def on_click(self, event: events.Click) -> None:
        """Select a row; open it at the second click, list what can be done by the right button."""
        row = self.top + event.y - self.head
        if event.y >= self.head and row < len(self.keys):
            self.move_to(row)
            tell_click(self, event)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Look further down; the cursor stays."""
        self._look(self.top + 3, event)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Look further up."""
        self._look(self.top - 3, event)

    def _look(self, top: int, event: events.MouseEvent) -> None:
        event.stop()
        self.top = top
        self._clamp()
        self._is_followed, self._gap = self.has_cursor_in_sight, None
        self._refresh_titles()
        self.redraw()

    def _find_cursor(self) -> bool:
        """The row the cursor is on now; whether it had to go to another key."""
        if self.cursor is not None and (row := self._positions.get(self.cursor)) is not None:
            self._row = row
            return False
        before = self.cursor
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

    def _refresh_titles(self) -> None:
        self.refresh(Region(0, self.head - 1, self.size.width, 1))

    def _make(self, y: int) -> _Line:
        row = self.top + y
        if row >= len(self.keys):
            return _BLANK
        self.drawn += 1
        key = self.keys[row]
        cells = tuple(
            tuple(fitted(self.cell_of(key, p.column.key, p.width), p.width, right=p.column.right)) for p in self._placed
        )
        return _Line(key, row == self._row, cells, self.lead_of(key))

    def _refresh_cells(self, y: int, shown: _Line, line: _Line) -> None:
        for placed, before, after in zip(self._placed, shown.cells, line.cells, strict=True):
            if before != after:
                start, end = changed_part(before, after)
                self.refresh(Region(placed.x + start, y + self.head, end - start, 1))

    def render_line(self, y: int) -> Strip:
        """The titles, or a row."""
        if y < self.head:
            return self._titles() if y == self.head - 1 else self.heading(y)
        row = y - self.head
        line = self._lines[row] if row < len(self._lines) else _BLANK
        if not line.cells:
            return self._empty_line(row)
        ground = (_PICKED if self.has_focus else _PICKED_FAINT) if line.picked else _GROUND
        picked = line.picked and self.has_focus and line.lead == _GAP
        mark: Span = ("▌" if picked else line.lead, BLUE)
        return self._strip([mark], line.cells, ground)

    def _strip(self, start: list[Span], cells: Sequence[Sequence[Span]], ground: Style) -> Strip:
        spans = list(start)
        for i, cell in enumerate(cells):
            if i:
                spans.append((_GAP, TRACK))
            spans += cell
        return Strip(segments(spans, ground)).adjust_cell_length(self.size.width, ground)

    def _empty_line(self, y: int) -> Strip:
        if self.keys or not self.size.width:
            return Strip.blank(self.size.width, _GROUND)
        spans: list[Span] = [(_GAP, DIM)]
        if y < len(self._empty):
            spans += fitted(self._empty[y], self.size.width - 1)
        return Strip(segments(spans, _GROUND)).adjust_cell_length(self.size.width, _GROUND)

    def _titles(self) -> Strip:
        style = BLUE if self.has_focus else DIM
        cells = [fitted(((self.title_of(p), style),), p.width, right=p.column.right) for p in self._placed]
        strip = self._strip([("▌" if self.has_focus else _GAP, BLUE)], cells, _RAISED)
        return self._with_position(strip)

    def _with_position(self, strip: Strip) -> Strip:
        """Which rows are in sight, at the right end, when not all are."""
        if len(self.keys) <= self.height:
            return strip
        last = min(self.top + self.height, len(self.keys))
        words = f" {self.top + 1}–{last} of {plural(len(self.keys), self.NOUN)} "
        if not self.has_cursor_in_sight:
            words = f" cursor in row {self._row + 1:,} ·{words}"
        room = self.size.width - len(words)
        return Strip([*strip.crop(0, room), Segment(words, _RAISED + DIM)], self.size.width)
