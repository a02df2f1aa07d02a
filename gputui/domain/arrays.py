"""Job arrays in lists: waiting elements that are alike share a line, as in squeue."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache

from gputui.domain import runs
from gputui.domain.cluster import array_of
from gputui.domain.job import MAX_INDICES, Job
from gputui.domain.runs import Run, Runs
from gputui.domain.state import JobState


def likeness(job: Job) -> object:
    """Return what similar waiting elements of an array have in common, and no other job has."""
    if job.array is None or job.state is not JobState.PENDING:
        return job.id
    shown = (job.spec.name, job.spec.gpus, job.spec.time_limit)
    return (job.array.id, job.priority, job.held, job.hold_reason, job.cancel_requested, job.not_before, *shown)


def folded(
    jobs: Iterable[Job], *, unfold: bool = False, by: Callable[[Job], object] = likeness
) -> list[tuple[Job, ...]]:
    """Return the jobs in order, with similar waiting elements of an array grouped at the place of the first.

    With `unfold` each element is by itself. `by` is the same for jobs of one group.
    """
    if unfold:
        return [(job,) for job in jobs]
    groups: dict[object, list[Job]] = {}
    for job in jobs:
        groups.setdefault(by(job), []).append(job)
    return [tuple(group) for group in groups.values()]


def unfolded(jobs: Iterable[Job]) -> Iterator[Job]:
    """Yield each job by itself: every element of an entry."""
    for job in jobs:
        if job.runs:
            yield from map(job.element, job.ids)
        else:
            yield job


def count(group: Iterable[Job]) -> int:
    """Return the number of jobs, each element of an entry counted."""
    return sum(job.count for job in group)


def elements_in_history(known: Collection[Job]) -> int:
    """Return how many elements have left the queue file, of an array of which these are all remaining entries.

    The ids of an array are consecutive from its own id on. Elements behind the last entry are not counted. Of a
    cluster's array, whose ids are others, none is known to have left.
    """
    array = next((job.array for job in known if job.array is not None), None)
    if array is None or any(array_of(job.id) == array.id for job in known):
        return 0
    return max(0, max(job.last_id for job in known) - array.id + 1 - count(known))


def id_word(group: tuple[Job, ...]) -> str:
    """Return `12`, `12_7`, or `12_[0-99999%8]` for elements of array 12 of which eight may run at a time."""
    first = group[0]
    if len(group) == 1 or first.array is None:
        return first.shown_id
    limit = f"%{first.array.limit}" if first.array.limit else ""
    return f"{first.array.id}_[{elements_word(group)}{limit}]"


def elements_word(group: Iterable[Job]) -> str:
    """Return the indices of these elements of an array, `0-4,7,9-12`, or only the first if there are many."""
    return runs.words(_by_index(_runs(group)), MAX_INDICES)


def all_indices(job: Job) -> str:
    """Return all indices of an entry's elements, in the notation of `--array`."""
    return runs.words(_by_index(_runs((job,))))


def indices_word(indices: Iterable[int]) -> str:
    """Return `0-4,7,9-12`; if that is too long, its beginning up to a comma, and `...`."""
    return runs.words(runs.runs_of(0, sorted(indices)), MAX_INDICES)


def _runs(group: Iterable[Job]) -> Runs:
    """Return the elements of arrays among the jobs."""
    return tuple(run for job in group if job.array for run in job.runs or (Run(job.id, job.array.index, 1),))


@lru_cache(maxsize=64)
def _by_index(found: Runs) -> Runs:
    """Return the indices in as few runs as possible; ids of neighbours need not be consecutive."""
    if len(found) == 1:
        return found
    return runs.runs_of(0, sorted(index for run in found for index in run.indices))
