"""The jobs on a GPU that they share, and what each counts with: the ramp guard.

A job that has just started has not allocated its memory yet: until it has, its promise counts, not what it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gputui.domain.gpu import GpuProcess, GpuSample, Sharer
from gputui.domain.job import Job, JobId


@dataclass(frozen=True)
class Measured:
    """What the process list of a GPU says that a job uses there."""

    used: int = 0
    """Bytes."""
    is_known: bool = True
    """False: the driver does not say it of one of its processes."""


def measured(sample: GpuSample | None, owner: Callable[[GpuProcess], JobId | None]) -> dict[JobId, Measured]:
    """By job, what its processes use."""
    found: dict[JobId, Measured] = {}
    for process in (sample.processes or ()) if sample else ():
        job_id = owner(process)
        if job_id is not None:
            before = found.get(job_id, Measured())
            known = before.is_known and process.memory is not None
            found[job_id] = Measured(before.used + (process.memory or 0), known)
    return found


def sharers(jobs: Iterable[Job], uses: dict[JobId, Measured]) -> tuple[Sharer, ...]:
    """What each job counts with; empty unless all of them share."""
    held = tuple(jobs)
    if not all(job.spec.gpus.promised for job in held):
        return ()
    return tuple(Sharer(job.id, max(job.spec.gpus.promised, uses.get(job.id, Measured()).used)) for job in held)


def accounted(jobs: Iterable[Job], uses: dict[JobId, Measured]) -> int:
    """Bytes that are in use by these jobs; of one whose use the driver does not say, at most what it was promised."""
    return sum(use.used if use.is_known else max(use.used, job.spec.gpus.promised) for job, use in _each(jobs, uses))


def _each(jobs: Iterable[Job], uses: dict[JobId, Measured]) -> list[tuple[Job, Measured]]:
    return [(job, uses[job.id]) for job in jobs if job.id in uses]
