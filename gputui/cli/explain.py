"""`gputui explain`: why a job waits, and when it starts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click

from gputui import bootstrap
from gputui.cli.elements import Named, the_one
from gputui.cli.output import print_json
from gputui.cli.session import Session, pass_session
from gputui.cli.wishes import OneJobId
from gputui.domain.errors import GputuiError
from gputui.domain.job import Job
from gputui.domain.policy.explain import Explanation, explain, told_terms
from gputui.domain.state import JobState
from gputui.domain.text import plain
from gputui.domain.units import format_duration


@click.command("explain")
@click.option("--json", "as_json", is_flag=True, help="Print an object as JSON.")
@click.argument("ids", type=OneJobId(), metavar="ID")
@pass_session
def command(session: Session, as_json: bool, ids: tuple[Named, ...]) -> None:
    """Tell why a job waits: its score, its place in the order, what it waits for, and when it should start."""
    with session.store() as store:
        job = store.get(the_one(store, ids[0]))
        snapshot = bootstrap.current_snapshot(session.options, store)
    job = next((seen for seen in snapshot.jobs if seen.id == job.id), job)
    if job.state is not JobState.PENDING:
        raise GputuiError(f"job {job.shown_id} is {job.state}: it does not wait", hint=f"gputui show {job.shown_id}")
    now = bootstrap.clock().now()
    told = explain(snapshot, job, session.options.settings, now)
    if as_json:
        print_json(explanation_json(job, told))
    else:
        sys.stdout.writelines(f"{plain(line)}\n" for line in story(job, told, now))


def story(job: Job, told: Explanation, now: datetime) -> Iterator[str]:
    """The explanation, line by line."""
    yield f"job {job.shown_id} {job.spec.name}: number {told.position} of {told.waiting} waiting"
    yield f"why       {told.reason.local(now) if told.reason else 'it starts at the next look'}"
    if told.expected_start_at is not None:
        left = format_duration(told.expected_start_at - now)
        yield f"expected  {told.expected_start_at.astimezone():%Y-%m-%d %H:%M:%S %Z}, in {left}"
    yield f"how sure  {told.certainty}"
    if told.waits_for:
        yield "waits for " + ", ".join(f"job {other}" for other in told.waits_for)
    yield f"score     {told.terms.total:.0f}"
    for term in told_terms(job, told, now):
        yield f"  {term.name:<10}  {term.points:8.1f}  {term.of}".rstrip()
    if job.topped_at:
        yield "  put first by hand, before every score"


def explanation_json(job: Job, told: Explanation) -> dict[str, Any]:
    """The explanation as JSON."""
    terms = told.terms
    return {
        "id": job.id,
        "reason": {"code": str(told.reason.code), "text": told.reason.text} if told.reason else None,
        "position": told.position,
        "waiting": told.waiting,
        "waits_for": list(told.waits_for),
        "expected_start_at": told.expected_start_at.isoformat() if told.expected_start_at else None,
        "certainty": told.certainty,
        "score": {
            "total": terms.total,
            "class": terms.priority_class,
            "age": terms.age,
            "duration": terms.duration,
            "fair_share": terms.fair_share,
            "nice": terms.nice,
        },
        "fair_share": told.fair_share,
        "planned_duration": told.planned.total_seconds(),
        "topped_at": job.topped_at.isoformat() if job.topped_at else None,
    }
