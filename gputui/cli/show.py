"""`gputui show` and `gputui explain`: everything about a job, why it waits, and when it starts."""

from __future__ import annotations

import platform
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING

import click

from gputui import bootstrap
from gputui.cli import queue, terminal
from gputui.cli.job_ids import Named, OneJobId, resolve_one
from gputui.cli.output import print_json
from gputui.cli.session import Session, pass_session
from gputui.domain import sweep
from gputui.domain.access import AuditEntry, targets_of
from gputui.domain.as_json import MASK, explanation_json, job_detail_json
from gputui.domain.errors import GputuiError, NotFoundError, signal_name
from gputui.domain.filter import meant
from gputui.domain.job import Attempt, Job, element_spec, sweep_values
from gputui.domain.job_spec import JobSpec
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState, Reason
from gputui.domain.telemetry_series import Measured, summary_lines
from gputui.domain.text import format_duration, format_limit, format_size, plain
from gputui.request.job_options import DOCKER_KEYS

if TYPE_CHECKING:
    from gputui.domain.policy.whatif import Explanation


LABEL = 22


@click.command("show")
@click.option("--json", "as_json", is_flag=True, help="Print an object as JSON.")
@click.argument("ids", type=OneJobId(), metavar="ID")
@pass_session
def command(session: Session, as_json: bool, ids: tuple[Named, ...]) -> None:
    """Show everything about a job: its options, each attempt, and all changes with their users."""
    with session.backend() as backend:
        job_id = resolve_one(backend.queue, ids[0])
        if job_id in backend.queue.recurring():
            raise NotFoundError(f"{job_id} is a recurring job, which submits jobs", hint="gputui cron list")
        job = backend.job(job_id)
        snapshot = backend.snapshots().read()
        snapshot = snapshot.of_elements() if job.array else snapshot
        found = (entry for target in targets_of(job) for entry in backend.queue.audit_log(target))
        audit = tuple(sorted(found, key=lambda entry: entry.at))
        measured, unread = backend.measured(job.id), {} if as_json else backend.why_unread(job)
    if as_json:
        print_json(job_detail_json(job, snapshot, audit, measured))
    else:
        terminal.write_lines(f"{plain(line)}\n" for line in story(job, snapshot, audit, measured, unread))


def story(
    job: Job,
    snapshot: Snapshot,
    audit: tuple[AuditEntry, ...],
    measured: Mapping[int, Measured] = MappingProxyType({}),
    unread: Mapping[int, str] = MappingProxyType({}),
) -> Iterator[str]:
    """Return everything about the job as lines of text, with the telemetry of its attempts by number.

    `unread` has reasons for attempts without telemetry.
    """
    yield from _named(_facts(job, snapshot))
    yield f"{'image':<{LABEL}}{job.image_words}"
    yield from _named(_wanted(element_spec(job)))
    for attempt in job.attempts:
        yield ""
        yield f"attempt {attempt.number}"
        figures = measured.get(attempt.number)
        summary = figures.summary if figures else attempt.telemetry  # attempts of an older gputui have none
        telemetry: list[tuple[str, object]] = [("efficiency", attempt.efficiency.long if attempt.efficiency else None)]
        telemetry += summary_lines(summary) if summary is not None else ()
        if not any(value for _, value in telemetry):
            telemetry = [("measured", unread.get(attempt.number))]
        facts = chain(_attempt(attempt, snapshot), telemetry)
        yield from ("  " + line for line in _named(facts))
    if audit:
        yield ""
        yield "changes"
        yield from (
            f"  {_local(e.at)}  {e.user}{e.via and f' via {e.via}'}  {e.verb}: {e.before or '-'} -> {e.after}"
            for e in audit
        )


def _named(facts: Iterator[tuple[str, object]]) -> Iterator[str]:
    for name, value in facts:
        if value not in (None, "", ()):
            yield f"{name:<{LABEL}}{value}"


