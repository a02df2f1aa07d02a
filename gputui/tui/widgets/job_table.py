"""The queue's pane: a tab at a time of jobs that live, jobs that ended, recurring jobs and reservations."""

from __future__ import annotations

from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip

from gputui.domain.job import Job
from gputui.domain.text import width
from gputui.tui.keymap import keymap_of
from gputui.tui.present.cells import Cell, Column, Placed, Span, fitted, segments, width_of
from gputui.tui.present.job import JobContext
from gputui.tui.present.style import BLUE, DIM, PLAIN, RAISED, STRONG
from gputui.tui.queue.columns import COLUMNS, Chosen
from gputui.tui.queue.rows import QueueRows
from gputui.tui.queue.sheets import EndedSheet, Key, QueueSheet, Sheet
from gputui.tui.queue.standing_sheets import RecurringSheet, WindowSheet
from gputui.tui.widgets.grip import Grip
from gputui.tui.widgets.line_table import LineTable
from gputui.tui.widgets.row_clicks import RIGHT

ROOM_FOR_TABS = 8
"""Rows of the pane from which on a line of it is for the tabs, whatever is shown."""
DOWN, UP = "▼", "▲"
_RAISED = Style(bgcolor=RAISED)


class TabClicked(Message):
    """A tab was clicked."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


class TitleClicked(Message):
    """The title of a column was clicked."""

    def __init__(self, column: str) -> None:
        super().__init__()
        self.column = column


class JobTable(LineTable[Key], Grip):
    """Rows by the key of the tab that is shown; each tab has a cursor of its own."""

    def __init__(
        self,
        rows: QueueRows,
        context: JobContext,
        *,
        id: str,  # noqa: A002 - Textual's word
        chosen: Chosen | None = None,
    ) -> None:
        super().__init__(id=id)
        self.rows = rows
        self.live = QueueSheet(rows, chosen or Chosen())
        self.ended = EndedSheet()
        self.recurring = RecurringSheet()
        self.windows = WindowSheet()
        self.sheets: tuple[Sheet, ...] = (self.live, self.ended, self.recurring, self.windows)
        self.sheet: Sheet = self.live
        self._cursors: dict[str, Key | None] = {}
        self._living: Key | None = None
        """The cursor's row when it was last shown, where a job of it lived."""
        self._known = context
        self._bar: tuple[Span, ...] = ()

    def show(self, context: JobContext) -> None:
        """Show the rows as they are now."""
        self._known = context
        sheet = self.sheet
        self.NOUN = sheet.noun
        self.show_rows(sheet.keys, sheet.positions, () if sheet.keys else keymap_of(self).cells(sheet.empty()))
        self._note_life()
        self._settle_head()  # last: it draws anew, and what was shown before may be there no more
        if (bar := self._bar_spans()) != self._bar:
            self._bar = bar
            if self.head > 1:
                self.refresh(Region(0, 0, self.size.width, 1))

    def move_to(self, row: int) -> None:
        """Put the cursor there."""
        super().move_to(row)
        self._note_life()

    def _note_life(self) -> None:
        self._living = self.cursor if self._lives() else None

    def stays_behind(self) -> bool:
        """Return whether the jobs of the cursor's row have just ended: their row is far below now."""
        return self.cursor is not None and self.cursor == self._living and not self._lives()

    def _lives(self) -> bool:
        return self.sheet is self.live and any(not job.state.is_terminal for job in self.jobs)

    def turn_to(self, sheet: Sheet) -> None:
        """Show another tab; its cursor is where it was left."""
        if sheet is not self.sheet:
            self._cursors[self.sheet.name] = self.cursor
            self.sheet = sheet
            self.cursor, self.top = self._cursors.get(sheet.name), 0
            self.follow_cursor()
            self.lay_again()

    def lay_again(self) -> None:
        """Lay the columns out anew: they are others, or the rows are."""
        self.keys, self._positions = (), {}
        self.lay_out()
        self.show(self._known)

    @property
    def job(self) -> Job | None:
        """The job under the cursor; the first of those that share its row."""
        return next(iter(self.jobs), None)

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs of the row under the cursor."""
        return self.sheet.jobs(self.cursor)

    def columns(self) -> tuple[Column, ...]:
        """Those of the tab."""
        return self.sheet.columns

    def cell_of(self, key: Key, column: str, room: int) -> Cell:
        """What stands in that cell."""
        return self.sheet.cell(key, column, self._known)

    def lead_of(self, key: Key) -> str:
        """Whether it is marked."""
        return self.sheet.lead(key)

    def title_of(self, placed: Placed) -> str:
        """The title, and which way it is sorted by."""
        column, sorting = placed.column, self.rows.sorting
        if self.sheet is not self.live or sorting.column != column.key:
            return column.title
        return column.title[: placed.width - 1] + (DOWN if sorting.is_down else UP)

    def heading(self, y: int) -> Strip:
        """The tabs."""
        del y
        return Strip(segments(fitted(self._bar, self.size.width), _RAISED)).adjust_cell_length(self.size.width, _RAISED)

    def on_click(self, event: events.Click) -> None:
        """Turn to a tab, sort by a column, or select a row."""
        if self.was_dragged or (event.button == RIGHT and event.y < self.head):
            event.prevent_default()
        elif event.y == 0 and self.head > 1:
            self._tab_clicked(event.x)
        elif event.y == self.head - 1 and (column := self.column_at(event.x)):
            self.post_message(TitleClicked(column.key))

    def _tab_clicked(self, x: int) -> None:
        at = 0
        for sheet, words in zip(self.sheets, self._tabs(), strict=True):
            at += width_of(words)
            if x < at:
                self.post_message(TabClicked(sheet.name))
                return

    def _settle_head(self) -> None:
        """A line for the tabs where there is room for it, or something to say in it."""
        wanted = 2 if self.size.height >= ROOM_FOR_TABS or self.sheet is not self.live or bool(self._state()) else 1
        if wanted != self.head:
            self.head = wanted
            self.lay_out()

    def _bar_spans(self) -> tuple[Span, ...]:
        left = [span for tab in self._tabs() for span in tab]
        right = self._state()
        room = self.size.width - width_of(left) - width(right) - 1
        return (*left, (" " * room, DIM), (right, PLAIN)) if room > 0 else self._short(right)

    def _short(self, right: str) -> tuple[Span, ...]:
        """Where there is no room for all: the tab that is shown, and how."""
        return ((f" {self.sheet.name} ", STRONG + BLUE), (f"{self._tab_keys()} ", DIM), (right, PLAIN))

    def _tab_keys(self) -> str:
        """`1-4`, or those there are."""
        keys = [keymap_of(self).key_of_tab(sheet.name) for sheet in self.sheets]
        return "1-4" if keys == ["1", "2", "3", "4"] else " ".join(filter(None, keys))

    def _tabs(self) -> list[tuple[Span, ...]]:
        counts = {"queue": self.rows.matching, "recurring": len(self.recurring.keys)}
        counts["reservations"] = len(self.windows.keys)
        tabs: list[tuple[Span, ...]] = []
        keymap = keymap_of(self)
        for sheet in self.sheets:
            is_here = sheet is self.sheet
            count = f" {counts[sheet.name]}" if counts.get(sheet.name) else ""
            style = STRONG + BLUE if is_here else DIM
            tabs.append(((f" {keymap.key_of_tab(sheet.name)} ", DIM), (f"{sheet.name}{count}", style), (" ", DIM)))
        return tabs

    def _state(self) -> str:
        """What is out of the ordinary: marks, the order, a filter."""
        if self.sheet is not self.live:
            return ""
        rows, words = self.rows, []
        if marked := len(self.live.marks):
            words.append(f"{marked} marked")
        if not rows.sorting.is_planned:
            column = COLUMNS[rows.sorting.column]
            words.append(f"by {column.title} {DOWN if rows.sorting.is_down else UP}")
        return " · ".join(words)
