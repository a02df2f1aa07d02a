"""The expected start of jobs that were just submitted, in a sentence for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from gputui import bootstrap
from gputui.cli.readings import gpu_words
from gputui.config import Options
from gputui.domain.entries import Entries
from gputui.domain.job import Job, JobId
from gputui.domain.policy.explain import why_never
from gputui.domain.policy.plan import Plan, plan
from gputui.domain.policy.planning_context import PlanningContext
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.domain.text import plain
from gputui.domain.units import format_duration
from gputui.ports import JobStore


def sentences(options: Options, store: JobStore, ids: Sequence[JobId]) -> Iterator[str]:
    """Yield `job 12: starts now on GPU 3`, or when it should start and what it waits for, for each of these jobs."""
    if not bootstrap.is_scheduled(options):
        yield f"{_subject(store, ids)}: no scheduler is running; gputui or gputui serve starts one"
        return
    snapshot, now = bootstrap.current_snapshot(options, store), bootstrap.clock().now()
    yield from foreseen(snapshot, ids, options, now)


def foreseen(snapshot: Snapshot, ids: Iterable[JobId], options: Options, now: datetime) -> Iterator[str]:
    """Yield the sentences for a queue that a scheduler looks after."""
    made, jobs = plan(snapshot, options.settings, now), Entries({job.id: job for job in snapshot.jobs})
    for job in filter(None, map(jobs.get, ids)):
        yield f"job {job.shown_id}: {plain(_words(job, made, snapshot, options, now))}"


def _subject(store: JobStore, ids: Sequence[JobId]) -> str:
    return f"job {store.get(ids[0]).shown_id} waits" if len(ids) == 1 else f"{len(ids)} jobs wait"


def _words(job: Job, made: Plan, snapshot: Snapshot, options: Options, now: datetime) -> str:
    if job.state is not JobState.PENDING:
        word = "starts now" if job.state is JobState.CONFIGURING else job.state.name.lower()
        return f"{word}{_on(snapshot, job.attempt.gpus if job.attempt else ())}"
    start = next((start for start in made.starts if start.job_id == job.id), None)
    if start is not None:
        return f"starts now{_on(snapshot, start.gpus)}"
    if never := why_never(PlanningContext.at(snapshot, options.settings, now), job):
        return f"can never start: {never}"
    reason, at = made.reasons.get(job.id), made.forecast.get(job.id)
    why = reason.local(now) if reason else ""
    if at is None:
        return f"waits: {why}" if why else "waits"
    left = format_duration(at - now)
    if reason and reason.mentions(at):
        return f"should start in {left}: {why}"
    return f"should start at {_clock(at, now)}, in {left}" + (f": {why}" if why else "")


def _on(snapshot: Snapshot, gpus: Sequence[str]) -> str:
    return f" on {gpu_words(snapshot, gpus)}" if gpus else ""


def _clock(at: datetime, now: datetime) -> str:
    """Return the local time, with its day where that is not today."""
    here = at.astimezone()
    return f"{here:%H:%M}" if here.date() == now.astimezone().date() else f"{here:%a %d %b %H:%M}"
