"""Rows and columns of the queue, in order; computed once per snapshot and filter, not per key.

A filter is matched a few jobs at a time, since formatting 10,000 reasons takes long.
"""

from __future__ import annotations

import sys
import time
from collections import ChainMap
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from types import MappingProxyType
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.arrays import LEAST_LONG, Entries, count, digits_for, elements_in_history, number_of, short_id
from gputui.domain.errors import InputError
from gputui.domain.filter import EVERY_JOB, Filter, FilterSubject, parse_filter, searched_text
from gputui.domain.gpu import GpuView
from gputui.domain.idle_gpus import idle_jobs
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.queue_columns import QUEUE_COLUMNS, ColumnData, more_than_name
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.domain.state import Reason
from gputui.tui.present.cells import AMBER, DIM, Cell, Column
from gputui.tui.present.job import WORDS, ArrayCounts
from gputui.tui.present.status import job_counts
from gputui.tui.progress import Throttle
from gputui.tui.widgets.queue_folding import (
    CLOSED,
    FOLD,
    OPEN,
    ArrangedRows,
    EndedCounts,
    EndedRows,
    Extent,
    Folds,
    LookedAt,
    Places,
    RowKey,
    RowKeys,
    Section,
    array_of,
    by_end,
    dependents_of,
    joined_rows,
    merged,
    rows,
    section_of,
    shares,
)

NEVER_LEFT_OUT = "id"
COLUMNS: Mapping[str, Column] = MappingProxyType(
    {key: Column(key, at.title, at.width, at.right, at.flex, at.rank, at.most) for key, at in QUEUE_COLUMNS.items()}
)
USUAL = ("id", "state", "priority", "name", "tenant", "gpus", "progress", "age", "start", "why")
MORE = ("left", "user", "image", "command")
"""Columns added on wide screens; if they do not fit, the last one goes first."""
SERVER = "server"
"""Key of the column that follows the id, whatever is chosen, in a console over several servers."""
ALIKE = frozenset({"user", "image", "command"})
"""Keys of columns that are left out while all rows have the same value."""
WIDE, WITH_BARS, IN_WORDS = 176, 144, 100
"""Cells from which more columns are added, from which there is room for bars, and from which states are words."""
INFO_FIRST = 56
"""Cells of INFO on wide screens, before the command and other added columns get any."""
ENDED = ("id", "state", "name", "tenant", "gpus", "time", "exit", "ended", "why")


class ChosenColumns(Struct, frozen=True):
    keys: tuple[str, ...] = USUAL

    @classmethod
    def of(cls, preferences: Mapping[str, object], setting: Iterable[str] = ()) -> ChosenColumns:
        """Return the columns from the preferences, else from the settings; unknown names are ignored."""
        found = preferences.get("columns")
        known = tuple(dict.fromkeys(str(key) for key in found if key in COLUMNS)) if isinstance(found, list) else ()
        return cls(known or tuple(setting) or USUAL)

    def columns(self, room: int = 0, varied: Collection[str] = ALIKE) -> tuple[Column, ...]:
        """Return the columns to lay out in `room` cells; if there is no room for all, the first ones stay longest.

        `varied` are those of `ALIKE` that wide screens show, as not all rows have the same value.
        """
        if SERVER in varied and SERVER not in self.keys:
            return with_server(self.columns(room, set(varied) - {SERVER}))
        if self.keys != USUAL:
            return tuple(
                replace(fitting(key, room), rank=0 if key == NEVER_LEFT_OUT else rank + 1)
                for rank, key in enumerate(self.keys)
            )
        usual = [fitting(key, room) for key in USUAL]
        if room >= WIDE:
            more = [key for key in MORE if key in varied or key not in ALIKE]
            usual[-1] = replace(usual[-1], width=INFO_FIRST)
            usual[-1:-1] = [replace(COLUMNS[key], rank=len(USUAL) + rank) for rank, key in enumerate(more)]
        return tuple(usual)


