"""How new jobs get their ids."""

from __future__ import annotations

from collections.abc import Iterable

from gputui.domain.errors import InputError
from gputui.domain.job import ArrayRef, Job, JobId


def numbered(jobs: Iterable[Job], next_id: JobId) -> list[Job]:
    """The jobs under consecutive ids; array references to a place among them become ids."""
    batch = list(jobs)
    return [_with_id(job, next_id + place, next_id, len(batch)) for place, job in enumerate(batch)]


def _with_id(job: Job, job_id: JobId, first: JobId, count: int) -> Job:
    array = job.array
    if array is None or array.id >= 0:
        return job.evolve(id=job_id)
    place = -array.id - 1
    if place >= count:
        raise InputError(f"an array begins at place {place} of {count} jobs", where="array")
    return job.evolve(id=job_id, array=ArrayRef(first + place, array.index, array.limit))
