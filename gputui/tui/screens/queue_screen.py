"""What can be done in the queue's pane: filter, sort, mark, fold, choose columns, turn to another tab."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

from textual import on
from textual.widgets import Input

from gputui.domain.filter import Seen, shown_text
from gputui.domain.job import Job, JobId
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.domain.text import plain
from gputui.tui.commands import QUEUE_COMMANDS, bindings
from gputui.tui.desk import Desk
from gputui.tui.queue.columns import Chosen
from gputui.tui.queue.filter_history import FilterHistory
from gputui.tui.queue.past import Past, PastRead
from gputui.tui.queue.rows import QueueRows
from gputui.tui.queue.sheets import Key
from gputui.tui.screens.job_screen import JobScreen
from gputui.tui.widgets.filter_line import FilterLine
from gputui.tui.widgets.job_table import JobTable, TabClicked, TitleClicked
from gputui.tui.widgets.line_table import CursorMoved, LineTable

SECTION = "queue"
"""What is remembered of it."""
_LOOK, _REST = 0.008, 0.004
"""Seconds for which it is looked which jobs a filter shows, and before keys and everything else have had their turn."""
_CALM = 0.15
"""Seconds between two paintings of what is found."""
_ON_JOBS = frozenset({"mark", "mark_all", "fold", "fold_all", "sort", "columns"})


class QueueScreen(JobScreen):
    """A screen with the queue in it."""

    BINDINGS: ClassVar = bindings(QUEUE_COMMANDS)

    def __init__(self, desk: Desk, snapshot: Snapshot = EMPTY) -> None:
        super().__init__(desk, snapshot)
        self._rows = QueueRows()
        self._past = Past(desk.past, self.post_message)
        self._marked_jobs: tuple[object, object, object, Sequence[Job]] | None = None
        self._filters = FilterHistory.of(desk.remembered.get("filters"))
        self._looks_on = self._has_found = False
        """A timer is set for looking further which jobs the filter shows; others were found and not shown yet."""
        self._gathered_at = 0.0

    def refresh_time(self) -> None:
        """Show the picture at the time it is now."""
        raise NotImplementedError

    @cached_property
    def table(self) -> JobTable:
        """The queue's table: the same for as long as the screen is there."""
        return self.query_one(JobTable)

    @cached_property
    def filter_line(self) -> FilterLine:
        """Where filters are typed."""
        return self.query_one(FilterLine)

    @property
    def queue(self) -> LineTable[Key]:
        """The table of jobs."""
        return self.table

    def chosen_columns(self) -> Chosen:
        """The columns as they were left, or as the settings say."""
        return Chosen.of(self._desk.remembered.get(SECTION), self._desk.settings.console.columns)

    def on_unmount(self) -> None:
        """Read no further."""
        self._past.close()

    def update_tabs(self) -> None:
        """Give each tab what the picture says."""
        table, snapshot = self.table, self._snapshot
        table.recurring.take(snapshot.recurring)
        table.windows.take(snapshot.windows)
        if table.sheet is table.ended:
            self._show_past()
        self.count_matches()
        table.live.drop_ended_marks()

    def look_later(self) -> None:
        """Look further which jobs the filter shows, between keys, until it is known of all; not while covered."""
        if not self._looks_on and not self._rows.is_judged and self.app.screen is self:
            self._looks_on = True
            self.set_timer(_REST, self._look_further)

    def _look_further(self) -> None:
        self._looks_on = False
        self._has_found |= self._rows.look(_LOOK)
        if self._has_found and (self._rows.is_judged or time.monotonic() - self._gathered_at >= _CALM):
            self._has_found, self._gathered_at = False, time.monotonic()
            self._rows.gather()
            self.refresh_time()
        self.look_later()

    def count_matches(self) -> None:
        """Say in the filter's line how many there are."""
        line, ended, rows = self.filter_line, self.table.ended, self._rows
        if line.is_open and self.table.sheet is ended:
            line.count(len(ended.keys), len(ended.ended.jobs), is_typed=line.is_typed)
        elif line.is_open:
            line.count(rows.matching, rows.known, is_typed=line.is_typed)

    def subjects(self) -> Sequence[Job]:
        """The marked jobs, while the queue has the focus; else those of its row."""
        if not self.is_in_queue:
            return super().subjects()
        table = self.table
        if table.sheet is table.live and table.live.marks:
            return self._marked()
        self._marked_jobs = None  # or it would keep that queue until something is marked again
        return table.jobs

    def _marked(self) -> Sequence[Job]:
        """Worked out once for each picture and each change of marks: every key asks several times."""
        marks, jobs, order = self.table.live.marks, self._rows.jobs, self._snapshot.order
        known = self._marked_jobs
        if known is None or not (known[0] is marks and known[1] is jobs and known[2] is order):
            found = [jobs[job_id] for job_id in self._marked_in_order() if job_id in jobs]
            known = self._marked_jobs = (marks, jobs, order, found)
        return known[3]

    @property
    def is_in_queue(self) -> bool:
        """Whether keys go to the queue."""
        return isinstance(self.focused, JobTable)

    def _marked_in_order(self) -> list[JobId]:
        """As they start, so that `top` leaves them in their order: what is put there last stands first."""
        marks = self.table.live.marks
        order = [job_id for job_id in self._snapshot.order if job_id in marks]
        return [*order, *sorted(marks.difference(order))]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide what cannot be done now."""
        if action == "clear_filter":
            is_typed = self.is_mounted and self.filter_line.is_typed
            return is_typed or (bool(self._rows.filter) and not self._has_marks())
        if action == "clear_marks":
            return self._has_marks()
        if action in _ON_JOBS:
            return self.is_in_queue and self.table.sheet is self.table.live
        return super().check_action(action, parameters)

    def _has_marks(self) -> bool:
        return self.is_mounted and bool(self.table.live.marks)

    def action_mark(self) -> None:
        """Mark the row's jobs, or mark them no more; and go on."""
        table = self.table
        ids = frozenset(job.id for job in table.jobs)
        table.live.marks = table.live.marks - ids if ids <= table.live.marks else table.live.marks | ids
        table.action_down(1)
        self.refresh_time()

    def action_mark_all(self) -> None:
        """Mark all jobs that are shown and not over; where all are marked, none."""
        table, jobs = self.table, self._rows.jobs
        self._rows.look(float("inf"))
        self._rows.gather()
        shown = frozenset(job_id for job_id in self._rows.shown if not jobs[job_id].state.is_terminal)
        table.live.marks = table.live.marks - shown if shown <= table.live.marks else table.live.marks | shown
        self.refresh_time()

    def action_clear_marks(self) -> None:
        """Mark none."""
        self.table.live.marks = frozenset()
        self.refresh_time()

    def action_sort(self) -> None:
        """By the next column."""
        self._rows.sort_by(self._rows.sorting.next(column.key for column in self.table.live.columns))
        self._sorted()

    def _sorted(self) -> None:
        self.table.lay_again()
        self.refresh_time()

    @on(TitleClicked)
    def _title_clicked(self, message: TitleClicked) -> None:
        if self.table.sheet is self.table.live:
            self._rows.sort_by(self._rows.sorting.by(message.column))
            self._sorted()

    def action_fold(self) -> None:
        """Open what the row stands for, or close it."""
        table = self.table
        if not isinstance(table.cursor, int):
            return
        to = self._rows.fold(table.cursor)
        if to is None:
            self.notify("no job waits for it, and it is no array", timeout=3)
            return
        table.cursor = to
        self.refresh_time()

    def action_fold_all(self) -> None:
        """Open every array and whatever others wait for; or close it all."""
        self._rows.fold_all()
        self.refresh_time()

    def action_columns(self) -> None:
        """Choose them."""
        from gputui.tui.screens.columns import ColumnChooser

        def chosen(columns: Chosen | None) -> None:
            if columns is not None:
                self.table.live.chosen = columns
                self._desk.remembered.put(SECTION, {"columns": list(columns.keys)})
                self._sorted()

        usual = Chosen.of({}, self._desk.settings.console.columns)
        self.app.push_screen(ColumnChooser(self.table.live.chosen, usual), chosen)

    def action_tab(self, name: str) -> None:
        """Turn to that tab."""
        table = self.table
        sheet = next(sheet for sheet in table.sheets if sheet.name == name)
        if sheet is table.ended:
            self._past.further(self._desk.clock.now())
        table.turn_to(sheet)
        if table.display:
            table.focus()
        self.update_tabs()
        self.refresh_time()

    @on(TabClicked)
    def _tab_clicked(self, message: TabClicked) -> None:
        self.action_tab(message.name)

    def on_past_read(self, message: PastRead) -> None:
        """Show it."""
        self._past.take(message)
        self._show_past()
        self.refresh_time()

    def _show_past(self) -> None:
        table = self.table
        table.ended.take(self._past.ended(self._snapshot), self._is_wanted)

    def _is_wanted(self, job: Job) -> bool:
        seen = Seen(job, self._snapshot.taken_at, None, shown_text(job, None))
        return not self._rows.filter or self._rows.parsed.matches(seen)

    @on(CursorMoved)
    def _read_on(self) -> None:
        """At the end of what was read, read further back."""
        table = self.table
        if table.sheet is table.ended and table.keys and table.cursor == table.keys[-1]:
            self._past.further(self._desk.clock.now())

    def action_finished(self) -> None:
        """Show ended jobs, or not."""
        self._rows.show(finished=not self._rows.finished)
        self.refresh_time()

    def action_filter(self) -> None:
        """Type what to look for."""
        self.filter_line.open(self._filters)

    @on(Input.Changed, "#filter")
    def _filter_typed(self, event: Input.Changed) -> None:
        self._rows.show(filter=plain(event.value, 200))
        self.filter_line.tell(self._rows.filter_fault)
        if self.table.sheet is self.table.ended:
            self._show_past()
        self.refresh_time()

    @on(Input.Submitted, "#filter")
    def _filter_done(self) -> None:
        if self._rows.filter_fault is not None:
            return  # what is wrong stands below it: to be mended, or left by Escape
        self._filters = self._filters.with_one(self._rows.filter)
        self._desk.remembered.put("filters", self._filters.values())
        self._close_filter()

    def action_clear_filter(self) -> None:
        """Show all jobs."""
        self.query_one("#filter", Input).value = ""
        self._close_filter()

    def _close_filter(self) -> None:
        self.filter_line.close()
        self.table.focus()
