"""Sections of the queue, rows that several jobs share (arrays, dependents, ended jobs), and marks on jobs."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from datetime import datetime, timedelta
from enum import Enum, IntEnum
from itertools import accumulate, chain, starmap
from types import MappingProxyType
from typing import TypeAlias, overload

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain import runs
from gputui.domain.arrays import Entries, count, folded, likeness
from gputui.domain.gpu_history import HOLD
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.runs import Run, Runs, Spans
from gputui.domain.state import JobState

GRACE = HOLD
"""Time for which the line of an ended job is kept for the next one that starts, if no running job is below it."""
LONG_GRACE = timedelta(minutes=1)
"""Time for which it is kept otherwise: without it, a running job's row would have to move."""
LEAST_WAITING = 2
"""Waiting rows that are visible however many jobs run."""
_FOOT_FROM = 4
"""Lines from which one is spent on ended jobs, wherever the cursor is."""
BLANK, FOOT, WORDS = -1, -2, -10
"""Lines that are not rows: an empty one, what is hidden or has ended, and from -10 down, words."""


class Section(IntEnum):
    RUNNING = 0
    WAITING = 1
    ENDED = 2


_SECTIONS = {
    state: Section.RUNNING if state.is_active else Section.ENDED if state.is_terminal else Section.WAITING
    for state in JobState
}


def section_of(job: Job) -> Section:
    return _SECTIONS[job.state]


class Extent(Struct, frozen=True):
    running: int = 0
    waiting: int = 0
    ended: int = 0
    """Rows below the title of the ended jobs; 0 while it is folded."""
    has_ended: bool = False
    """True if ended jobs have a title."""
    is_folding: bool = True
    """True if that title is a row, which opens and closes."""

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.running, self.waiting, self.ended

    @property
    def fold(self) -> int | None:
        """Row of the title of ended jobs; None if it is no row."""
        return self.running + self.waiting if self.has_ended and self.is_folding else None

    @property
    def starts(self) -> tuple[int, int, int]:
        return 0, self.running, self.running + self.waiting + (self.fold is not None)

    def section(self, row: int) -> Section | None:
        if row == self.fold:
            return None
        if row < self.running:
            return Section.RUNNING
        return Section.WAITING if row < self.running + self.waiting else Section.ENDED


class View(Struct, frozen=True):
    lines: tuple[int, ...] = ()
    """Rows from the top, and negative numbers for lines that are none."""
    tops: tuple[int, int, int] = (0, 0, 0)
    """First visible row of each section, counted in it."""
    shares: tuple[int, int, int] = (0, 0, 0)


