"""The queue's pane with tabs; live jobs are in sections, each of which scrolls on its own lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from msgspec.structs import replace
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip

from gputui.domain.arrays import count
from gputui.domain.job import Job
from gputui.domain.queue_columns import absent_columns
from gputui.domain.text import width
from gputui.tui.commands import BY_NAME
from gputui.tui.keymap import ALL_THERE, Lacking, keymap_of, lack
from gputui.tui.present.cells import BLUE, DIM, PLAIN, STRONG, Cell, Column, PlacedColumn, Span, lay_out, width_of
from gputui.tui.present.job import JobContext
from gputui.tui.widgets.line_table import RIGHT, CursorMoved, Grip, LineTable, RowOpened
from gputui.tui.widgets.queue_folding import FOLD, FOOT, WORDS, Extent, Section, View, section_of, visible
from gputui.tui.widgets.queue_rows import SERVER, ChosenColumns, QueueRows, fitting
from gputui.tui.widgets.queue_tabs import FinishedTab, Key, QueueTab, RecurringTab, ReservationsTab, TabModel
from gputui.tui.widgets.status_bars import title_line

K = TypeVar("K")


class SectionedTable(LineTable[K]):
    """Rows in sections while `extent` is set; else one list, as any other table."""

    extent: Extent | None = None
    view = View()

    def row_at(self, y: int) -> int | None:
        if self.extent is None:
            return super().row_at(y)
        return self.view.lines[y] if 0 <= y < len(self.view.lines) and self.view.lines[y] >= 0 else None

    @property
    def page(self) -> int:
        here = self.extent.section(self._row) if self.extent is not None else None
        return super().page if here is None else self.view.shares[here]

    @property
    def has_cursor_in_sight(self) -> bool:
        return super().has_cursor_in_sight if self.extent is None else self._row in self.view.lines

    def show_rows(self, keys: Sequence[K], positions: Mapping[K, int], empty: tuple[Cell, ...] = ()) -> None:
        if self.extent is None:
            super().show_rows(keys, positions, empty)
            return
        tops = (0, 0, 0) if self._is_rearranged else self._steady_tops(keys, positions)
        self._is_rearranged = False
        self.keys, self._positions, self._empty = keys, positions, empty
        moved = self._find_cursor()
        self._settle(tops)
        self.redraw()
        if moved:
            self.post_message(CursorMoved())

    def _steady_tops(self, keys: Sequence[K], positions: Mapping[K, int]) -> tuple[int, ...]:
        """Return the first row of each section with which most of its visible rows keep their places."""
        if keys is self.keys or self.extent is None:
            return self.view.tops
        votes: list[Counter[int]] = [Counter(), Counter(), Counter()]
        counts = [0, 0, 0]
        for at in self.view.lines:
            key = self.keys[at] if 0 <= at < len(self.keys) else None
            row = positions.get(key) if key is not None else None
            section = self.extent.section(row) if row is not None else None
            if row is not None and section is not None:
                votes[section][row - self.extent.starts[section] - counts[section]] += 1
                counts[section] += 1
        return tuple(
            max(0, vote.most_common(1)[0][0]) if vote and top else top
            for vote, top in zip(votes, self.view.tops, strict=True)
        )

    def _settle(self, tops: Sequence[int]) -> None:
        if self.extent is not None:
            row = self._row if self._is_followed and self.keys else None
            self.view = visible(self.extent, self.height, row, tops, words=len(self.words()))

    def words(self) -> tuple[Cell, ...]:
        return ()

    def move_to(self, row: int) -> None:
        """Move the cursor to a row. A section that it leaves shows its first rows again."""
        if self.extent is None or not self.keys:
            super().move_to(row)
            return
        left, before = self._row, self.view.lines
        self._row = max(0, min(row, len(self.keys) - 1))
        self.cursor = self.keys[self._row]
        self.follow_cursor()
        here = self.extent.section(self._row)
        self._settle([top if section is here else 0 for section, top in zip(Section, self.view.tops, strict=True)])
        if before != self.view.lines:
            self.redraw()
            self._refresh_titles()
        else:
            for y, at in enumerate(before):
                if at in (left, self._row):
                    self._redraw_line(y)
        self.post_message(CursorMoved())

    def turn_wheel(self, step: int, y: int) -> None:
        if self.extent is None:
            super().turn_wheel(step, y)
            return
        row = next((at for at in reversed(self.view.lines[: max(1, y - self.head + 1)]) if at >= 0), None)
        section = self.extent.section(row) if row is not None else None
        if section is None:
            return
        tops = list(self.view.tops)
        tops[section] += step
        self._is_followed = False
        self._settle(tops)
        self._is_followed = self.has_cursor_in_sight
        self._refresh_titles()
        self.redraw()

    def _place(self) -> None:
        if self.extent is None:
            super()._place()
        else:
            self._settle(self.view.tops)


_WIDE = 100
"""Columns from which words are written in full."""
ROOM_FOR_TABS = 9
"""Rows of the pane from which the line of tabs is always shown."""
DOWN, UP = "▼", "▲"


@dataclass(eq=False)
class TitleClicked(Message):
    column: str


class JobTable(SectionedTable[Key], Grip):
    """Rows by the key of the current tab; each tab has its own cursor."""

    def __init__(
        self,
        rows: QueueRows,
        context: JobContext,
        *,
        id: str,  # noqa: A002 - Textual's word
        chosen: ChosenColumns | None = None,
        lacking: Callable[[], Lacking] = lambda: ALL_THERE,
    ) -> None:
        """`lacking` returns what the cluster lacks now, whose tabs and columns are absent."""
        super().__init__(id=id)
        self.rows = rows
        self.live = QueueTab(rows, chosen or ChosenColumns())
        self.ended = FinishedTab()
        self.recurring = RecurringTab()
        self.windows = ReservationsTab()
        self._lacking = lacking
        self._sheets: tuple[TabModel, ...] = (self.live, self.ended, self.recurring, self.windows)
        self.sheet: TabModel = self.live
        self._cursors: dict[str, Key | None] = {}
        self._known = context
        self._bar: tuple[Span, ...] = ()
        self._position = ""
        """Words at the right end of the titles, as they were drawn."""
        self._needs: tuple[int, frozenset[str]] = (0, frozenset())

    @property
    def sheets(self) -> list[TabModel]:
        lacking = self._lacking()
        return [sheet for sheet in self._sheets if not lack(BY_NAME[f"tab_{sheet.name}"], lacking)]

    def show(self, context: JobContext) -> None:
        self.live.absent = absent_columns(self._lacking())
        room = {placed.column.key: placed.width for placed in self.placed}
        sheet = self.sheet
        digits = self.rows.id_digits if sheet is self.live else 0
        self._known = replace(context, room=room, loads=self.rows.loads, id_digits=digits)
        self.noun = sheet.noun
        self.rows.height = self.height if sheet is self.live else self.rows.height
        self.extent = self.rows.extent if sheet is self.live and sheet.keys else None
        self.show_rows(sheet.keys, sheet.positions, () if sheet.keys else keymap_of(self).cells(sheet.empty()))
        if (position := self.position_words()) != self._position:
            self._position = position
            self._refresh_titles()
        id_width = self.rows.id_width if sheet is self.live else self.ended.id_width
        if (needs := (id_width, self.rows.varied | self.live.absent.keys())) != self._needs:
            self._needs = needs  # longer ids, or jobs of a second user
            self.lay_out()
        self.rows.stay(job.id for job in self._held())
        self._settle_head()  # last, since it redraws, and previous rows may be gone
        if (bar := (*self._bar_spans(), (self._aside(), PLAIN))) != self._bar:
            self._bar = bar
            if self.head > 1:
                self.refresh(Region(0, 0, self.size.width, 1))

    def _held(self) -> tuple[Job, ...]:
        """Return the jobs that keep their place when they end: those under the cursor of the queue."""
        return self.jobs if self.sheet is self.live else ()

    def move_to(self, row: int) -> None:
        super().move_to(row)
        self.rows.stay(job.id for job in self._held())

    def heir_of(self, key: Key) -> Key | None:
        return self.rows.heir(key) if isinstance(key, int) and self.sheet is self.live else None

    def whole_line(self, key: Key) -> Cell | None:
        return self._foot() if self.is_fold(key) else None

    def _foot(self) -> Cell:
        """Return ended jobs, and what of the sections is hidden, like `+3 running`."""
        words = self.rows.fold_line() if self.rows.extent.has_ended else ()
        extent, view, hidden = self.rows.extent, self.view, []
        for section, known in ((Section.RUNNING, self.rows.running), (Section.WAITING, self.rows.waiting)):
            if view.shares[section] < extent.counts[section]:
                start = extent.starts[section] + view.tops[section]
                keys = self.rows.keys[start : start + view.shares[section]]
                jobs = (job for key in keys for job in self.rows.jobs_of(key) if section_of(job) is section)
                if (left := known - count(jobs)) > 0:
                    hidden.append(f"+{left:,} {section.name.lower()}")
        return (*words, ("   " if words and hidden else "", DIM), ("  ".join(hidden), PLAIN))

    def words(self) -> tuple[Cell, ...]:
        return () if self.rows.filter else keymap_of(self).cells(self.live.empty())

    def between(self, y: int) -> Cell | None:
        at = self.view.lines[y] if self.extent is not None and y < len(self.view.lines) else 0
        if at <= WORDS:
            return self.words()[WORDS - at]
        return self._foot() if at == FOOT else None

    def position_words(self) -> str:
        if self.extent is None:
            return super().position_words()
        if not self.rows.running + self.rows.waiting:
            return " " if not self.has_cursor_in_sight else ""
        return f" {self._numbers()} " if self.head == 1 else " " if not self.has_cursor_in_sight else ""

    def _numbers(self) -> str:
        running, waiting, held = self.rows.numbers
        if self.sheet is not self.live or not any(self.rows.numbers):
            return ""
        if self.size.width < _WIDE:  # the title of INFO needs its place
            return f"RUN {running:,} · WAIT {waiting:,}"
        return f"RUNNING {running:,} · WAITING {waiting:,}" + (f" · HELD {held:,}" if held else "")

    def _aside(self) -> str:
        return "  ".join(filter(None, (self._state(), self._numbers())))

    def is_fold(self, key: Key | None) -> bool:
        return key == FOLD and self.sheet is self.live

    def turn_to(self, sheet: TabModel) -> None:
        if sheet is not self.sheet:
            self._cursors[self.sheet.name] = self.cursor
            self.sheet = sheet
            self.cursor, self.top = self._cursors.get(sheet.name), 0
            self.lay_again()

    def lay_again(self) -> None:
        self.keys, self._positions, self.extent = (), {}, None
        self.rearrange()
        self.lay_out()
        self.show(self._known)

    @property
    def job(self) -> Job | None:
        """Job under the cursor; the first of several that share its row."""
        return next(iter(self.jobs), None)

    @property
    def jobs(self) -> tuple[Job, ...]:
        return self.sheet.jobs(self.cursor)

    def lay_out(self) -> None:
        self.placed = lay_out(self.columns(), self.size.width)
        self._known = replace(self._known, room={placed.column.key: placed.width for placed in self.placed})
        super().lay_out()

    def columns(self) -> tuple[Column, ...]:
        self.live.room = self.ended.room = self.size.width
        self.ended.has_servers = SERVER in self.rows.varied
        return self.sheet.columns

    def cell_of(self, key: Key, column: str, room: int) -> Cell:
        return self.sheet.cell(key, column, self._known)

    def lead_of(self, key: Key) -> str:
        return self.sheet.lead(key)

    def title_of(self, placed: PlacedColumn) -> str:
        column, sorting = placed.column, self.rows.sorting
        if self.sheet is not self.live or sorting.column != column.key:
            return column.title
        return column.title[: placed.width - 1] + (DOWN if sorting.is_down else UP)

    def heading(self, y: int) -> Strip:
        return title_line(self._bar_spans(), self.size.width, has_focus=self.has_focus, right=self._aside())

    async def on_click(self, event: events.Click) -> None:  # type: ignore[override]  # Textual awaits it
        if self.was_dragged or (event.button == RIGHT and event.y < self.head):
            event.prevent_default()
        elif event.y == 0 and self.head > 1:
            ends = accumulate(map(width_of, self._tabs()))
            if name := next((sheet.name for sheet, end in zip(self.sheets, ends, strict=True) if event.x < end), ""):
                await self.run_action(f"screen.tab('{name}')")
        elif event.y == self.head - 1 and (column := self.column_at(event.x)):
            self.post_message(TitleClicked(column.key))
        elif self.is_fold(self.key_at(event.y)) and event.button != RIGHT:
            event.prevent_default()  # one click opens it, unlike other rows
            self.move_to(self.row_at(event.y - self.head) or 0)
            self.post_message(RowOpened())

    def _settle_head(self) -> None:
        wanted = 2 if self.size.height >= ROOM_FOR_TABS or self.sheet is not self.live or bool(self._state()) else 1
        if wanted != self.head:
            self.head = wanted
            self.lay_out()

    on_resize = _settle_head

    def _bar_spans(self) -> tuple[Span, ...]:
        tabs = tuple(span for tab in self._tabs() for span in tab)
        if width_of(tabs) + width(self._aside()) + 1 < self.size.width:
            return tabs
        keys = [keymap_of(self).key_of_tab(sheet.name) for sheet in self.sheets]
        is_usual = keys == ["1", "2", "3", "4"][: len(keys)]
        digits = f"1-{len(keys)}" if is_usual else " ".join(filter(None, keys))
        return ((f" {self.sheet.name} ", STRONG + BLUE), (f"{digits} ", DIM))

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
        if self.sheet is not self.live:
            return ""
        rows, words = self.rows, []
        if marked := len(self.live.marks):
            words.append(f"{marked} marked")
        if not rows.sorting.is_planned:
            column = fitting(rows.sorting.column, self.size.width)
            words.append(f"by {column.title} {DOWN if rows.sorting.is_down else UP}")
        return " · ".join(words)