def with_server(columns: Iterable[Column]) -> tuple[Column, ...]:
    wanted = []
    for column in columns:
        wanted.append(column)
        if column.key == NEVER_LEFT_OUT:
            wanted.append(COLUMNS[SERVER])
    return tuple(wanted)


def varied_columns(jobs: Iterable[Job]) -> frozenset[str]:
    """Return the columns of `ALIKE` in which two jobs differ; stops at the first difference."""
    first: tuple[object, ...] | None = None
    left = {"user": 0, "image": 1, "command": 2}
    for job in jobs:
        values = (job.submitted_by, job.spec.image, more_than_name(job))
        if first is None:
            first = values
        elif values != first:
            for key, place in tuple(left.items()):
                if values[place] != first[place]:
                    del left[key]
            if not left:
                break
    return ALIKE.difference(left)


def fitting(key: str, room: int) -> Column:
    column = COLUMNS[key]
    if key == "state" and room >= IN_WORDS:
        return replace(column, title="STATE", width=WORDS)
    if key == "progress" and room < WITH_BARS:
        return replace(column, flex=0)  # as more cells would be no bar yet
    return column


MOVING = frozenset(key for key, column in QUEUE_COLUMNS.items() if column.is_moving)
_DOWN = frozenset(key for key, column in QUEUE_COLUMNS.items() if column.is_down)
_SORTABLE = frozenset(key for key, column in QUEUE_COLUMNS.items() if column.value)


class Sorting(Struct, frozen=True):
    """Column by which rows are sorted, and whether in reverse; no column: the order of the plan."""

    column: str = ""
    is_turned: bool = False

    @property
    def is_down(self) -> bool:
        return (self.column in _DOWN) != self.is_turned

    @property
    def is_planned(self) -> bool:
        return self.column not in _SORTABLE

    def by(self, column: str) -> Sorting:
        """Return the order by a column; for the same column its reverse, and then the order of the plan."""
        if column not in _SORTABLE:
            return self
        if column != self.column:
            return Sorting(column)
        return Sorting() if self.is_turned else Sorting(column, True)

    def next(self, columns: Iterable[str]) -> Sorting:
        """Return the order by the next sortable column; after the last one the order of the plan."""
        able = ["", *(column for column in columns if column in _SORTABLE)]
        here = able.index(self.column) if self.column in able else 0
        return Sorting(able[(here + 1) % len(able)])


AT_ONCE = 500
"""Number of jobs that are matched before anything is shown, however long it takes."""
_BLOCK = 50
"""Jobs between two checks of the time."""
_REST = 4.0
"""Pause before unchanged jobs are matched again, as a multiple of the time that it took."""