def _facts(job: Job, snapshot: Snapshot) -> Iterator[tuple[str, object]]:
    yield "job", job.shown_id + (f" (id {job.id})" if job.array else "")
    yield "name", job.name
    yield "comment", job.spec.comment
    yield "state", str(job.state) + (" (cancel requested)" if job.cancel_requested else "") + _suspended(job)
    over = "result" if job.state is JobState.COMPLETED else "ended by" if job.state.is_terminal else ""
    yield over or ("now" if job.state.is_active else "reason"), queue.why(job, snapshot)
    yield "exit code", job.exit_code
    yield "tenant", job.spec.tenant
    yield "submitted", f"{_local(job.submitted_at)} by {job.submitted_by}"
    yield "started", _local(job.started_at)
    if job.limit_at is not None:
        at = job.attempts[-1].warned_at
        warned = f"warned at {_local(at)}" if at else f"warned before at {_local(job.warning_at)}"
        yield "ends", f"by its time limit at {_local(job.limit_at)}" + (f", {warned}" if job.spec.warning else "")
    yield "ended", _local(job.ended_at)
    yield "expected", _local(snapshot.expected_starts.get(job.id))
    beside = f", placed beside job {job.placed.past}" if job.placed else ""
    by = f", by {job.ranked_by}" if job.ranked_by else ""
    yield "priority", str(job.priority) + (", put first" if job.topped_at else "") + beside + by
    by = f" by {job.held_by}" if job.held_by else ""
    since = f", {_local(job.held_at)}" if job.held_at else ""
    yield "held", (job.hold_reason or f"yes{by}{since}") if job.held else None
    yield "not before", _local(job.not_before)
    yield "recurring", f"a run of recurring job {job.recurring} (gputui cron list)" if job.recurring else None
    if array := job.array:
        at_once = f", of which at most {array.limit} run at a time" if array.limit else ""
        yield "array", f"element {array.index} of array {array.id}{at_once}; GPUTUI_ARRAY_INDEX is {array.index}"
    yield "sweep", sweep.words(sweep_values(job) or dict(job.spec.sweep))
    if array:
        counts: Counter[JobState] = Counter()
        for each in snapshot.jobs:  # only those still in the queue
            if each.array is not None and each.array.id == array.id:
                counts[each.state] += each.count
        yield "its elements", ", ".join(f"{count} {state}" for state, count in counts.items())
    yield "avoids GPUs", ", ".join(job.avoid_gpus)


def _suspended(job: Job) -> str:
    if job.suspended:
        by = f" by {job.suspended_by}" if job.suspended_by else ""
        return f" (suspended{by})" if job.is_suspended else f" (to be suspended{by})"
    return " (to be woken)" if job.is_suspended else ""


def _wanted(spec: JobSpec) -> Iterator[tuple[str, object]]:
    options, gpus = spec.options, spec.gpus
    yield "command", shlex.join(spec.command)
    yield "GPUs", queue.request_word(gpus)
    yield "GPU memory", format_size(gpus.memory) + (", shared" if gpus.share else "") if gpus.memory else None
    yield "GPU model", gpus.model
    yield "driver caps", ", ".join(gpus.capabilities)
    yield "time limit", format_limit(spec.time_limit) if spec.time_limit else None
    if warning := spec.warning:
        yield "warning", f"{signal_name(warning.number)} {format_limit(warning.before)} before the limit"
    yield "idle timeout", format_limit(spec.idle_timeout) if spec.idle_timeout else None
    if spec.interactive:
        streams = ["a terminal"] * spec.interactive.tty + ["input"] * spec.interactive.stdin
        yield "interactive", ", ".join(streams) or "output alone"
    yield "retries", f"{spec.retries}, after {format_limit(spec.backoff)}" if spec.retries else None
    yield "retry on", ", ".join(spec.retry_on)
    yield "GPU memory step", format_size(spec.gpu_memory_step) if spec.gpu_memory_step else None
    yield "nice", spec.nice or None
    yield "after", ", ".join(map(str, spec.after))
    yield "after any", ", ".join(map(str, spec.after_any))
    yield "begin", _local(spec.begin_at)
    yield "preemptible", "yes" if spec.preemptible else None
    yield "environment", " ".join(f"{name}={MASK}" for name, _ in options.env)
    yield "labels", " ".join(f"{name}={value}" for name, value in options.labels)
    for key in DOCKER_KEYS:
        value = getattr(options, key.field) if key.field else None
        if key.field in {"memory", "shm_size"} and value is not None:
            yield key.field.replace("_", " "), format_size(value)
        elif value is not None:
            yield (key.field or key.name).replace("_", " "), key.written(value)


