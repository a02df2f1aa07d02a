"""Forecasts in words: expected starts of submitted jobs, and starts that a change would shift (`--dry-run`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType

from gputui import bootstrap
from gputui.cli import terminal
from gputui.cli.gpus import gpu_names
from gputui.cli.session import Session
from gputui.config import Options
from gputui.domain.arrays import Entries, Names
from gputui.domain.cluster import Capability
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.policy.plan import Plan, plan
from gputui.domain.policy.planning_context import PlanningContext
from gputui.domain.policy.whatif import Comparison, Shift, SnapshotChange, compared, why_never
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import NO_SCHEDULER, JobState
from gputui.domain.text import distance, fit, format_duration, local_time, plain
from gputui.ports.backend import DirectBackend

MOST_LINES = 100
"""Maximum number of lines of a list."""


def expected_starts(session: Session, backend: DirectBackend, ids: Sequence[JobId]) -> Iterator[str]:
    """Yield `job 12: starts now on GPU 3`, or when it should start and what it waits for, for each of these jobs."""
    if not backend.is_scheduled():
        subject = f"job {backend.job(ids[0]).shown_id} waits" if len(ids) == 1 else f"{len(ids)} jobs wait"
        yield f"{subject}: {NO_SCHEDULER}"
        return
    snapshot, now = backend.snapshots().read(), bootstrap.clock().now()
    if backend.about().caps.runs_jobs:
        with session.forecast():
            told = list(foreseen(snapshot, ids, session.options, now))
        yield from told
    else:
        yield from engine_starts(snapshot, ids)


def engine_starts(snapshot: Snapshot, ids: Iterable[JobId]) -> Iterator[str]:
    """Yield `job 12: runs on gpu3`, or why it waits and until when, for each of these jobs of an engine."""
    from gputui.cli import queue

    for job_id in ids:
        if (job := snapshot.named(job_id)) is None:
            continue
        place = f" on {job.attempt.node}" if job.attempt and job.attempt.node else ""
        words = f"{job.state.name.lower()}{place}" if job.state.is_active else queue.why(job, snapshot) or "waits"
        yield f"job {job.shown_id}: {plain(words)}"


def foreseen(snapshot: Snapshot, ids: Iterable[JobId], options: Options, now: datetime) -> Iterator[str]:
    made, jobs = plan(snapshot, options.settings, now), entries(snapshot)
    for job in filter(None, map(jobs.get, ids)):
        yield f"job {job.shown_id}: {plain(_sentence(job, made, snapshot, options, now))}"


def _sentence(job: Job, made: Plan, snapshot: Snapshot, options: Options, now: datetime) -> str:
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
    return f"should start at {local_time(at, now)}, in {left}" + (f": {why}" if why else "")


def _on(snapshot: Snapshot, gpus: Sequence[str]) -> str:
    return f" on {gpu_names(snapshot, gpus)}" if gpus else ""


def print_shifts(session: Session, backend: DirectBackend, change: SnapshotChange, first: str = "") -> None:
    """Print a first line, which waiting jobs would start earlier or later, and which would not start at all."""
    backend.about().caps.need(Capability.WHAT_IF)
    snapshot, now = backend.snapshots().read(), bootstrap.clock().now()
    with session.forecast():
        found = compared(snapshot, change, session.options.settings, now)
        changed = change(snapshot)
        gone = fates(snapshot, changed, (shift.job_id for shift in found.shifts))
        told = [*places(snapshot, changed, found), *lines(snapshot, found.shifts, gone)]
        known = entries(snapshot)
        stuck = [  # new jobs without a predictable start, and those that lose theirs by the change
            job
            for job in changed.jobs
            if job.state is JobState.PENDING and job.id not in found.after.starts
            if job.id not in known or job.id in found.before.starts
        ]
        told = shortened(told) + (shortened(reasons(changed, stuck, session.options.settings, now)) if stuck else [])
    told = [*filter(None, [first]), *(told or ["no other job would start earlier or later"])]
    terminal.write_lines(f"{line}\n" for line in told)


def places(snapshot: Snapshot, changed: Snapshot, found: Comparison) -> list[str]:
    before, after = entries(snapshot), entries(changed)
    count = len(found.after.order)
    return [
        f"job {place.job_id} moves from place {place.before} to {place.after} of {count} in the queue"
        for place in found.moves
        if before.entry(place.job_id) is not after.entry(place.job_id)
        and before.get(place.job_id) != after.get(place.job_id)
    ]


def entries(snapshot: Snapshot) -> Entries:
    return Entries({job.id: job for job in snapshot.jobs})


def fates(snapshot: Snapshot, changed: Snapshot, ids: Iterable[JobId]) -> dict[JobId, str]:
    """Return, per job that will not start after the change, a word for it: `cancelled`, `held`."""
    before, after = entries(snapshot), entries(changed)
    found = {}
    for job_id in ids:
        was, then = before.entry(job_id), after.entry(job_id)
        if was is not None and then is None:
            found[job_id] = "cancelled"
        elif was is not None and then is not None and then.held and not was.held:
            found[job_id] = "held"
    return found


def lines(snapshot: Snapshot, shifts: Iterable[Shift], fates: Mapping[JobId, str] = MappingProxyType({})) -> list[str]:
    names = Names(snapshot.jobs)
    found = []
    for shift in shifts:
        by, before = "", "runs now" if shift.is_stopped else _time(shift.before)
        if shift.before is not None and shift.after is not None:
            by = distance(shift.before, shift.after)
        found.append(
            f"{names.shown(shift.job_id):>6}  {fit(plain(names.get(shift.job_id, 'the new job')), 24)}  "
            f"{before:>19} -> {fates.get(shift.job_id) or _time(shift.after):<19}  {by}".rstrip()
        )
    return [f"{'ID':>6}  {'NAME':<24}  {'STARTS':>19} -> {'WOULD START':<19}", *found] if found else []


def shortened(told: list[str]) -> list[str]:
    """Return the first lines and the number of remaining ones: an array may have 100,000 elements."""
    left = len(told) - MOST_LINES
    return [*told[:MOST_LINES], f"... and {left} more"] if left > 1 else told


def reasons(changed: Snapshot, jobs: Iterable[Job], settings: Settings, now: datetime) -> list[str]:
    """Return a sentence for each job: why it has no predictable start, or can never start."""
    context, why = PlanningContext.at(changed, settings, now), plan(changed, settings, now).reasons
    told = []
    for job in jobs:
        reason, ever = why.get(job.id), why_never(context, job)
        if ever:
            told.append(f"job {job.shown_id} would never start: {ever}")
        elif reason is not None:
            told.append(f"job {job.shown_id} would have no known start: {reason.code}: {plain(reason.local(now))}")
    return told


def _time(at: datetime | None) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S}" if at else "not known"