class Verdicts(Struct, eq=False):
    """Result per job, valid until the job is matched again, because it, the filter or the time changed."""

    _filter: Filter = EVERY_JOB
    _jobs: Mapping[JobId, Job] = {}
    _snapshot: Snapshot = EMPTY
    _idle: frozenset[JobId] = frozenset()
    _shown: dict[JobId, tuple[Job, Job | None]] = {}
    """Matching part of each job; of an array entry, perhaps some elements; None if it does not match."""
    _new: dict[JobId, None] = {}
    """New jobs without a result and changed jobs, in order."""
    _old: list[JobId] = []
    """Jobs to be matched again; the next one last."""
    _is_outdated: bool = False
    """True if reasons or the time changed since these jobs were matched."""
    _pace: Throttle = field(default_factory=lambda: Throttle(_REST))
    _texts: dict[JobId, tuple[Job, Reason | None, str]] = {}

    def judge_by(self, wanted: Filter) -> None:
        """Set the filter; if it only adds words, jobs that did not match stay excluded."""
        is_narrower = wanted.text.startswith(self._filter.text) and self._filter.is_of_words and wanted.is_of_words
        self._shown = {job_id: kept for job_id, kept in self._shown.items() if is_narrower and not kept[1]}
        self._filter, self._new, self._old, self._is_outdated = wanted, {}, [], False
        self._pace = Throttle(_REST)
        if not wanted:
            self._texts = {}

    def take(self, snapshot: Snapshot, jobs: Mapping[JobId, Job]) -> None:
        before, self._snapshot = self._snapshot, snapshot
        were_idle, self._idle = self._idle, idle_jobs(snapshot)
        if jobs is not self._jobs:
            self._jobs = jobs
            self._shown = {job_id: kept for job_id, kept in self._shown.items() if job_id in jobs}
            self._texts = {job_id: kept for job_id, kept in self._texts.items() if job_id in jobs}
        fields = self._filter.fields
        moves = bool(fields & {"wait", "time"}) or ("is" in fields and self._idle != were_idle)
        moves |= self._filter.is_of_reasons and snapshot.reasons is not before.reasons
        self._is_outdated |= moves and bool(self._shown)

    def want(self, order: Iterable[JobId]) -> None:
        known, jobs = self._shown, self._jobs
        new = (each for each in order if each not in known or known[each][0] is not jobs[each])
        self._new = dict.fromkeys(new)

    @property
    def is_done(self) -> bool:
        may_rest = len(self._shown) > AT_ONCE and not self._pace.may_begin
        return not self._new and not self._old and (may_rest or not self._is_outdated)

    def step(self, seconds: float, least: int = 0) -> bool:
        """Match jobs for at most `seconds`, but at least `least` jobs; return whether the shown jobs changed."""
        deadline, changed, judged = time.monotonic() + seconds, False, 0
        while not self.is_done and (judged < least or time.monotonic() < deadline):
            for job_id in self._next():
                changed |= self._judge(job_id)
                judged += 1
            if self._pace.waits and not self._old:
                self._pace.end()
        return changed

    def _next(self) -> Iterable[JobId]:
        if self._new:
            block = list(islice(self._new, _BLOCK))
            for job_id in block:
                del self._new[job_id]
            return block
        if not self._old:
            self._is_outdated = False
            self._pace.begin()
            self._old = list(self._shown)
        block, self._old = self._old[-_BLOCK:], self._old[:-_BLOCK]
        return (job_id for job_id in block if job_id in self._jobs)

    def _judge(self, job_id: JobId) -> bool:
        job, before = self._jobs[job_id], self._shown.get(job_id)
        reason, text = None, ""
        if self._filter.is_of_reasons:
            reason = self._snapshot.reasons.get(job_id)
            known = self._texts.get(job_id)
            if known is None or known[0] is not job or known[1] != reason:  # built once for each version of a job
                known = self._texts[job_id] = (job, reason, searched_text(job, reason))
            text = known[2]
        subject = FilterSubject(job, self._snapshot.taken_at, reason, text, leaves_idle=job_id in self._idle)
        part = self._filter.part(subject)
        self._shown[job_id] = (job, part)
        was = before[1] if before else None
        return (part and (part.id, part.runs)) != (was and (was.id, was.runs))

    def shown(self, among: Iterable[JobId], anyway: Container[JobId] = ()) -> list[Job]:
        """Return the known matches among them, for entries the matching part; and single jobs to show `anyway`."""
        known = (self._shown.get(job_id) for job_id in among)
        found = ((each[0], each[1]) for each in known if each is not None)
        return [part or job for job, part in found if part is not None or (job.id in anyway and not job.runs)]


_LAST = datetime.max.replace(tzinfo=UTC)