def _attempt(attempt: Attempt, snapshot: Snapshot) -> Iterator[tuple[str, object]]:
    indices = {view.gpu.uuid: f" (GPU {view.gpu.index})" for view in snapshot.gpus}
    yield "GPUs", ", ".join(uuid + indices.get(uuid, "") for uuid in attempt.gpus)
    yield "node", attempt.node
    yield "container", attempt.container_id
    yield "claimed", _local(attempt.claimed_at)
    yield "started", _local(attempt.started_at)
    yield "warned", _local(attempt.warned_at)
    if attempt.preempted_by is not None:
        yield "preempted", f"{_local(attempt.preempted_at)}, for job {attempt.preempted_by}"
    yield "ended", _local(attempt.ended_at)
    yield "exit code", attempt.exit_code
    yield "cause", f"{attempt.cause.code}: {attempt.cause.text}" if attempt.cause else None
    yield "error", attempt.error
    yield "charged", None if attempt.charged else "no: it does not count against the retries"
    yield "log", attempt.log_path
    for port in attempt.ports:
        yield "port", port
        yield "from elsewhere", None if attempt.is_over else port.ssh(platform.node())
    for note in attempt.notes:
        yield "note", note


def _local(at: datetime | None) -> str | None:
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S %Z}" if at else None


@click.command("explain")
@click.option("--json", "as_json", is_flag=True, help="Print an object as JSON.")
@click.argument("ids", type=OneJobId(), metavar="ID")
@pass_session
def explain_command(session: Session, as_json: bool, ids: tuple[Named, ...]) -> None:
    """Explain why a job waits: its score, its place in the order, what it waits for, and when it should start."""
    from gputui.domain.policy.whatif import explain  # nothing else here needs the policy

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
            found = explain(snapshot, job, session.options.settings, now)
        as_object, lines = explanation_json(job, found), explained(job, found, now)
    else:
        reason, place, at = _in_engine(job, snapshot)
        as_object = {
            "id": job.id,
            "reason": {"code": str(reason.code), "text": reason.text} if reason else None,
            "position": place,
            "waiting": len(snapshot.order),
            "expected_start_at": at.isoformat() if at else None,
            "priority": job.priority,
        }
        lines = engine_story(job, snapshot)
    if as_json:
        print_json(as_object)
    else:
        terminal.write_lines(f"{plain(line)}\n" for line in lines)


def explained(job: Job, found: Explanation, now: datetime) -> Iterator[str]:
    from gputui.domain.policy.whatif import describe_terms

    yield f"job {job.shown_id} {plain(job.name, 120)}: number {found.position} of {found.waiting} waiting"
    yield f"why       {found.reason.local(now) if found.reason else 'it starts in the next pass of the scheduler'}"
    if found.expected_start_at is not None:
        left = format_duration(found.expected_start_at - now)
        yield f"expected  {found.expected_start_at.astimezone():%Y-%m-%d %H:%M:%S %Z}, in {left}"
    yield f"how sure  {found.certainty}"
    if found.waits_for:
        yield "waits for " + ", ".join(f"job {other}" for other in found.waits_for)
    yield f"score     {found.terms.total:.3f}"
    for term in describe_terms(job, found):
        yield f"  {term.name:<10}  {term.points:8.3f}  {term.of}".rstrip()
    if job.topped_at:
        yield "  at the head of the queue by hand, before any score"


def engine_story(job: Job, snapshot: Snapshot) -> Iterator[str]:
    reason, place, at = _in_engine(job, snapshot)
    yield f"job {job.shown_id} {job.name}: number {place} of {len(snapshot.order)} waiting"
    yield f"why       {reason.local(snapshot.taken_at) if reason else 'the engine gives no reason'}"
    if at is not None:
        left = format_duration(max(at - snapshot.taken_at, timedelta()))
        yield f"expected  {at.astimezone():%Y-%m-%d %H:%M:%S %Z}, in {left}"
    yield f"priority  {job.priority}"


def _in_engine(job: Job, snapshot: Snapshot) -> tuple[Reason | None, int | None, datetime | None]:
    """Return why the job waits, the place of it or of its entry among those that wait, and when it should start."""
    entry = snapshot.entry(job.id)
    place = snapshot.order.index(entry.id) + 1 if entry and entry.id in snapshot.order else None
    at = snapshot.expected_starts.get(job.id) or (snapshot.expected_starts.get(entry.id) if entry else None)
    return snapshot.of_elements().reasons.get(job.id), place, at
