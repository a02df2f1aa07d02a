"""Forecasts of a cluster's engine in words: why jobs wait, and when they start."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from gputui import bootstrap
from gputui.bootstrap import clusters
from gputui.cli import queue
from gputui.cli.output import print_json
from gputui.domain.text import plain
from gputui.domain.units import format_duration

if TYPE_CHECKING:
    from datetime import datetime

    from gputui.domain.cluster import Capability
    from gputui.domain.job import Job
    from gputui.domain.job_spec import JobId, Submission
    from gputui.domain.snapshot import Snapshot
    from gputui.ports import Queue


def need(store: Queue, capability: Capability) -> None:
    """Raise CapabilityError if the cluster lacks this."""
    clusters.caps(store).need(capability)


def starts(snapshot: Snapshot, ids: Iterable[JobId]) -> Iterator[str]:
    """Yield `job 12: runs on gpu3`, or why it waits and until when, for each of these jobs."""
    for job_id in ids:
        job = snapshot.job(job_id) or next((job for job in snapshot.jobs if _is_of(job, job_id)), None)
        if job is None:
            continue
        words = f"{job.state.name.lower()}{_on(job)}" if job.state.is_active else queue.why(job, snapshot) or "waits"
        yield f"job {job.shown_id}: {plain(words)}"


def _is_of(job: Job, array: JobId) -> bool:
    return job.array is not None and job.array.id == array


def _on(job: Job) -> str:
    return f" on {job.attempt.node}" if job.attempt and job.attempt.node else ""


def print_starts(store: Queue, submissions: Iterable[Submission]) -> None:
    """Print when each job would start if it were submitted now, as the engine tells."""
    now = bootstrap.clock().now()
    for submission in submissions:
        at = clusters.expected_start(store, submission)
        print(plain(f"job {submission.spec.name}: {_when(at, now)}"))


def _when(at: datetime | None, now: datetime) -> str:
    if at is None:
        return "the engine cannot tell when it would start"
    if at <= now:
        return "would start now"
    return f"would start at {at.astimezone():%Y-%m-%d %H:%M}, in {format_duration(at - now)}"


def print_wait(job: Job, snapshot: Snapshot, *, as_json: bool) -> None:
    """Print why a job waits and when the engine expects to start it."""
    if as_json:
        print_json(_wait_json(job, snapshot))
    else:
        sys.stdout.writelines(f"{plain(line)}\n" for line in _wait(job, snapshot))


def _wait(job: Job, snapshot: Snapshot) -> Iterator[str]:
    reason, at = snapshot.of_elements().reasons.get(job.id), _expected(job, snapshot)
    place = _place(job, snapshot)
    yield f"job {job.shown_id} {job.name}: number {place} of {len(snapshot.order)} waiting"
    yield f"why       {reason.local(snapshot.taken_at) if reason else 'the engine gives no reason'}"
    if at is not None:
        left = format_duration(max(at - snapshot.taken_at, at - at))
        yield f"expected  {at.astimezone():%Y-%m-%d %H:%M:%S %Z}, in {left}"
    yield f"priority  {job.priority}"


def _wait_json(job: Job, snapshot: Snapshot) -> dict[str, Any]:
    reason, at = snapshot.of_elements().reasons.get(job.id), _expected(job, snapshot)
    return {
        "id": job.id,
        "reason": {"code": str(reason.code), "text": reason.text} if reason else None,
        "position": _place(job, snapshot),
        "waiting": len(snapshot.order),
        "expected_start_at": at.isoformat() if at else None,
        "priority": job.priority,
    }


def _expected(job: Job, snapshot: Snapshot) -> datetime | None:
    entry = snapshot.entry(job.id)
    return snapshot.expected_starts.get(job.id) or (snapshot.expected_starts.get(entry.id) if entry else None)


def _place(job: Job, snapshot: Snapshot) -> int | None:
    """Return the place of the job, or of the entry that contains it, among those that wait."""
    entry = snapshot.entry(job.id)
    return snapshot.order.index(entry.id) + 1 if entry and entry.id in snapshot.order else None
