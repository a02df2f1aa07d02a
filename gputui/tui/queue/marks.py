"""Marked jobs, kept as spans of ids: a marked array of 100,000 elements is one span."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from itertools import chain, starmap

from gputui.domain import runs
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.runs import Run, Runs, Spans


class Marks(Set[JobId]):
    """An immutable set of ids that is cheap for long runs of consecutive ids."""

    __slots__ = ("_spans",)

    def __init__(self, spans: Spans = Spans()) -> None:  # noqa: B008 - frozen
        self._spans = spans

    @classmethod
    def of(cls, jobs: Iterable[Job]) -> Marks:
        """Return the ids of these jobs, including all elements of entries."""
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
        """Return the union of both."""
        return Marks(runs.joined_spans((*self._spans.parts, *other._spans.parts)))

    def without(self, other: Marks) -> Marks:
        """Return the marks that the other does not contain."""
        mine = tuple(Run(start, 0, end - start) for start, end in self._spans.parts)
        return Marks(runs.joined_spans((run.id, run.end) for run in runs.divided(mine, other._spans)[1]))

    def has_any(self, job: Job) -> bool:
        """Return whether the job, or an element of the entry, is marked."""
        return any(True for run in runs_of_job(job) for _ in self._spans.overlaps(run))

    def has_all(self, other: Marks) -> bool:
        """Return whether it contains every id of the other."""
        return not other.without(self)

    def part(self, job: Job) -> Job | None:
        """Return the job if it is marked; of an entry, the marked elements; None if there are none."""
        if not job.runs:
            return job if job.id in self._spans else None
        taken = job.divided(self._spans)[0]
        return job if taken is not None and taken.count == job.count else taken


def runs_of_job(job: Job) -> Runs:
    """Return the ids that the job represents."""
    return job.runs or (Run(job.id, 0, 1),)
