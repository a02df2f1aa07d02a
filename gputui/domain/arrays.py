"""Job arrays in lists: waiting elements that are alike share a line, as in squeue."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from gputui.domain.job import Job
from gputui.domain.state import JobState

MAX_INDICES = 24
"""Characters of indices that are shown."""


def folded(jobs: Iterable[Job]) -> list[tuple[Job, ...]]:
    """The jobs in their order; an array's waiting elements of one priority together, where the first of them is."""
    groups: dict[object, list[Job]] = {}
    for job in jobs:
        groups.setdefault(_likeness(job), []).append(job)
    return [tuple(group) for group in groups.values()]


def _likeness(job: Job) -> object:
    if job.array is None or job.state is not JobState.PENDING:
        return job.id
    return (job.array.id, job.priority, job.held, job.hold_reason, job.cancel_requested, job.not_before)


def id_word(group: tuple[Job, ...]) -> str:
    """Return `12`, `12_7`, or `12_[0-99999%8]` for elements of array 12 of which eight may run at once."""
    first = group[0]
    if len(group) == 1 or first.array is None:
        return first.shown_id
    limit = f"%{first.array.limit}" if first.array.limit else ""
    return f"{first.array.id}_[{indices_word(job.array.index for job in group if job.array)}{limit}]"


def indices_word(indices: Iterable[int]) -> str:
    """`0-4,7,9-12`; where that is too long, as much of it as is whole, and `...`."""
    ordered = sorted(indices)
    breaks = [place for place, (low, high) in enumerate(pairwise(ordered), 1) if high != low + 1]
    words = ""
    for start, end in pairwise([0, *breaks, len(ordered)]):
        low, high = ordered[start], ordered[end - 1]
        part = ("," if words else "") + (str(low) if low == high else f"{low}-{high}")
        if len(words) + len(part) > MAX_INDICES:
            return f"{words},..."
        words += part
    return words