class QueueRows:
    """Keys in the order of the rows: running jobs, waiting jobs in the order of their start, ended jobs.

    A running job keeps its row while it runs. A job that ends while the cursor is on it keeps its row until that
    leaves it. All other ended jobs are behind a row that opens.
    """

    def __init__(self, looked_at: LookedAt | None = None) -> None:
        self.looked_at = looked_at or LookedAt()
        self.jobs = Entries({})
        self.positions: Mapping[RowKey, int] = {}
        self.arranged = ArrangedRows()
        self.extent = Extent()
        self.height: int | None = None
        """Lines that are visible; None: all."""
        self.sorting = Sorting()
        self.scores: Mapping[JobId, float] = {}
        self.filter = ""
        self.filter_fault: InputError | None = None
        """Error in the last typed filter; the previous one stays in effect."""
        self.parsed: Filter = EVERY_JOB
        self.ended = EndedRows.FOLDED
        self.id_width = 0
        """Cells of the longest id; 0 if there is no element of an array."""
        self.id_digits = 0
        """First digits that tell the numbers of the jobs apart, where these are long; 0: they are not."""
        self.matching = 0
        """Number of jobs shown, elements of arrays counted."""
        self.known = 0
        """Number of jobs, shown or not; without ended ones while those are folded."""
        self.running = self.waiting = 0
        self.numbers = (0, 0, 0)
        """Numbers of jobs shown that run, wait and are held, as in the status line."""
        self.ended_counts = EndedCounts()
        """Ended jobs; with a filter those that match."""
        self._snapshot: Snapshot = EMPTY
        self._places = Places()
        self._ids: list[Sequence[JobId]] = [(), (), ()]
        """Sorted ids of each section; without ended ones while those are folded."""
        self._matching: list[Sequence[JobId]] = [(), (), ()]
        self._past: Sequence[Job] = ()
        """Ended jobs without a row in another section, in any order."""
        self._counts = EndedCounts()
        self._held: Mapping[JobId, Section] = {}
        """Jobs under the cursor, by id, with the section of their row."""
        self._kept: Mapping[JobId, Section] = {}
        """Ended jobs with a row in another section, under the cursor or in the line where they ran."""
        self.varied: frozenset[str] = frozenset()
        """Columns of `ALIKE` in which jobs have differed since the console was opened."""
        self.loads: Mapping[JobId, int] = {}
        self._is_stale = False
        """True if ended rows have lost the cursor or were viewed since the order was computed."""
        self._parts: dict[JobId, Job] = {}
        self._folds = Folds()
        self._dependents: Mapping[JobId, list[JobId]] = {}
        self.arrays: Mapping[JobId, ArrayCounts] = {}
        self._verdicts = Verdicts()

    @property
    def keys(self) -> Sequence[RowKey]:
        return self.arranged.keys

    @property
    def is_read(self) -> bool:
        return self._snapshot.is_read

    def update(self, snapshot: Snapshot) -> None:
        before, self._snapshot = self._snapshot, snapshot
        if snapshot is before:
            return
        self.loads = job_loads(snapshot.gpus)
        if snapshot.jobs is not before.jobs:
            self.jobs = Entries({job.id: job for job in snapshot.jobs})
            self._dependents = dependents_of(snapshot.jobs)
            first = snapshot.jobs[0] if snapshot.jobs else None
            # all numbers of one queue are alike, and counting thousands of short ones takes time
            is_mixed = len(snapshot.servers) > 1 or (first is not None and number_of(first) >= LEAST_LONG)
            self.id_digits = digits_for(snapshot.jobs) if is_mixed else 0
            if not self.varied >= ALIKE:
                self.varied |= varied_columns(self.jobs.values())
        if len(snapshot.servers) > 1:
            self.varied |= {SERVER}
        self._verdicts.take(snapshot, self.jobs.by_id)
        changes_at = self._places.changes_at
        if (
            snapshot.jobs is before.jobs
            and not self._is_stale
            and (changes_at is None or snapshot.taken_at < changes_at)
            and not (self.sorting.column in MOVING and snapshot.expected_starts != before.expected_starts)
            and snapshot.order == before.order
            and snapshot.progress.keys() == before.progress.keys()
        ):
            if self.parsed:
                self._choose()
            return
        self._sort()

    def jobs_of(self, key: RowKey | None) -> tuple[Job, ...]:
        """Return the jobs of that row: one, or the entries whose elements share it."""
        if key is None or key == FOLD:
            return ()
        job = self.jobs.get(key)
        return self.arranged.groups.get(key) or ((job,) if job else ())

    def sort_by(self, sorting: Sorting) -> None:
        if sorting != self.sorting:
            self.sorting = sorting
            self._sort()

    def rank(self, scores: Mapping[JobId, float]) -> None:
        self.scores = scores
        if self.sorting.column == "score":
            self._sort()

    def fold(self, key: RowKey) -> RowKey | None:
        """Unfold or fold a row; return the new row of the cursor, None if there is nothing to unfold."""
        group, job = self.arranged.groups.get(key), self.jobs.get(key)
        if group:
            self._folds.arrays.add(group[0].array.id if group[0].array else group[0].id)
            self._sort()
            return group[0].id
        if job is None:
            return None
        if key in self._folds.parents or any(child in self.jobs for child in self._dependents.get(key, ())):
            self._folds.parents ^= {key}
            self._arrange()
            return key
        if job.array is None or job.array.id not in self._folds.arrays:
            return None
        self._folds.arrays.discard(job.array.id)
        self._sort()
        groups = self.arranged.groups.items()
        return next((row for row, jobs in groups if any(each.has(job.id) for each in jobs)), job.id)

    def fold_all(self) -> None:
        arrays = {job.array.id for job in self.jobs.values() if job.array and not job.state.is_terminal}
        parents = {parent for parent in self._dependents if parent in self.jobs}
        is_open = self._folds.arrays >= arrays and self._folds.parents >= parents
        self._folds = Folds() if is_open else Folds(arrays, parents)
        self._sort()

    def stay(self, ids: Iterable[JobId]) -> None:
        """Set the jobs under the cursor; their rows stay in their section while it is there, even if they end."""
        held, jobs = {}, self.jobs.by_id
        for job_id in ids:
            job = jobs.get(job_id)
            is_over = job is None or job.state.is_terminal
            held[job_id] = self._kept.get(job_id, Section.ENDED) if job is None or is_over else section_of(job)
        if held.keys() != self._held.keys():
            self._is_stale |= any(jobs[job_id].state.is_terminal for job_id in self._held if job_id in jobs)
        self._held = held

    def _let_go(self) -> None:
        self._held, self._is_stale = {}, self._is_stale or bool(self._kept)

    def heir(self, key: RowKey) -> RowKey | None:
        """Return the row that has the elements of an array whose row is gone, if possible in its section; or None."""
        array = array_of(key, self.jobs)
        if key == FOLD or array is None:
            return None
        found = [row for row in self.keys if row != FOLD and array_of(row, self.jobs) == array]
        same = [row for row in found if self.extent.section(self.positions[row]) in self._held.values()]
        return next((row for row in same or found if any(each.has(key) for each in self.jobs_of(row))), None) or next(
            iter(same or found), None
        )

    def look_at(self, job: Job) -> bool:
        is_new = self.looked_at.add(job)
        self._is_stale |= is_new
        return is_new

    def look_at_all(self) -> int:
        new = self.looked_at.add_all(job for job in self.jobs.values() if job.state.is_terminal)
        if new:
            self._sort()
        return new

    def turn_fold(self) -> None:
        self._let_go()
        self.show(ended=EndedRows.FOLDED if self.ended is EndedRows.OPEN else EndedRows.OPEN)

    def fold_line(self) -> Cell:
        """Return `▸ ENDED 138, 22 failed (3 new)`; the failures are amber while one of them is new."""
        counts, sign = self.ended_counts, ""
        if self.extent.is_folding:
            sign = f"{OPEN if self.ended is EndedRows.OPEN else CLOSED} "
        words: Cell = ((f"{sign}ENDED {counts.total:,}", DIM),)
        if not counts.failed:
            return words
        words += ((", ", DIM), (f"{counts.failed:,} failed", AMBER if counts.new else DIM))
        return (*words, (f" ({counts.new:,} new)", AMBER)) if 0 < counts.new < counts.failed else words

    def show(self, *, filter: str | None = None, ended: EndedRows | None = None) -> None:  # noqa: A002 - the word for it
        if ended is not None and ended != self.ended:
            self.ended = ended
            self._sort()
        if filter is None or filter == self.filter:
            return
        self.filter, self.filter_fault = filter, None
        try:
            self.parsed = parse_filter(filter)
        except InputError as fault:
            self.filter_fault = fault
            return
        self._let_go()
        self._verdicts.judge_by(self.parsed)
        if self.parsed or self.ended is EndedRows.OPEN:
            self._sort_ended()
        else:
            self._ids[Section.ENDED] = ()
        self._choose()

    def _sort(self) -> None:
        sections: tuple[list[Job], ...] = ([], [], [])
        for job in self.jobs.values():
            sections[section_of(job)].append(job)
        active, waiting, ended = sections
        self.arrays = array_counts(self.jobs.values())
        self._counts, self._is_stale = EndedCounts.of(ended, self.looked_at), False
        kept = {job.id: at for job in ended if (at := self._held.get(job.id, Section.ENDED)) is not Section.ENDED}
        running = self._placed(active)
        jobs = self.jobs.by_id
        given_up = [jobs[job_id] for job_id, section in kept.items() if section is Section.WAITING]
        left = {job.id: None for job in waiting}  # in the order of the plan; jobs unknown to it come last
        ordered = [job_id for job_id in self._snapshot.order if left.pop(job_id, True) is None]
        planned = merged([*ordered, *left], given_up, self._ids[Section.WAITING])
        self._kept = {
            **{job_id: Section.RUNNING for job_id in running if jobs[job_id].state.is_terminal},
            **{job.id: Section.WAITING for job in given_up},
        }
        self._past = [job for job in ended if job.id not in self._kept] if self.ended is not EndedRows.HIDDEN else ()
        self._ids = [self._sorted(running), self._sorted(planned), ()]
        if self.ended is EndedRows.OPEN or self.parsed:
            self._sort_ended()
        self._choose()

    def _placed(self, active: list[Job]) -> list[JobId]:
        """Return active jobs, each where it was, and ended ones whose line is still free.

        New ones come in the order of their start, so that a starting job stays where it waited. Jobs of one tick are
        claimed together, but begin in any order, so those of one tick are sorted by id.
        """
        here = [job_id for job_id, section in self._held.items() if section is Section.RUNNING]
        room = sys.maxsize
        if self.height is not None:
            sizes = (sys.maxsize, self.extent.waiting, self.extent.ended)
            room = shares(sizes, self.height - 1)[Section.RUNNING]

        def begin(job: Job) -> tuple[datetime, JobId]:
            claimed_at = job.attempt.claimed_at if job.attempt is not None else None
            return min(claimed_at or _LAST, job.started_at or _LAST), job.id

        def unit(job: Job) -> JobId:
            return -job.array.id if job.array is not None and job.array.id not in self._folds.arrays else job.id

        active.sort(key=begin)
        jobs, now = self.jobs.by_id, self._snapshot.taken_at
        return self._places.update(active, unit, jobs, now, held=here, room=room)

    def _sorted(self, ids: list[JobId]) -> Sequence[JobId]:
        """Return the ids sorted; equal jobs keep their order, and jobs without a value are always last."""
        if self.sorting.is_planned:
            return ids
        data = ColumnData(self._snapshot.taken_at, self._snapshot.expected_starts, self.scores)
        value, jobs = QUEUE_COLUMNS[self.sorting.column].order, self.jobs.by_id
        found = [(value(jobs[job_id], data), job_id) for job_id in ids]
        known: list[tuple[Any, JobId]] = [pair for pair in found if pair[0] is not None]
        known.sort(key=lambda pair: pair[0], reverse=self.sorting.is_down)
        return [job_id for _, job_id in known] + [job_id for order, job_id in found if order is None]

    def _sort_ended(self) -> None:
        if not self._ids[Section.ENDED]:
            self._ids[Section.ENDED] = self._sorted([job.id for job in sorted(self._past, key=by_end, reverse=True)])

    def _choose(self) -> None:
        self.known = count(self.jobs.by_id[job_id] for job_id in chain(*self._ids))
        if self.parsed:
            self._verdicts.want(chain(*self._ids))
            self._verdicts.step(0, AT_ONCE)
        self.gather()

    @property
    def is_judged(self) -> bool:
        return not self.parsed or self._verdicts.is_done

    def match(self, seconds: float) -> bool:
        return self._verdicts.step(seconds)

    def gather(self) -> None:
        self._matching, self._parts, self.ended_counts = self._ids, {}, self._counts
        if self.parsed:  # it also finds folded jobs
            parts = [self._verdicts.shown(ids, self._held) for ids in self._ids]
            self._matching = [[part.id for part in found] for found in parts]
            self._parts = {part.id: part for part in chain(*parts) if part.id not in self.jobs.by_id or part.runs}
            self.ended_counts = EndedCounts.of((job for job in chain(*parts) if job.state.is_terminal), self.looked_at)
        self.matching = count(self.shown) if self.parsed else self.known
        live = [self._visible[job_id] for job_id in chain(*self._matching[:2])]
        sizes = [0, 0, 0]
        for job in live:
            sizes[section_of(job)] += job.count
        self.running, self.waiting, _ = sizes  # ended ones have a row under the cursor, or where they ran
        self.numbers = job_counts(live, self._snapshot.progress)
        self._arrange()

    def _arrange(self) -> None:
        last_first = self.sorting.column == "id" and self.sorting.is_down
        running, waiting, ended = self._matching
        visible, folds, split = self._visible, self._folds, len(running)
        planned = (*running, *waiting)
        live = rows(planned, visible, folds, self._dependents, split=split, last_first=last_first)
        below = rows(ended, visible, folds, {}, last_first=last_first)
        is_folding = not self.parsed
        stays = is_folding and self.extent.fold is not None and bool(live.keys)  # it may be under the cursor
        has_ended = (bool(self.ended_counts.total) or stays) and self.ended is not EndedRows.HIDDEN
        self.arranged = joined_rows(live, (FOLD,) if has_ended and is_folding else (), below)
        counts = (live.split, len(live.keys) - live.split, len(below.keys))
        self.extent = Extent(*counts, has_ended=has_ended, is_folding=is_folding)
        keys = self.keys
        self.positions = keys.positions if isinstance(keys, RowKeys) else {key: row for row, key in enumerate(keys)}
        is_counted = self.arrays or ended or self.id_digits
        shown = (job for job in self.shown if job.id in self.positions) if is_counted else ()
        self.id_width = max((width_of_id(job, self.id_digits) for job in shown), default=0)

    @property
    def _visible(self) -> Mapping[JobId, Job]:
        """Shown jobs by id; of entries the matching part."""
        whole = self.jobs.by_id
        return ChainMap(self._parts, dict(whole)) if self._parts else whole

    @property
    def shown(self) -> Iterator[Job]:
        """Shown jobs; elements of an array that wait alike count as one."""
        visible = self._visible
        return (visible[job_id] for job_id in chain(*self._matching))


