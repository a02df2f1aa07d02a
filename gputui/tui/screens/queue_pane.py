"""Queue pane of the main screen: filter, sort, mark, fold, columns, tabs, and changes of what is in a row."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import is_not
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace
from textual.message import Message
from textual.widgets import Input

from gputui.domain.action import (
    Action,
    AddRecurring,
    PauseRecurring,
    PlaceJobs,
    RemoveRecurring,
    ResumeRecurring,
    Unreserve,
)
from gputui.domain.arrays import count
from gputui.domain.errors import GputuiError
from gputui.domain.filter import FilterSubject, searched_text
from gputui.domain.job import Job, Placing
from gputui.domain.job_spec import JobId, Submission, server_of, shown_id
from gputui.domain.recurring import Recurrence
from gputui.domain.state import JobState
from gputui.domain.text import plain, plural
from gputui.tui.keymap import keymap_of
from gputui.tui.present.status import foreign_use_words
from gputui.tui.progress import IsWanted, LatestWorker
from gputui.tui.screens.dialogs import ColumnChooser, Confirm, Prompt, ask
from gputui.tui.screens.job_screen import JobScreen, Predicate
from gputui.tui.services import Services
from gputui.tui.widgets.job_table import JobTable
from gputui.tui.widgets.queue_folding import FOLD, EndedRows, Marks
from gputui.tui.widgets.queue_rows import ChosenColumns
from gputui.tui.widgets.queue_tabs import HistoryLoader, HistoryRead
from gputui.tui.widgets.status_bars import FilterHistory, FilterLine

if TYPE_CHECKING:
    from gputui.domain.policy.queue_order import Move
    from gputui.domain.recurring import RecurringJob
    from gputui.domain.snapshot import WindowView


SECTION = "queue"
LOOKED_AT = "looked_at"
"""Sections of the preferences."""
_SLICE, _PAUSE = 0.008, 0.004
"""Seconds of matching jobs with the filter at a time, and the pause for keys and everything else."""
_CALM = 0.15
"""Minimum seconds between two updates of the matches."""
_ON_JOBS = ("mark", "mark_all", "fold", "fold_all", "sort", "columns")


class QueueController:
    """Carries out the commands of the queue pane on its table and its filter line."""

    def __init__(
        self, screen: JobScreen, services: Services, table: JobTable, line: FilterLine, redraw: Callable[[], None]
    ) -> None:
        self._screen = screen
        self._services = services
        self.table = table
        self.rows = table.rows
        self.line = line
        self._redraw = redraw
        self.history = HistoryLoader(services.backend.history, screen.post_message)
        self._marked: tuple[Marks, object, object, Sequence[Job]] | None = None
        """Marks, jobs and order of the queue, and the marked jobs computed from them."""
        self._filters = FilterHistory.of(services.preferences.get("filters"))
        self._matches_soon = self._has_matches = False
        """True if a timer is set for matching further jobs; true if some matches are not shown yet."""
        self._gathered_at = 0.0
        self.conditions: dict[str, Predicate] = {
            "clear_filter": lambda _: line.is_typed or (bool(self.rows.filter) and not table.live.marks),
            "clear_marks": lambda _: bool(table.live.marks),
            **dict.fromkeys(_ON_JOBS, lambda _: self.may_fold),
        }

    @property
    def has_focus(self) -> bool:
        return self._screen.focused is self.table

    @property
    def may_fold(self) -> bool:
        return self.has_focus and self.table.sheet is self.table.live

    @property
    def is_empty(self) -> bool:
        return self.table.sheet is self.table.live and not self.rows.running + self.rows.waiting

    @property
    def rows_wanted(self) -> int:
        """Return the rows that the list of foreign processes needs, with the titles above it; 0 if it is not shown."""
        others = self.table.live.others
        return len(others) + 2 + self.rows.extent.has_ended if others else 0

    def subjects(self) -> Sequence[Job]:
        """Return the marked jobs; if there are none, the jobs of the row under the cursor."""
        table = self.table
        if table.sheet is table.live and table.live.marks:
            # computed once per snapshot and change of marks, since every key needs them; by start, so that `top`, which
            # puts the last one first, keeps their order
            marks, jobs, order = table.live.marks, self.rows.jobs, self._screen.snapshot.order
            known = self._marked
            if known is None or any(map(is_not, known, (marks, jobs, order))):
                by_id = jobs.by_id
                planned = dict.fromkeys(job_id for job_id in order if job_id in by_id)
                others = (job for job_id, job in by_id.items() if job_id not in planned)
                entries = (*(by_id[job_id] for job_id in planned), *others)
                found = [part for job in entries if (part := marks.part(job)) is not None]
                known = self._marked = (marks, jobs, order, found)
            return known[3]
        self._marked = None  # else it would keep its queue alive until something is marked again
        return table.jobs

    def update_tabs(self) -> None:
        table, snapshot = self.table, self._screen.snapshot
        table.recurring.update(snapshot.recurring)
        table.windows.update(snapshot.windows)
        if table.sheet is table.ended:
            self._show_history()
        self.show_match_count()
        table.live.drop_ended_marks()
        table.live.machine = snapshot.jobs_machine
        may_end = not self._services.is_read_only
        table.live.others = foreign_use_words(snapshot, table.live.room, may_end=may_end) if self.is_empty else ()

    # filter

    def match_later(self) -> None:
        """Match further jobs with the filter between keys until all are matched; pauses while the screen is covered."""
        if not self._matches_soon and not self.rows.is_judged and self._screen.is_in_sight:
            self._matches_soon = True
            self._screen.set_timer(_PAUSE, self._match_further)

    def _match_further(self) -> None:
        self._matches_soon = False
        self._has_matches |= self.rows.match(_SLICE)
        if self._has_matches and (self.rows.is_judged or time.monotonic() - self._gathered_at >= _CALM):
            self._has_matches, self._gathered_at = False, time.monotonic()
            self.rows.gather()
            self._redraw()
        self.match_later()

    def show_match_count(self) -> None:
        line, ended, rows = self.line, self.table.ended, self.rows
        if line.is_open and self.table.sheet is ended:
            line.count(len(ended.keys), len(ended.ended.jobs), is_typed=line.is_typed)
        elif line.is_open:
            line.count(rows.matching, rows.known, is_typed=line.is_typed)

    def action_filter(self) -> None:
        self.line.open(self._filters)

    def type_filter(self, text: str) -> None:
        self.rows.show(filter=plain(text, 200))
        self.table.rearrange()
        self.line.show_fault(self.rows.filter_fault)
        if self.table.sheet is self.table.ended:
            self._show_history()
        self._redraw()

    def accept_filter(self) -> None:
        """Keep the filter and return to the table; an invalid filter stays open to be corrected."""
        if self.rows.filter_fault is not None:
            return
        self._filters = self._filters.with_one(self.rows.filter)
        self._services.preferences.put("filters", self._filters.values())
        self._close_filter()

    def action_clear_filter(self) -> None:
        self.line.query_one(Input).value = ""
        self._close_filter()

    def _close_filter(self) -> None:
        self.line.close()
        self.table.focus()

    def action_finished(self) -> None:
        self.rows.turn_fold()
        if self.rows.ended is EndedRows.OPEN and FOLD in self.rows.positions and self.table.sheet is self.table.live:
            self.table.cursor = FOLD
        self._redraw()

    @property
    def is_on_fold(self) -> bool:
        return self.has_focus and self.table.is_fold(self.table.cursor)

    def look_at(self, job: Job | None) -> None:
        """Record that the job's page or log was opened: its failure is no longer new."""
        if job is not None and self.rows.look_at(job):
            self._services.preferences.put(LOOKED_AT, self.rows.looked_at.values())

    def action_failures_seen(self) -> None:
        new = self.rows.look_at_all()
        if new:
            self._services.preferences.put(LOOKED_AT, self.rows.looked_at.values())
            self._redraw()
        self._screen.notify(f"{plural(new, 'failure')} acknowledged" if new else "no new failures", timeout=3)

    # marks

    def action_mark(self) -> None:
        self._toggle_marks(Marks.of(self.table.jobs))
        self.table.action_down(1)
        self._redraw()

    def action_mark_all(self) -> None:
        self.rows.match(float("inf"))
        self.rows.gather()
        self._toggle_marks(Marks.of(job for job in self.rows.shown if not job.state.is_terminal))
        self._redraw()

    def _toggle_marks(self, wanted: Marks) -> None:
        live = self.table.live
        live.marks = live.marks.without(wanted) if live.marks.has_all(wanted) else live.marks.with_all(wanted)

    def action_clear_marks(self) -> None:
        self.table.live.marks = Marks()
        self._redraw()

    # order and columns

    def action_sort(self) -> None:
        self.rows.sort_by(self.rows.sorting.next(column.key for column in self.table.live.columns))
        self._rearrange()

    def sort_by(self, column: str) -> None:
        if self.table.sheet is self.table.live:
            self.rows.sort_by(self.rows.sorting.by(column))
            self._rearrange()

    def _rearrange(self) -> None:
        self.table.lay_again()
        self._redraw()

    def action_fold(self) -> None:
        table = self.table
        if not isinstance(table.cursor, int):
            return
        if table.is_fold(table.cursor):
            self.action_finished()
            return
        table.rearrange()
        to = self.rows.fold(table.cursor)
        if to is None:
            self._screen.notify("nothing to unfold: no array, and no job depends on it")
            return
        table.cursor = to
        self._redraw()

    def action_fold_all(self) -> None:
        self.rows.fold_all()
        self.table.rearrange()
        self._redraw()

    def action_columns(self) -> None:
        def chosen(columns: ChosenColumns) -> None:
            self.table.live.chosen = columns
            self._services.preferences.put(SECTION, {"columns": list(columns.keys)})
            self._rearrange()

        usual = ChosenColumns.of({}, self._services.settings.console.columns)
        ask(self._screen.app, ColumnChooser(self.table.live.chosen, usual, self.table.live.absent), chosen)

    # tabs

    def action_tab(self, name: str) -> None:
        table = self.table
        sheet = next(sheet for sheet in table.sheets if sheet.name == name)
        if sheet is table.ended:
            self.history.read_further(self._services.clock.now())
        table.turn_to(sheet)
        if table.display:
            table.focus()
        self.update_tabs()
        self._redraw()

    def take_history(self, message: HistoryRead) -> None:
        self.history.take(message)
        if message.failure and message.jobs:
            self._screen.notify(f"the history is not whole: {plain(message.failure, 300)}", severity="warning")
        self._show_history()
        self._redraw()

    def _show_history(self) -> None:
        def matches(job: Job) -> bool:
            if not self.rows.filter:
                return True
            subject = FilterSubject(job, self._screen.snapshot.taken_at, None, searched_text(job, None))
            return self.rows.parsed.part(subject) is not None

        self.table.ended.update(self.history.ended(self._screen.snapshot), matches)

    def read_on(self) -> None:
        """Read further back when the cursor reaches the end of the loaded history."""
        table = self.table
        if table.sheet is table.ended and table.keys and table.cursor == table.keys[-1]:
            self.history.read_further(self._services.clock.now())


