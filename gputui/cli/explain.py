"""`gputui explain`: why a job waits, and when it starts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click

from gputui import bootstrap
from gputui.cli import terminal
from gputui.cli.job_ids import Named, OneJobId, resolve_one
from gputui.cli.output import print_json
from gputui.cli.session import Session, pass_session
from gputui.domain.as_json import explanation_json
from gputui.domain.errors import GputuiError
from gputui.domain.filter import meant
from gputui.domain.job import Job, JobState
from gputui.domain.policy.whatif import Explanation, describe_terms, explain
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import format_duration, plain


@click.command("explain")
@click.option("--json", "as_json", is_flag=True, help="Print an object as JSON.")
@click.argument("ids", type=OneJobId(), metavar="ID")
@pass_session
def command(session: Session, as_json: bool, ids: tuple[Named, ...]) -> None:
    """Explain why a job waits: its score, its place in the order, what it waits for, and when it should start."""
    with session.backend() as backend:
        job = backend.job(resolve_one(backend.queue, ids[0]))
        snapshot, plans = backend.snapshots().read(), backend.about().caps.runs_jobs
    job = meant(snapshot, snapshot.job(job.id) or job, is_whole=not ids[0].indices)
    if job.state is not JobState.PENDING:
        why = f" ({job.end_words})" if job.state.is_terminal and job.cause else ""
        raise GputuiError(
            f"job {job.shown_id} is {job.state}{why}: it does not wait", hint=f"gputui show {job.shown_id}"
        )
    now = bootstrap.clock().now()
    if plans:
        with session.forecast():
            told = explain(snapshot, job, session.options.settings, now)
        as_object, lines = explanation_json(job, told), story(job, told, now)
    else:
        as_object, lines = engine_json(job, snapshot), engine_story(job, snapshot)
    if as_json:
        print_json(as_object)
    else:
        terminal.write_lines(f"{plain(line)}\n" for line in lines)


def story(job: Job, told: Explanation, now: datetime) -> Iterator[str]:
    yield f"job {job.shown_id} {plain(job.name, 120)}: number {told.position} of {told.waiting} waiting"
    yield f"why       {told.reason.local(now) if told.reason else 'it starts in the next pass of the scheduler'}"
    if told.expected_start_at is not None:
        left = format_duration(told.expected_start_at - now)
        yield f"expected  {told.expected_start_at.astimezone():%Y-%m-%d %H:%M:%S %Z}, in {left}"
    yield f"how sure  {told.certainty}"
    if told.waits_for:
        yield "waits for " + ", ".join(f"job {other}" for other in told.waits_for)
    yield f"score     {told.terms.total:.3f}"
    for term in describe_terms(job, told):
        yield f"  {term.name:<10}  {term.points:8.3f}  {term.of}".rstrip()
    if job.topped_at:
        yield "  at the head of the queue by hand, before any score"


def engine_story(job: Job, snapshot: Snapshot) -> Iterator[str]:
    """Return why a job waits and when its engine expects to start it, as lines of text."""
    reason, at = snapshot.of_elements().reasons.get(job.id), _expected(job, snapshot)
    place = _place(job, snapshot)
    yield f"job {job.shown_id} {job.name}: number {place} of {len(snapshot.order)} waiting"
    yield f"why       {reason.local(snapshot.taken_at) if reason else 'the engine gives no reason'}"
    if at is not None:
        left = format_duration(max(at - snapshot.taken_at, at - at))
        yield f"expected  {at.astimezone():%Y-%m-%d %H:%M:%S %Z}, in {left}"
    yield f"priority  {job.priority}"


def engine_json(job: Job, snapshot: Snapshot) -> dict[str, Any]:
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
