"""`--dry-run`: what a change would do to everybody's start, printed instead of done."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from types import MappingProxyType

from gputui import bootstrap
from gputui.cli.session import Session
from gputui.domain.job import Job, JobId
from gputui.domain.policy.hopeless import never
from gputui.domain.policy.look import Look
from gputui.domain.policy.plan import plan
from gputui.domain.policy.whatif import Change, Comparison, Shift, compared
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.domain.text import fit, plain
from gputui.domain.units import format_duration
from gputui.ports import JobStore

MOST_LINES = 100


def show(session: Session, store: JobStore, change: Change) -> None:
    """Print which waiting jobs would start earlier or later, and which would not start at all."""
    snapshot, now = bootstrap.current_snapshot(session.options, store), bootstrap.clock().now()
    found = compared(snapshot, change, session.options.settings, now)
    changed = change(snapshot)
    told = [*places(snapshot, changed, found), *lines(snapshot, found.shifts, fates(snapshot, changed))]
    stuck = list(without_start(snapshot, changed, found))
    told = shortened(told) + (shortened(reasons(changed, stuck, session.options.settings, now)) if stuck else [])
    sys.stdout.writelines(f"{line}\n" for line in told or ["nothing shifts"])


def places(snapshot: Snapshot, changed: Snapshot, found: Comparison) -> list[str]:
    """Return where the changed jobs come to stand in the queue."""
    before = {job.id: job for job in snapshot.jobs}
    own = {job.id for job in changed.jobs if job.id in before and job is not before[job.id]}
    count = len(found.after.order)
    return [
        f"job {place.job_id} moves from place {place.before} to {place.after} of {count} in the queue"
        for place in found.moves
        if place.job_id in own
    ]


def fates(snapshot: Snapshot, changed: Snapshot) -> dict[JobId, str]:
    """Return what becomes of the jobs that are asked not to start: `cancelled`, `held`."""
    left = {job.id: job for job in changed.jobs}
    found = {}
    for job in snapshot.jobs:
        if job.id not in left:
            found[job.id] = "cancelled"
        elif left[job.id].held and not job.held:
            found[job.id] = "held"
    return found


def lines(snapshot: Snapshot, shifts: Iterable[Shift], fates: Mapping[JobId, str] = MappingProxyType({})) -> list[str]:
    """Return a line for each job that would start at another time, or not at all."""
    names = {job.id: job.spec.name for job in snapshot.jobs}
    ids = {job.id: job.shown_id for job in snapshot.jobs if job.array}
    found = [
        f"{ids.get(shift.job_id, str(shift.job_id)):>6}  {fit(plain(names.get(shift.job_id, 'the new job')), 24)}  "
        f"{_before(shift):>19} -> {fates.get(shift.job_id) or _time(shift.after):<19}  {_by(shift)}".rstrip()
        for shift in shifts
    ]
    return [f"{'ID':>6}  {'NAME':<24}  {'STARTS':>19} -> {'WOULD START':<19}", *found] if found else []


def shortened(told: list[str]) -> list[str]:
    """No more than a person reads: an array may have 100,000 elements."""
    left = len(told) - MOST_LINES
    return [*told[:MOST_LINES], f"... and {left} more"] if left > 1 else told


def without_start(snapshot: Snapshot, changed: Snapshot, found: Comparison) -> Iterator[Job]:
    """New jobs whose start nobody can foresee, and jobs that had one to look forward to."""
    known = {job.id for job in snapshot.jobs}
    for job in changed.jobs:
        is_affected = job.id not in known or job.id in found.before.starts
        if job.state is JobState.PENDING and is_affected and job.id not in found.after.starts:
            yield job


def reasons(changed: Snapshot, jobs: Iterable[Job], settings: Settings, now: datetime) -> list[str]:
    """Why each of them would wait with no start in sight, or for ever."""
    look, why = Look.at(changed, settings, now), plan(changed, settings, now).reasons
    told = []
    for job in jobs:
        reason, ever = why.get(job.id), never(look, job)
        if ever:
            told.append(f"job {job.shown_id} would never start: {ever}")
        elif reason is not None:
            told.append(f"job {job.shown_id} would have no known start: {reason.code}: {plain(reason.local(now))}")
    return told


def _before(shift: Shift) -> str:
    return "runs now" if shift.is_stopped else _time(shift.before)


def _time(at: datetime | None) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S}" if at else "not known"


def _by(shift: Shift) -> str:
    if shift.before is None or shift.after is None:
        return ""
    by = format_duration(abs(shift.after - shift.before))
    return f"{by} {'later' if shift.after > shift.before else 'earlier'}"
