"""Jobs of a queue as submissions to another one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from gputui.domain.job import Job
from gputui.domain.job_spec import Submission


def submission_of(jobs: Iterable[Job]) -> Submission:
    """Return the submission of a job, or of elements of one array, with its priority and hold of now."""
    found = tuple(jobs)
    first = found[0]
    spec = replace(first.spec, priority=first.priority, warrant="")
    indices = tuple(sorted(index for job in found for index in job.indices))
    return Submission(spec, first.held, indices, first.array.limit if first.array else None)


def grouped(jobs: Iterable[Job]) -> Iterator[tuple[Job, ...]]:
    """Yield the jobs, elements of one array together if they would be submitted alike."""
    groups: dict[object, list[Job]] = {}
    for job in jobs:
        alike = (job.array.id, job.spec, job.priority, job.held) if job.array else job.id
        groups.setdefault(alike, []).append(job)
    yield from map(tuple, groups.values())
