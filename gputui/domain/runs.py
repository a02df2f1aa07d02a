"""Runs of array elements: consecutive ids with evenly spaced indices, so that 100,000 elements are one value."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from msgspec import Struct

_SHORTEST = 3
"""Minimum number of elements for a run with a spacing other than 1: `1,5,6,7` is 1 and 5-7."""


class Run(NamedTuple):
    """Elements of an array with consecutive ids."""

    id: int
    """Id of the first element."""
    index: int  # type: ignore[assignment]  # tuple.index, which nobody needs of a run
    """Index of the first element in its array."""
    count: int  # type: ignore[assignment]  # likewise
    step: int = 1
    """Difference between the indices of neighbours, at least 1."""

    @property
    def ids(self) -> range:
        return range(self.id, self.id + self.count)

    @property
    def indices(self) -> range:
        """The indices of the elements, in the order of their ids."""
        return range(self.index, self.index + self.count * self.step, self.step)

    @property
    def end(self) -> int:
        """The id after the last element's."""
        return self.id + self.count

    def index_of(self, job_id: int) -> int:
        return self.index + (job_id - self.id) * self.step

    def part(self, start: int, end: int) -> Run:
        """Return the elements with ids from `start` up to, but not including, `end`, which must be within the run."""
        return Run(start, self.index_of(start), end - start, self.step if end - start > 1 else 1)

    def __str__(self) -> str:
        """Return `7`, `0-9` or `0-20:5`, in the notation of `--array`."""
        last = self.indices[-1]
        if self.count == 1:
            return str(self.index)
        return f"{self.index}-{last}" if self.step == 1 else f"{self.index}-{last}:{self.step}"


Runs = tuple[Run, ...]
"""Disjoint runs in the order of their ids."""


def count(runs: Iterable[Run]) -> int:
    return sum(run.count for run in runs)


def ids(runs: Iterable[Run]) -> Iterator[int]:
    return chain.from_iterable(run.ids for run in runs)


def indices(runs: Iterable[Run]) -> Iterator[int]:
    return chain.from_iterable(run.indices for run in runs)


def runs_of(first: int, chosen: Sequence[int]) -> Runs:
    """Return the runs of elements with these indices and consecutive ids from `first`."""
    found, start = [], 0
    while start < len(chosen):
        end = start + 1
        step = chosen[end] - chosen[start] if end < len(chosen) else 0
        while step > 0 and end < len(chosen) and chosen[end] - chosen[end - 1] == step:
            end += 1
        if step > 1 and end - start < _SHORTEST:
            end = start + 1
        found.append(Run(first + start, chosen[start], end - start, step if end - start > 1 else 1))
        start = end
    return tuple(found)


def merged(runs: Iterable[Run]) -> Runs:
    """Return the same elements in as few runs as possible; two single ones are joined only if they are neighbours."""
    found: list[Run] = []
    for run in sorted(runs):
        last = found[-1] if found else None
        step = run.index - last.indices[-1] if last else 0
        if (
            last is None
            or last.end != run.id
            or step < 1
            or (last.count == run.count == 1 and step != 1)
            or any(each.count > 1 and each.step != step for each in (last, run))
        ):
            found.append(run)
        else:
            found[-1] = Run(last.id, last.index, last.count + run.count, step)
    return tuple(found)


def find(runs: Sequence[Run], job_id: int) -> Run | None:
    place = bisect_right(runs, job_id, key=lambda run: run.id) - 1
    return runs[place] if place >= 0 and job_id < runs[place].end else None


class Spans(Struct, frozen=True):
    """Set of ids as ranges of consecutive ids."""

    parts: tuple[tuple[int, int], ...] = ()
    """Ranges, each with the id after its last one, sorted and disjoint."""

    def __contains__(self, job_id: object) -> bool:
        if not isinstance(job_id, int):
            return False
        place = bisect_right(self.parts, job_id, key=itemgetter(0)) - 1
        return place >= 0 and job_id < self.parts[place][1]

    def overlaps(self, run: Run) -> Iterator[tuple[int, int]]:
        place = max(bisect_right(self.parts, run.id, key=itemgetter(0)) - 1, 0)
        while place < len(self.parts) and self.parts[place][0] < run.end:
            start, end = max(self.parts[place][0], run.id), min(self.parts[place][1], run.end)
            if start < end:
                yield start, end
            place += 1


def spans_of(chosen: Iterable[int] | Spans) -> Spans:
    if isinstance(chosen, Spans):
        return chosen
    if isinstance(chosen, range) and chosen.step == 1:
        return Spans(((chosen.start, chosen.stop),) if chosen else ())
    return joined_spans((job_id, job_id + 1) for job_id in set(chosen))


def joined_spans(parts: Iterable[tuple[int, int]]) -> Spans:
    spans: list[tuple[int, int]] = []
    first = last = None
    for start, end in sorted(parts):
        if last is None or first is None:
            first, last = start, end
        elif start <= last:
            last = max(last, end)
        else:
            spans.append((first, last))
            first, last = start, end
    if first is not None and last is not None:
        spans.append((first, last))
    return Spans(tuple(spans))


def divided(runs: Runs, chosen: Iterable[int] | Spans) -> tuple[Runs, Runs]:
    """Return the elements with the chosen ids, and the others. Unknown ids are ignored."""
    spans = spans_of(chosen)
    inside: list[Run] = []
    left: list[Run] = []
    for run in runs:
        at = run.id
        for start, end in spans.overlaps(run):
            if start > at:
                left.append(run.part(at, start))
            inside.append(run.part(start, end))
            at = end
        if at < run.end:
            left.append(run.part(at, run.end))
    return tuple(inside), tuple(left)


def words(runs: Iterable[Run], longest: int | None = None) -> str:
    """Return `0-4,7,9-12`; if that is longer than `longest`, its first runs and `...`."""
    text = ""
    for run in sorted(runs, key=lambda run: run.index):
        part = f",{run}" if text else str(run)
        if longest is not None and len(text) + len(part) > longest:
            return f"{text},..." if text else "..."
        text += part
    return text
