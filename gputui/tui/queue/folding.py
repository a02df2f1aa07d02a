"""Rows of the queue: elements of folded arrays share one, and dependents are below the job they wait for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import TypeAlias, overload

from msgspec import Struct, field

from gputui.domain.arrays import count, folded, likeness
from gputui.domain.entries import Entries
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.state import JobState
from gputui.tui.queue.marks import runs_of_job
from gputui.tui.queue.sections import Section, section_of

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
        self._ranges = [piece if isinstance(piece, range) else range(piece, piece + 1) for piece in pieces]
        self._starts = list(accumulate(map(len, self._ranges), initial=0))

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
        return self._ranges[place][row - self._starts[place]]

    def __iter__(self) -> Iterator[RowKey]:
        return chain.from_iterable(self._ranges)

    @property
    def pieces(self) -> Sequence[range]:
        """Ranges of keys, in order."""
        return self._ranges

    @property
    def positions(self) -> RowPositions:
        """Row of each key."""
        return RowPositions(self._ranges, self._starts)


class RowPositions(Mapping[RowKey, int]):
    """Mapping from key to row."""

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
    """Rows from the top."""

    keys: Sequence[RowKey] = ()
    groups: Mapping[RowKey, tuple[Job, ...]] = field(default_factory=dict)
    """Jobs of each row that represents several."""
    signs: Mapping[RowKey, str] = field(default_factory=dict)
    """Signs before the name: whether the row can be unfolded, and its depth."""
    split: int = 0
    """Number of rows of the first jobs, if two lists were arranged."""


NO_ROWS = ArrangedRows()


def joined_rows(first: ArrangedRows, between: Sequence[RowKey], second: ArrangedRows = NO_ROWS) -> ArrangedRows:
    """Return the rows of both, with rows of those keys in between."""
    if not between and not second.keys:
        return first
    groups, signs = {**first.groups, **second.groups}, {**first.signs, **second.signs}
    if isinstance(first.keys, RowKeys) or isinstance(second.keys, RowKeys):
        keys = RowKeys((*_pieces(first.keys), *between, *_pieces(second.keys)))
        return ArrangedRows(keys, groups, signs, first.split)
    return ArrangedRows([*first.keys, *between, *second.keys], groups, signs, first.split)


def _pieces(keys: Sequence[RowKey]) -> Iterable[RowSpan]:
    return keys.pieces if isinstance(keys, RowKeys) else keys


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
    return _Arranging(ids, jobs, folds, dependents, last_first=last_first).rows(split)


def dependents_of(jobs: Iterable[Job]) -> dict[JobId, list[JobId]]:
    """Return the dependents of each job, by its id."""
    found: dict[JobId, list[JobId]] = {}
    for job in jobs:
        if job.state is JobState.PENDING:
            for parent in dict.fromkeys((*job.spec.after, *job.spec.after_any)):
                found.setdefault(parent, []).append(job.id)
    return found


class _Arranging:
    """Builder of the rows."""

    def __init__(
        self,
        ids: Sequence[JobId],
        jobs: Mapping[JobId, Job],
        folds: Folds,
        dependents: Mapping[JobId, list[JobId]],
        *,
        last_first: bool,
    ) -> None:
        self._ids = ids
        self._last_first = last_first
        self._jobs = jobs
        self._folds = folds
        self._shown = frozenset(ids)
        self._dependents = {
            parent: kept
            for parent, children in dependents.items()
            if parent in self._shown and (kept := [child for child in children if child in self._shown])
        }
        self._groups: dict[RowKey, tuple[Job, ...]] = {}
        self._signs: dict[RowKey, str] = {}
        self._done: set[JobId] = set()

    def rows(self, split: int) -> ArrangedRows:
        beneath = {child for parent in self._folds.parents for child in self._dependents.get(parent, ())}
        pieces: list[RowSpan] = []
        first: list[RowSpan] = []
        for at, job_id in enumerate(self._ids):
            if at == split:
                first, pieces = pieces, []
            if job_id not in beneath:
                pieces += self._tree(job_id, 0)
        if split >= len(self._ids):
            first, pieces = pieces, []
        pieces += [piece for job_id in self._ids for piece in self._tree(job_id, 0)]  # two that wait for each other
        above, below = self._grouped(first), self._grouped(pieces)
        count_above = sum(len(piece) if isinstance(piece, range) else 1 for piece in above)
        grouped = [*above, *below]
        keys = RowKeys(grouped) if any(isinstance(piece, range) for piece in grouped) else grouped
        return ArrangedRows(keys, self._groups, self._signs, count_above)  # type: ignore[arg-type]  # these are keys

    def _is_open(self, job: Job) -> bool:
        return job.array is not None and job.array.id in self._folds.arrays

    def _tree(self, job_id: JobId, depth: int) -> Iterator[RowSpan]:
        """Yield the job, its dependents if it is unfolded, and the other elements of an unfolded array."""
        if job_id in self._done:
            return
        self._done.add(job_id)
        children = self._dependents.get(job_id, ())
        is_open = job_id in self._folds.parents
        sign = (OPEN if is_open else CLOSED) if children else ""
        if sign or depth:
            self._signs[job_id] = ("  " * (min(depth, DEEPEST) - 1) + "└" if depth else "") + sign
        job = self._jobs[job_id]
        elements = self._elements(job, with_first=not children) if job.runs and self._is_open(job) else None
        if elements is None or children:
            yield job_id
        for child in children if is_open else ():
            yield from self._tree(child, depth + 1)
        yield from elements or ()

    def _elements(self, entry: Job, *, with_first: bool) -> list[range]:
        """Return the ids of the elements of an entry, in the order of their rows."""
        rest = entry if with_first else entry.without((entry.id,))
        found = [run.ids for run in runs_of_job(rest)] if rest is not None else []
        return [span[::-1] for span in reversed(found)] if self._last_first else found

    def _grouped(self, pieces: list[RowSpan]) -> list[RowSpan]:
        """Return the rows with one for the elements of each folded array that wait, are active or have ended."""
        foldable = [self._jobs[key] for key in pieces if isinstance(key, int) and self._is_foldable(key)]
        firsts: dict[RowSpan, RowKey] = {}
        hidden: set[RowSpan] = set()
        for group in folded(foldable, by=_likeness):
            if count(group) > 1:
                key = _key_of(group)
                firsts[group[0].id], self._groups[key] = key, group
                self._signs[key] = self._signs.get(group[0].id, "").rstrip(CLOSED + OPEN) + CLOSED
                hidden.update(job.id for job in group)
        return [firsts.get(key, key) for key in pieces if key in firsts or key not in hidden]

    def _is_foldable(self, job_id: JobId) -> bool:
        job = self._jobs[job_id]
        return job.array is not None and not self._is_open(job) and (bool(job.runs) or job_id not in self._signs)


def _likeness(job: Job) -> object:
    """Return what elements of an array have in common that share a row."""
    if job.array is None or section_of(job) is Section.WAITING:
        return likeness(job)
    return job.array.id, section_of(job)


def _key_of(group: Sequence[Job]) -> RowKey:
    first = group[0]
    if first.array is None or section_of(first) is Section.WAITING:
        return -max(job.last_id for job in group)
    return -(first.array.id + (_ACTIVE if section_of(first) is Section.RUNNING else _ENDED))


def array_of(key: RowKey, jobs: Entries) -> JobId | None:
    """Return the array whose elements share, or shared, the row of that key; None: of no array."""
    if key <= -_ACTIVE:
        return -key - (_ENDED if key <= -_ENDED else _ACTIVE)
    job = jobs.get(abs(key))
    return job.array.id if job is not None and job.array is not None else None