def shares(counts: Sequence[int], room: int, here: Section | None = None) -> tuple[int, int, int]:
    """Return how many rows of each section are visible in so many lines; the cursor is in section `here`.

    First come the cursor's row, a running one and two waiting ones; ended jobs that were opened get a third of the
    lines; then come all running jobs as far as they fit. What is left is for waiting and ended ones.
    """
    found = [0, 0, 0]

    def give(section: Section, most: int) -> None:
        more = min(most, counts[section]) - found[section]
        found[section] += max(0, min(more, room - sum(found)))

    if here is not None:
        give(here, 1)
    give(Section.RUNNING, 1)
    give(Section.WAITING, LEAST_WAITING)
    give(Section.ENDED, max(1, room // 3))
    give(Section.RUNNING, counts[Section.RUNNING])
    spare = room - sum(found)
    give(Section.WAITING, found[Section.WAITING] + (spare + 1) // 2)
    give(Section.ENDED, counts[Section.ENDED])
    give(Section.WAITING, counts[Section.WAITING])
    return found[0], found[1], found[2]


def visible(
    extent: Extent, height: int, row: int | None = None, tops: Sequence[int] = (0, 0, 0), *, words: int = 0
) -> View:
    """Return the lines of a pane: its sections from the top, the ended jobs at its lower end.

    Each section shows its rows from its place in `tops` on; the section of `row` so that this one is visible. `words`
    is the number of lines that say why nothing runs or waits.
    """
    here = extent.section(row) if row is not None else None
    is_live = bool(extent.running or extent.waiting)
    has_foot = extent.has_ended or (is_live and extent.running + extent.waiting > height)
    foot = has_foot and (height >= _FOOT_FROM or (row is not None and row == extent.fold))
    shown = shares(extent.counts, max(0, height - foot), here)
    begins = [0, 0, 0]
    parts: list[list[int]] = []
    for section, share, rows_of_it, start in zip(Section, shown, extent.counts, extent.starts, strict=True):
        top = tops[section]
        if row is not None and section is here and share:
            top = max(min(top, row - start), row - start - share + 1)
        begins[section] = max(0, min(top, rows_of_it - share))
        parts.append([start + begins[section] + each for each in range(share)])
    lines = [*parts[Section.RUNNING], *parts[Section.WAITING]]
    if not is_live:
        lines = [WORDS - each for each in range(min(words, height - foot - len(parts[Section.ENDED])))]
    end = ([FOOT if extent.fold is None else extent.fold] * foot) + parts[Section.ENDED]
    lines += [BLANK] * (height - len(lines) - len(end)) + end
    return View(tuple(lines[:height]), (begins[0], begins[1], begins[2]), shown)


Unit = JobId
"""Owner of a line among the running jobs: a job's id, or the negated id of an array whose elements share a row."""


class Place(Struct, frozen=True):
    """Line of a running job, or of the running elements of an array."""

    unit: Unit
    members: tuple[JobId, ...]
    """Active jobs of the unit; after their end those that were the last ones."""
    left_at: datetime | None = None
    """Time since which no job of it runs."""

    def has_any(self, ids: Collection[JobId]) -> bool:
        return any(job_id in ids for job_id in self.members)


class Places(Struct, eq=False):
    """Lines of the running jobs, which keep them while they run.

    The next job that starts takes the line of one that has ended; if none starts, the line goes after a while.
    """

    _places: list[Place] = field(default_factory=list)
    changes_at: datetime | None = None

    def update(
        self,
        active: Iterable[Job],
        unit_of: Callable[[Job], Unit],
        jobs: Mapping[JobId, Job],
        now: datetime,
        *,
        held: Collection[JobId] = (),
        room: int = sys.maxsize,
    ) -> list[JobId]:
        """Return the jobs in the order of their lines; in the line of an ended one, that one.

        `active` jobs that are new come in their order. The lines of `held` jobs stay whatever happens. Only `room`
        lines are visible: a job below them takes the line of one that has ended.
        """
        members: dict[Unit, list[JobId]] = {}
        for job in active:
            members.setdefault(unit_of(job), []).append(job.id)
        found: dict[Unit, Place] = {}  # each job is where its unit was, though its array was opened or closed
        for place in self._places:
            for job_id in place.members:
                known = jobs.get(job_id)
                if known is not None and section_of(known) is not Section.WAITING:
                    unit = unit_of(known)
                    before = found[unit].members if unit in found else ()
                    found[unit] = Place(unit, (*before, job_id), place.left_at)
        places = list(found.values())
        new = deque(Place(unit, tuple(ids)) for unit, ids in members.items() if unit not in found)
        for at, place in enumerate(places):
            if place.unit in members:
                places[at] = Place(place.unit, tuple(members[place.unit]))
            elif new and not place.has_any(held):
                places[at] = new.popleft()
            else:
                places[at] = replace(place, left_at=place.left_at or now)
        self._close_gaps([*places, *new], now, held, room)
        free = [place.left_at for place in self._places if place.left_at is not None and not place.has_any(held)]
        ends = [left_at + after for left_at in free for after in (GRACE, LONG_GRACE) if left_at + after > now]
        self.changes_at = min(ends, default=None)
        return [job_id for place in self._places for job_id in place.members]

    def _close_gaps(self, places: list[Place], now: datetime, held: Collection[JobId], room: int) -> None:
        """Take the lines without gaps that are due, or that hide a job below the visible lines.

        The last line is moved into a gap, so that no other one moves.
        """
        found = self._places = list(places)
        for gap in places:
            if gap.left_at is None or gap.has_any(held):
                continue
            at = found.index(gap)
            below = [n for n in range(at + 1, len(found)) if not found[n].left_at or found[n].has_any(held)]
            last = max((n for n in below if not found[n].has_any(held)), default=at)
            if below and last == at:
                continue  # only the cursor's row could move
            if now - gap.left_at >= (LONG_GRACE if below else GRACE) or at >= room or last >= room:
                found[at] = found[last]
                del found[last]


class Marks(Set[JobId]):
    """An immutable set of ids that is cheap for long runs of consecutive ids."""

    __slots__ = ("_spans",)

    def __init__(self, spans: Spans = Spans()) -> None:  # noqa: B008 - frozen
        self._spans = spans

    @classmethod
    def of(cls, jobs: Iterable[Job]) -> Marks:
        return cls(runs.joined_spans((run.id, run.end) for job in jobs for run in runs_of_job(job)))

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._spans

    def __iter__(self) -> Iterator[JobId]:
        return chain.from_iterable(starmap(range, self._spans.parts))

    def __len__(self) -> int:
        return sum(end - start for start, end in self._spans.parts)

    def __repr__(self) -> str:
        return f"Marks({self._spans!r})"

    def with_all(self, other: Marks) -> Marks:
        return Marks(runs.joined_spans((*self._spans.parts, *other._spans.parts)))

    def without(self, other: Marks) -> Marks:
        mine = tuple(Run(start, 0, end - start) for start, end in self._spans.parts)
        return Marks(runs.joined_spans((run.id, run.end) for run in runs.divided(mine, other._spans)[1]))

    def has_any(self, job: Job) -> bool:
        return any(True for run in runs_of_job(job) for _ in self._spans.overlaps(run))

    def has_all(self, other: Marks) -> bool:
        return not other.without(self)

    def part(self, job: Job) -> Job | None:
        """Return the job if it is marked; of an entry, the marked elements; None if there are none."""
        if not job.runs:
            return job if job.id in self._spans else None
        marked = job.divided(self._spans)[0]
        return job if marked is not None and marked.count == job.count else marked


def runs_of_job(job: Job) -> Runs:
    return job.runs or (Run(job.id, 0, 1),)


FOLD = 0
"""Key of the row that ended jobs share; no job has this id."""
_MOST = 200
"""Maximum number of viewed failures that are remembered."""


class EndedRows(Enum):
    FOLDED = "folded"
    """All share one row."""
    OPEN = "open"
    """Each has its own row, below that one."""
    HIDDEN = "hidden"
    """Not even counted."""


class LookedAt:
    """Failed jobs whose page or log was opened after their end, and the time up to which all are acknowledged."""

    def __init__(self, known: Mapping[str, object] = MappingProxyType({})) -> None:
        names, until = known.get("jobs"), known.get("until")
        self._known = dict.fromkeys(str(name) for name in names) if isinstance(names, list | tuple) else {}
        self._until = float(until) if isinstance(until, int | float) else 0.0

    def has(self, job: Job) -> bool:
        return job.end.timestamp() <= self._until or _end_of(job) in self._known

    def add(self, job: Job) -> bool:
        if not job.state.is_failure or self.has(job):
            return False
        self._known[_end_of(job)] = None
        for oldest in list(self._known)[:-_MOST]:
            del self._known[oldest]
        return True

    def add_all(self, jobs: Iterable[Job]) -> int:
        """Record that all failures among these were seen; return how many of them are new, elements counted."""
        failed = [job for job in jobs if job.state.is_failure]
        new = count(job for job in failed if not self.has(job))
        if new:
            self._known, self._until = {}, max(job.end.timestamp() for job in failed)
        return new

    def values(self) -> dict[str, object]:
        return {"jobs": list(self._known), "until": self._until}


def _end_of(job: Job) -> str:
    return f"{job.id} {job.ended_at.timestamp():.0f}" if job.ended_at else str(job.id)


def by_end(job: Job) -> tuple[datetime, JobId]:
    return job.end, job.id


class EndedCounts(Struct):
    total: int = 0
    failed: int = 0
    new: int = 0
    """Failures that nobody has acknowledged."""

    @classmethod
    def of(cls, jobs: Iterable[Job], looked_at: LookedAt) -> EndedCounts:
        found = cls()
        for job in jobs:
            found.total += job.count
            if job.state.is_failure:
                found.failed += job.count
                found.new += 0 if looked_at.has(job) else job.count
        return found


def merged(waiting: list[JobId], ended: Iterable[Job], before: Sequence[JobId]) -> list[JobId]:
    """Return the waiting jobs with ended ones, each after the same waiting job as before."""
    left = {job.id for job in ended}
    if not left:
        return waiting
    after: dict[JobId, list[JobId]] = {}
    known, last = set(waiting), 0
    for job_id in before:
        if job_id in left:
            after.setdefault(last, []).append(job_id)
        elif job_id in known:
            last = job_id
    return [*after.get(0, ()), *(found for job_id in waiting for found in (job_id, *after.get(job_id, ())))]


RowKey: TypeAlias = int
"""Job id, or a negative number if elements of an array share the row.

Of waiting ones it is the negated id of the last one, which waits longest; of others it has the array's id.
"""
_ACTIVE, _ENDED = 1 << 300, 1 << 301
"""Added to the id of an array, for the rows of its active and its ended elements: larger than all ids."""
RowSpan: TypeAlias = RowKey | range


class RowKeys(Sequence[RowKey]):
    """Sorted keys, built from single keys and ranges."""

    def __init__(self, pieces: Iterable[RowSpan]) -> None:
        self.pieces = [piece if isinstance(piece, range) else range(piece, piece + 1) for piece in pieces]
        self._starts = list(accumulate(map(len, self.pieces), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, row: int) -> RowKey: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[RowKey]: ...
    def __getitem__(self, row: int | slice) -> RowKey | Sequence[RowKey]:
        if isinstance(row, slice):
            return [self[place] for place in range(len(self))[row]]
        row = range(len(self))[row]
        place = bisect_right(self._starts, row) - 1
        return self.pieces[place][row - self._starts[place]]

    def __iter__(self) -> Iterator[RowKey]:
        return chain.from_iterable(self.pieces)

    @property
    def positions(self) -> RowPositions:
        return RowPositions(self.pieces, self._starts)


class RowPositions(Mapping[RowKey, int]):
    def __init__(self, ranges: Sequence[range], starts: Sequence[int]) -> None:
        self._placed = sorted(
            (min(keys[0], keys[-1]), keys, start) for keys, start in zip(ranges, starts, strict=False)
        )
        self._least = [least for least, _, _ in self._placed]

    def __getitem__(self, key: RowKey) -> int:
        place = bisect_right(self._least, key) - 1
        if place < 0:
            raise KeyError(key)
        _, keys, start = self._placed[place]
        if key not in keys:
            raise KeyError(key)
        return start + keys.index(key)

    def __iter__(self) -> Iterator[RowKey]:
        return chain.from_iterable(keys for _, keys, _ in self._placed)

    def __len__(self) -> int:
        return sum(len(keys) for _, keys, _ in self._placed)


CLOSED, OPEN = "▸", "▾"
DEEPEST = 3
"""Depth of dependents from which they are not indented further, as all names begin in one column."""


class Folds(Struct):
    """Unfolded arrays and jobs. By default arrays are folded, and dependents are in their own place."""

    arrays: set[JobId] = field(default_factory=set)
    """Unfolded arrays, whose waiting elements have a row each."""
    parents: set[JobId] = field(default_factory=set)
    """Unfolded jobs, whose dependents are below them."""


class ArrangedRows(Struct, frozen=True):
    keys: Sequence[RowKey] = ()
    groups: Mapping[RowKey, tuple[Job, ...]] = field(default_factory=dict)
    """Jobs of each row that represents several."""
    signs: Mapping[RowKey, str] = field(default_factory=dict)
    """Signs before the name: whether the row can be unfolded, and its depth."""
    split: int = 0
    """Number of rows of the first jobs, if two lists were arranged."""


def joined_rows(first: ArrangedRows, between: Sequence[RowKey], second: ArrangedRows) -> ArrangedRows:
    if not between and not second.keys:
        return first
    groups, signs = {**first.groups, **second.groups}, {**first.signs, **second.signs}
    if isinstance(first.keys, RowKeys) or isinstance(second.keys, RowKeys):
        above, below = (each.keys.pieces if isinstance(each.keys, RowKeys) else each.keys for each in (first, second))
        return ArrangedRows(RowKeys((*above, *between, *below)), groups, signs, first.split)
    return ArrangedRows([*first.keys, *between, *second.keys], groups, signs, first.split)


def rows(
    ids: Sequence[JobId],
    jobs: Mapping[JobId, Job],
    folds: Folds,
    dependents: Mapping[JobId, list[JobId]],
    *,
    split: int = 0,
    last_first: bool = False,
) -> ArrangedRows:
    """Return the rows of these sorted jobs; with `last_first` an array's last element comes first.

    `jobs` contains entries by their ids. The first `split` jobs are a section, in which no other job shares a row.
    """
    if not dependents and not any(jobs[job_id].array for job_id in ids):
        return ArrangedRows(ids, split=split)
    shown = frozenset(ids)
    below = {parent: [child for child in children if child in shown] for parent, children in dependents.items()}
    below = {parent: children for parent, children in below.items() if children and parent in shown}
    return _Arranging(ids, jobs, folds, below, last_first).rows(split)


def dependents_of(jobs: Iterable[Job]) -> dict[JobId, list[JobId]]:
    found: dict[JobId, list[JobId]] = {}
    for job in jobs:
        if job.state is JobState.PENDING:
            for parent in dict.fromkeys((*job.spec.after, *job.spec.after_any)):
                found.setdefault(parent, []).append(job.id)
    return found


class _Arranging(Struct):
    ids: Sequence[JobId]
    jobs: Mapping[JobId, Job]
    folds: Folds
    dependents: Mapping[JobId, list[JobId]]
    """Only shown ones, of shown jobs."""
    last_first: bool
    groups: dict[RowKey, tuple[Job, ...]] = field(default_factory=dict)
    signs: dict[RowKey, str] = field(default_factory=dict)
    done: set[JobId] = field(default_factory=set)

    def rows(self, split: int) -> ArrangedRows:
        beneath = {child for parent in self.folds.parents for child in self.dependents.get(parent, ())}
        pieces: list[RowSpan] = []
        first: list[RowSpan] = []
        for at, job_id in enumerate(self.ids):
            if at == split:
                first, pieces = pieces, []
            if job_id not in beneath:
                pieces += self._tree(job_id, 0)
        if split >= len(self.ids):
            first, pieces = pieces, []
        pieces += [piece for job_id in self.ids for piece in self._tree(job_id, 0)]  # two that wait for each other
        above, below = self._grouped(first), self._grouped(pieces)
        count_above = sum(len(piece) if isinstance(piece, range) else 1 for piece in above)
        grouped = [*above, *below]
        keys = RowKeys(grouped) if any(isinstance(piece, range) for piece in grouped) else grouped
        return ArrangedRows(keys, self.groups, self.signs, count_above)  # type: ignore[arg-type]  # these are keys

    def _is_open(self, job: Job) -> bool:
        return job.array is not None and job.array.id in self.folds.arrays

    def _tree(self, job_id: JobId, depth: int) -> Iterator[RowSpan]:
        if job_id in self.done:
            return
        self.done.add(job_id)
        children = self.dependents.get(job_id, ())
        is_open = job_id in self.folds.parents
        sign = (OPEN if is_open else CLOSED) if children else ""
        if sign or depth:
            self.signs[job_id] = ("  " * (min(depth, DEEPEST) - 1) + "└" if depth else "") + sign
        job = self.jobs[job_id]
        elements: list[range] = []  # in the order of their rows
        has_elements = bool(job.runs) and self._is_open(job)
        if has_elements and (rest := job.without((job.id,)) if children else job) is not None:
            elements = [run.ids for run in runs_of_job(rest)]
        if not has_elements or children:
            yield job_id
        for child in children if is_open else ():
            yield from self._tree(child, depth + 1)
        yield from (span[::-1] for span in reversed(elements)) if self.last_first else elements

    def _grouped(self, pieces: list[RowSpan]) -> list[RowSpan]:
        """Return the rows with one for the elements of each folded array that wait, are active or have ended."""
        kept = [self.jobs[key] for key in pieces if isinstance(key, int)]
        closed = [job for job in kept if job.array is not None and not self._is_open(job)]
        foldable = [job for job in closed if job.runs or job.id not in self.signs]
        firsts: dict[RowSpan, RowKey] = {}
        hidden: set[RowSpan] = set()

        def alike(job: Job) -> object:
            if job.array is None or section_of(job) is Section.WAITING:
                return likeness(job)
            return job.array.id, section_of(job)

        for group in folded(foldable, by=alike):
            if count(group) > 1:
                array, section = group[0].array, section_of(group[0])
                key = -max(job.last_id for job in group)
                if array is not None and section is not Section.WAITING:
                    key = -(array.id + (_ACTIVE if section is Section.RUNNING else _ENDED))
                firsts[group[0].id], self.groups[key] = key, group
                self.signs[key] = self.signs.get(group[0].id, "").rstrip(CLOSED + OPEN) + CLOSED
                hidden.update(job.id for job in group)
        return [firsts.get(key, key) for key in pieces if key in firsts or key not in hidden]


def array_of(key: RowKey, jobs: Entries) -> JobId | None:
    """Return the array whose elements share, or shared, the row of that key; None: of no array."""
    if key <= -_ACTIVE:
        return -key - (_ENDED if key <= -_ENDED else _ACTIVE)
    job = jobs.get(abs(key))
    return job.array.id if job is not None and job.array is not None else None