class Drag(Struct, eq=False):
    """Adds up steps, and keeps requested places that are not in the snapshot yet."""

    _ids: tuple[JobId, ...] = ()
    _jobs: tuple[weakref.ref[Job], ...] = ()
    """Weak references to the jobs of the snapshot, since they may be the whole queue."""
    _steps: tuple[int, ...] = ()
    wanted: tuple[Placing, ...] = ()
    """Places requested since the snapshot with these jobs."""

    def press(self, jobs: Sequence[Job], step: int) -> tuple[tuple[int, ...], tuple[Placing, ...]]:
        """Return the steps to make, and the places requested for these jobs since the snapshot."""
        ids = ids_of(jobs)
        if ids != self._ids:
            self._steps = ()
        before = [known() for known in self._jobs]
        if len(jobs) != len(before) or any(map(is_not, jobs, before)):  # there is a new snapshot
            self.wanted = ()
        self._ids, self._jobs = ids, tuple(map(weakref.ref, jobs))
        self._steps = (*self._steps, step)
        return self._steps, self.wanted

    def is_answered(self, job_ids: Sequence[JobId], steps: tuple[int, ...]) -> bool:
        """Return whether these are all requested steps; the next key then starts again."""
        if steps != self._steps or tuple(job_ids) != self._ids:
            return False
        self._steps = ()
        return True


