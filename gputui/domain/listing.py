"""Choice and order of the jobs that are listed of a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from gputui.domain.errors import InputError
from gputui.domain.filter import FilterSubject, searched_text
from gputui.domain.idle_gpus import idle_jobs
from gputui.domain.job import Job
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.domain.units import quoted


def seen(job: Job, snapshot: Snapshot) -> FilterSubject:
    """Return a job as filters see it."""
    reason = snapshot.reasons.get(job.id)
    idle = job.state is JobState.RUNNING and job.id in idle_jobs(snapshot)
    return FilterSubject(job, snapshot.taken_at, reason, searched_text(job, reason), leaves_idle=idle)


def parse_states(texts: Iterable[str], where: str = "--state") -> frozenset[JobState]:
    """Return the states named by `PD`, `pending` or `R,CG`; empty when none is given."""
    known = {name: state for state in JobState for name in (state.value, state.short)}
    wanted = set()
    for text in (part for given in texts for part in given.split(",")):
        if text.strip().upper() not in known:
            hint = ", ".join(state.short for state in JobState)
            raise InputError(f"{quoted(text)} is not a state", where=where, hint=hint)
        wanted.add(known[text.strip().upper()])
    return frozenset(wanted)


def in_order(snapshot: Snapshot) -> list[Job]:
    """Sort the jobs: active by start time, waiting in the order of their turn, finished with the latest first."""
    place = {job_id: number for number, job_id in enumerate(snapshot.order)}

    def rank(job: Job) -> tuple[int, float, int]:
        if job.state.is_terminal:
            return (2, -job.ended_at.timestamp() if job.ended_at else 0.0, -job.id)
        if job.state.is_active:
            return (0, job.started_at.timestamp() if job.started_at else float("inf"), job.id)
        return (1, place.get(job.id, float("inf")), job.id)

    return sorted(snapshot.jobs, key=rank)


def meant(snapshot: Snapshot, job: Job, *, is_whole: bool) -> Job:
    """Return the job; for an array whose first element has started, its next waiting element."""
    if not is_whole or job.array is None or job.state is JobState.PENDING:
        return job
    alike = (each for each in snapshot.jobs if each.array and each.array.id == job.array.id)
    waiting = next((each for each in alike if each.state is JobState.PENDING), job)
    return waiting.element(waiting.id)


def by_month(jobs: Iterable[Job]) -> Iterator[Job]:
    """Sort jobs within each month; the months themselves already arrive in order."""
    for _, month in groupby(jobs, key=lambda job: (job.end.year, job.end.month)):
        yield from sorted(month, key=latest_first)


def latest_first(job: Job) -> tuple[float, int]:
    """Return the key by which ended jobs are sorted."""
    return -job.end.timestamp(), -job.id
