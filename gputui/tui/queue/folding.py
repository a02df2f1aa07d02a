"""Which jobs share a row: an array's waiting elements, until they are unfolded; and who stands beneath whom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from gputui.domain.arrays import folded
from gputui.domain.job import Job, JobId
from gputui.domain.state import JobState

RowKey: TypeAlias = int
"""A job's id; or, of waiting elements that share a row, minus the last one's, which is there for longest."""
CLOSED, OPEN = "▸", "▾"


@dataclass
class Folds:
    """What is folded and what is open: arrays are folded until they are opened, dependents stand in their turn."""

    arrays: set[JobId] = field(default_factory=set)
    """Arrays whose waiting elements have a row each."""
    parents: set[JobId] = field(default_factory=set)
    """Jobs whose dependents stand beneath them."""


@dataclass(frozen=True)
class Rows:
    """The rows, from the top."""

    keys: Sequence[RowKey] = ()
    groups: Mapping[RowKey, tuple[JobId, ...]] = field(default_factory=dict)
    """The jobs of a row that stands for several."""
    signs: Mapping[RowKey, str] = field(default_factory=dict)
    """What stands before the name: whether there is more to see, and how deep beneath another it is."""


def rows(
    ids: Sequence[JobId], jobs: Mapping[JobId, Job], folds: Folds, dependents: Mapping[JobId, list[JobId]]
) -> Rows:
    """The rows of these jobs, which are in their order."""
    is_plain = not dependents and not any(jobs[job_id].array for job_id in ids)
    return Rows(ids) if is_plain else _Arranging(ids, jobs, folds, dependents).rows()


def dependents_of(jobs: Iterable[Job]) -> dict[JobId, list[JobId]]:
    """Of each job that others wait for, those others."""
    found: dict[JobId, list[JobId]] = {}
    for job in jobs:
        if job.state is JobState.PENDING:
            for parent in dict.fromkeys((*job.spec.after, *job.spec.after_any)):
                found.setdefault(parent, []).append(job.id)
    return found


class _Arranging:
    """The rows while they are put together."""

    def __init__(
        self,
        ids: Sequence[JobId],
        jobs: Mapping[JobId, Job],
        folds: Folds,
        dependents: Mapping[JobId, list[JobId]],
    ) -> None:
        self._ids = ids
        self._jobs = jobs
        self._folds = folds
        self._shown = frozenset(ids)
        self._dependents = {
            parent: kept
            for parent, children in dependents.items()
            if parent in self._shown and (kept := [child for child in children if child in self._shown])
        }
        self._groups: dict[RowKey, tuple[JobId, ...]] = {}
        self._signs: dict[RowKey, str] = {}
        self._done: set[JobId] = set()

    def rows(self) -> Rows:
        beneath = {child for parent in self._folds.parents for child in self._dependents.get(parent, ())}
        keys: list[RowKey] = []
        for job_id in self._ids:
            if job_id not in beneath:
                keys += self._tree(job_id, 0)
        keys += [key for job_id in self._ids for key in self._tree(job_id, 0)]  # two that wait for each other
        return Rows(self._grouped(keys), self._groups, self._signs)

    def _tree(self, job_id: JobId, depth: int) -> Iterator[RowKey]:
        """The job, and beneath it those that wait for it, where it is open."""
        if job_id in self._done:
            return
        self._done.add(job_id)
        children = self._dependents.get(job_id, ())
        is_open = job_id in self._folds.parents
        sign = (OPEN if is_open else CLOSED) if children else ""
        if sign or depth:
            self._signs[job_id] = ("  " * (depth - 1) + "└" if depth else "") + sign
        yield job_id
        for child in children if is_open else ():
            yield from self._tree(child, depth + 1)

    def _grouped(self, keys: list[RowKey]) -> list[RowKey]:
        """One row for the waiting elements of each array that is not open."""
        foldable = [key for key in keys if self._is_foldable(key)]
        firsts: dict[JobId, RowKey] = {}
        hidden: set[JobId] = set()
        for group in folded(self._jobs[key] for key in foldable):
            if len(group) > 1:
                ids = tuple(job.id for job in group)
                key = -max(ids)
                firsts[ids[0]], self._groups[key], self._signs[key] = key, ids, CLOSED
                hidden.update(ids)
        return [firsts.get(key, key) for key in keys if key in firsts or key not in hidden]

    def _is_foldable(self, job_id: JobId) -> bool:
        array = self._jobs[job_id].array
        return array is not None and array.id not in self._folds.arrays and job_id not in self._signs