def ids_of(jobs: Sequence[Job]) -> tuple[JobId, ...]:
    return tuple(job_id for job in jobs for job_id in job.ids)


@dataclass(eq=False)
class MoveFound(Message, bubble=False):
    job_ids: tuple[JobId, ...]
    move: Move
    steps: tuple[int, ...] = ()
    """Number of key presses that it answers."""


class QueueEditor:
    def __init__(self, screen: JobScreen, services: Services, queue: QueueController) -> None:
        self._screen = screen
        self._services = services
        self._queue = queue

        def not_moved(error: Exception) -> Message:
            from gputui.domain.policy.queue_order import Move

            return MoveFound((), Move(refusal=str(error)))

        self.mover = LatestWorker(screen.post_message, not_moved)
        self._drag = Drag()
        self.conditions: dict[str, Predicate] = {
            "move": lambda _: bool(self._waiting()),
            "edit": lambda _: bool(self._editable()),
            "recur": lambda _: queue.has_focus and screen.subject() is not None,
            "clone": lambda _: screen.subject() is not None,
            "remove": lambda _: bool(self._own_recurring() or self._window()),
            "pause_recurring": lambda _: (entry := self._own_recurring()) is not None and not entry.paused,
            "resume_recurring": lambda _: (entry := self._own_recurring()) is not None and entry.paused,
        }

    def _waiting(self) -> list[Job]:
        if not self._queue.has_focus:
            return []
        return [job for job in self._queue.table.jobs if job.state is JobState.PENDING]

    def _editable(self) -> Sequence[Job]:
        states = {JobState.CONFIGURING, JobState.RUNNING}
        running = [job for job in self._queue.table.jobs if job.state in states] if self._queue.has_focus else []
        return self._services.own(self._waiting() or running[:1])

    def _recurring(self) -> RecurringJob | None:
        table = self._queue.table
        if not self._queue.has_focus or table.sheet is not table.recurring or table.cursor is None:
            return None
        return table.recurring.entries.get(table.cursor)

    def _own_recurring(self) -> RecurringJob | None:
        entry = self._recurring()
        return entry if entry is not None and self._services.may_act_for(entry.uid) else None

    def _window(self) -> WindowView | None:
        table = self._queue.table
        if not self._queue.has_focus or table.sheet is not table.windows or table.cursor is None:
            return None
        return table.windows.views.get(table.cursor)

    def action_move(self, step: int) -> None:
        """Find the place past the neighbour; keys pressed meanwhile add up."""
        jobs = self._waiting()
        ids = ids_of(jobs)
        steps, wanted = self._drag.press(jobs, step)
        services, snapshot = self._services.scoped(self._screen.snapshot, server_of(ids[0]) if ids else "")
        settings, now = services.settings, services.clock.now()

        def work(is_wanted: IsWanted) -> Message:
            from gputui.domain.policy import queue_order, whatif

            order = queue_order.queue_standings(
                whatif.change_of(PlaceJobs(tuple(wanted)), now)(snapshot), settings, now
            )
            return MoveFound(ids, queue_order.move_by_steps(order, ids, steps), steps)

        self.mover.ask(work)

    def take_move(self, message: MoveFound) -> None:
        move, ids = message.move, message.job_ids
        if ids and not self._drag.is_answered(ids, message.steps):
            return
        if move.refusal:
            self._screen.notify(move.refusal, title="Not moved", severity="warning")
        if not ids:
            self._drag = Drag()
        if not ids or not move.places:
            return
        if self._screen.shows_what_if:
            from gputui.tui.proposals import JobProposal

            self._screen.propose(JobProposal(ids[0], "move", 0, ids[1:]).dragged(move))
        else:
            self._drag.wanted = move.places
            self._screen.request(PlaceJobs(move.places))

    def action_edit(self) -> None:
        waiting = self._editable()
        if count(waiting) > 1:
            key = keymap_of(self._screen).key("fold")
            self._screen.notify(f"elements of an array are edited one by one: {key} unfolds it")
        elif waiting:
            from gputui.tui.screens.forms import Submit

            scope = self._services.scoped(self._screen.snapshot, server_of(waiting[0].id))
            self._screen.app.push_screen(Submit.edit(*scope, waiting[0]))

    def action_clone(self) -> None:
        if job := self._screen.subject():
            from gputui.tui.screens.forms import Submit

            scope = self._services.scoped(self._screen.snapshot, server_of(job.id))
            self._screen.app.push_screen(Submit.clone(*scope, job))

    def action_recur(self) -> None:
        job = self._screen.subject()
        if job is None:
            return

        def answered(expression: str) -> None:
            if not expression:
                return
            try:
                action = again(job, expression)
            except GputuiError as error:
                self._screen.notify(str(error), severity="error")
            else:
                self._screen.request(action, f"job {shown_id(job.id)}", server_of(job.id))

        detail = "Minute hour day month weekday, as in a crontab: 0 3 * * *  or  @daily"
        ask(self._screen.app, Prompt(f"Recurring job like #{job.shown_id}", "schedule", detail), answered)

    def action_pause_recurring(self) -> None:
        if entry := self._recurring():
            self._screen.request(PauseRecurring((entry.id,)), shown_id(entry.id))

    def action_resume_recurring(self) -> None:
        if entry := self._recurring():
            self._screen.request(ResumeRecurring((entry.id,)), shown_id(entry.id))

    def action_remove(self) -> None:
        entry, view = self._recurring(), self._window()
        if view is not None and view.source == "command" and self._screen.shows_what_if:
            from gputui.tui.proposals import WindowProposal

            self._screen.propose(WindowProposal(view.window, is_new=False))
            return
        if entry is not None:
            action: Action = RemoveRecurring((entry.id,))
            subject = shown_id(entry.id)
            question = f"Remove recurring job {shown_id(entry.id)}?"
            detail = "No further jobs are submitted; jobs that it submitted stay."
        elif view is not None:
            action, subject, question = Unreserve(view.window.name), "", f"Release reservation {view.window.name}?"
            detail = "Its GPUs are released."
        else:
            return
        ask(self._screen.app, Confirm(question, detail), lambda _: self._screen.request(action, subject))


def again(job: Job, expression: str) -> AddRecurring:
    """Return the action that submits a job like this one by a cron expression; raises InputError."""
    from gputui.engine.actions.admission import local_zone_name

    spec = replace(job.spec, begin_at=None, after=(), after_any=())
    return AddRecurring(Recurrence(expression, local_zone_name()), Submission(spec))