def width_of_id(job: Job, digits: int = 0) -> int:
    """Return the cells of its id; of an entry, those of the longest id of an element."""
    shown = short_id(job, digits)
    if job.array is None or not job.runs:
        return len(shown)
    return len(f"{shown.partition('_')[0]}_{max(run.indices[-1] for run in job.runs)}")


def array_counts(jobs: Iterable[Job]) -> dict[JobId, ArrayCounts]:
    arrays: dict[JobId, list[Job]] = {}
    for job in jobs:
        if job.array is not None:
            arrays.setdefault(job.array.id, []).append(job)
    found = {}
    for array_id, known in arrays.items():
        counts = found[array_id] = ArrayCounts(past=elements_in_history(known))
        for job in known:
            counts.add(job)
    return found


def job_loads(views: Iterable[GpuView]) -> Mapping[JobId, int]:
    """Return the mean utilisation of each job's GPUs in percent; none if it shares a GPU or one was not read."""
    found: dict[JobId, list[float | None]] = {}
    for view in views:
        sample = view.current if len(view.job_ids) < 2 else None
        for job_id in view.job_ids or ((view.job_id,) if view.job_id is not None else ()):
            found.setdefault(job_id, []).append(sample.utilization if sample else None)
    return {
        job_id: round(100 * sum(value or 0 for value in values) / len(values))
        for job_id, values in found.items()
        if None not in values
    }
