"""`gputui queue` and `gputui history`: live jobs in the order of the queue, and ended ones, the latest first."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from itertools import islice

import click

from gputui import bootstrap
from gputui.cli import completing, output, terminal
from gputui.cli.output import TextColumn, local_minute, print_json
from gputui.cli.session import Session, pass_session
from gputui.domain import arrays
from gputui.domain.as_json import array_parts, job_json
from gputui.domain.errors import InputError
from gputui.domain.filter import (
    FIELDS,
    Filter,
    FilterSubject,
    by_month,
    in_order,
    latest_first,
    parse_filter,
    parse_states,
    searched_text,
    seen,
)
from gputui.domain.gpu import GpuView, faulty_gpus, short_names
from gputui.domain.idle_gpus import idle_gpus
from gputui.domain.job import BATCH_SCRIPT, OTHER_GPUTUI, Job, element_spec
from gputui.domain.job_spec import GpuRequest
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import NO_SCHEDULER, JobState, PendingReason, Reason
from gputui.domain.text import format_duration, format_limit, format_size, listed, plain, quoted
from gputui.request import caller, times

COLUMNS = (
    TextColumn("ID", right=True),
    TextColumn("ST"),
    TextColumn("PRI", right=True),
    TextColumn("NAME", 24, least=8),
    TextColumn("TENANT", 12, least=4),
    TextColumn("GPUS", 10),
    TextColumn("TIME", 15, right=True),
    TextColumn("REASON"),
)
GPUS_AT = 5
NODE = TextColumn("NODE", 16, least=4)
"""Column of a cluster, before that of the GPUs."""


FILTER_HELP = (
    "A filter is made of words, all of which must fit: FIELD:VALUE[,VALUE…] (whole, with * and ?), FIELD~PATTERN, "
    "FIELD=, !=, <, <=, >, >= and single words, searched for in the texts shown; - before a word negates it. "
    "Fields: " + "; ".join(f"{name} ({field.help}: {field.example})" for name, field in FIELDS.items()) + "."
)


@click.command("queue", epilog=FILTER_HELP)
@click.option("-a", "--all", "everything", is_flag=True, help="Include finished jobs that are still in the queue.")
@click.option(
    "-s",
    "--state",
    "states",
    metavar="STATE[,…]",
    multiple=True,
    shell_complete=completing.states,
    help="Only jobs in these states (PD or PENDING).",
)
@click.option("-t", "--tenant", metavar="NAME", shell_complete=completing.tenants, help="Only jobs of this tenant.")
@click.option(
    "-f",
    "--filter",
    "words",
    metavar="WORDS",
    help="Only jobs that match, such as 'gpus>=4 name~bert -is:held'; see below.",
)
@click.option(
    "-r",
    "--array",
    "unfold",
    is_flag=True,
    help="A line, or with --json an object, for each waiting element of an array.",
)
@click.option("--json", "as_json", is_flag=True, help="Print an array of jobs as JSON.")
@pass_session
def command(
    session: Session,
    everything: bool,
    states: tuple[str, ...],
    tenant: str | None,
    words: str | None,
    unfold: bool,
    as_json: bool,
) -> None:
    """List live jobs: running ones, then waiting ones in the order of their turn.

    A job that fits into a gap is expected to start before its turn (backfill).
    """
    wanted = parse_states(states)
    chosen = read_filter(words, "--filter") if words else None
    everything = everything or bool(chosen and chosen.fields & {"state", "is", "id", "exit"})
    with session.backend() as backend:
        snapshot = backend.snapshots().read()
    listed = (
        job
        for job in in_order(snapshot)
        if (job.state in wanted if wanted else everything or not job.state.is_terminal)
        and (tenant is None or job.spec.tenant == tenant)
    )
    found = (chosen.part(seen(job, snapshot)) if chosen else job for job in listed)
    jobs = [job for job in found if job is not None]
    if unfold:
        snapshot, jobs = snapshot.of_elements(), list(arrays.unfolded(jobs))
    if as_json:
        print_json([job_json(job, snapshot) for job in jobs])
    else:
        columns = (*COLUMNS[:GPUS_AT], NODE, *COLUMNS[GPUS_AT:]) if len(snapshot.nodes) > 1 else COLUMNS
        rows = (row(group[0], snapshot, group) for group in arrays.folded(jobs, unfold=unfold))
        terminal.write("\n".join(output.lines(columns, rows, terminal.width())) + "\n")
        leader = snapshot.leader
        is_unheard = leader is not None and (leader.silent_for or not snapshot.nodes)  # the files tell no nodes
        if terminal.is_tty(terminal.ERR) or is_unheard:
            terminal.write_lines((f"{plain(note)}\n" for note in footnotes(snapshot)), err=True)


def read_filter(words: str, where: str) -> Filter:
    """Return the filter. Patterns are matched by the user's own process: one may take minutes, with all threads."""
    if "~" in words:
        caller.check_here("the filter has patterns")
    return parse_filter(words, where=where)


def footnotes(snapshot: Snapshot) -> Iterator[str]:
    controls = snapshot.controls
    if snapshot.leader is None and snapshot.order:
        yield NO_SCHEDULER
    if controls.paused:
        why = f": {controls.pause_reason}" if controls.pause_reason else ""
        at = f", {local_minute(controls.paused_at)}" if controls.paused_at else ""
        by = f" by {controls.paused_by}" if controls.paused_by else ""
        yield f"paused{by}{at}{why} (gputui unpause)"
    yield from (notice.text for notice in snapshot.notices if notice.severity != "information")


def row(job: Job, snapshot: Snapshot, group: tuple[Job, ...] = ()) -> tuple[str, ...]:
    group = group or (job,)
    count = arrays.count(group)
    node: tuple[str, ...] = ()
    if len(snapshot.nodes) > 1:
        node = (job.attempt.node if job.attempt and job.state is not JobState.PENDING else "",)
    return (
        arrays.id_word(group),
        "S" if job.suspended else job.state.short,
        str(job.priority),
        (job.name if len(group) == 1 else job.spec.name) + (f" (cron {job.recurring})" if job.recurring else ""),
        job.spec.tenant,
        *node,
        gpus_word(job, snapshot.gpus if job.gpus else ()),
        time_word(job, snapshot.taken_at),
        (f"{count} elements: " if count > 1 else "") + why(job, snapshot),
    )


def gpus_word(job: Job, views: Iterable[GpuView]) -> str:
    if not job.gpus:
        return request_word(job.spec.gpus)
    indices = {view.gpu.uuid: view.gpu.index for view in views}
    if all(uuid in indices for uuid in job.gpus):
        return f"{len(job.gpus)}:" + ",".join(str(index) for index in sorted(indices[uuid] for uuid in job.gpus))
    return str(len(job.gpus))


def request_word(gpus: GpuRequest) -> str:
    """Return the GPUs wanted: `2`, `2-4`, `all`, `#0,1`, `1 x 10G` when shared, `-` for none."""
    if gpus.everything:
        return "all"
    if gpus.devices:
        short = short_names(gpus.devices, least=8)
        return "#" + ",".join(name if name.isdigit() else short[name] for name in gpus.devices)
    if not gpus.minimum:
        return "-"
    count = str(gpus.minimum) if gpus.minimum == gpus.maximum else f"{gpus.minimum}-{gpus.maximum}"
    return f"{count} x {format_size(gpus.memory)}" if gpus.share else count


def time_word(job: Job, now: datetime) -> str:
    limit = f"/{format_limit(job.spec.time_limit)}" if job.spec.time_limit else ""
    if job.state in {JobState.PENDING, JobState.CONFIGURING} or job.started_at is None:
        return f"-{limit}" if limit else "-"
    if job.state.is_terminal:
        return format_duration((job.ended_at or now) - job.started_at)
    return format_duration(now - job.started_at) + limit


def why(job: Job, snapshot: Snapshot) -> str:
    asked = ""
    if job.requeue_requested:
        asked = "will be run again"
    elif job.cancel_requested and not job.state.is_terminal:
        asked = "will be cancelled"
    elif job.suspended and job.state.is_active and not job.is_suspended:
        asked = "will be suspended"
    if asked and not job.stopping:
        return asked if snapshot.leader else f"{asked}; {NO_SCHEDULER}"
    if job.state.is_terminal:
        return job.end_info
    if job.state.is_active:
        others = snapshot.sharing_with(job)
        beside = f"beside {'job' if len(others) == 1 else 'jobs'} {listed(others)}" if others else ""
        if job.stopping:
            return f"ending: {job.stopping.cause.text}"
        # lost or sick GPUs that it holds, or uses without holding them
        concerned = (view for view in snapshot.gpus if view.gpu.uuid in job.gpus or job.id in view.trespassers)
        if faulty := faulty_gpus(concerned).get(job.id, ""):
            return faulty
        if doing := "suspended" if job.suspended else snapshot.progress.get(job.id, "") or beside:
            return doing
        mine = [view for view in snapshot.gpus if job.id in view.job_ids]
        return idle_gpus(mine, snapshot.taken_at).get(job.id, "")
    reason, expected = snapshot.reasons.get(job.id), snapshot.expected_starts.get(job.id)
    if reason:
        sentence = _local(reason, snapshot.taken_at, time.tzname)
    else:
        by = f" by {job.held_by}" if job.held_by else ""
        sentence = f"{job.hold_reason or f'held{by}'} ({PendingReason.JOB_HELD_USER})" if job.held else ""
    if expected is not None and not (reason is not None and reason.mentions(expected)):
        today = expected.astimezone().date() == snapshot.taken_at.astimezone().date()
        sentence += f"; about {expected.astimezone():{'%H:%M' if today else '%Y-%m-%d %H:%M'}}"
    # the sentence first, as narrow terminals cut the end
    return f"{sentence} ({reason.code})" if reason and not reason.names_code else sentence


@lru_cache(maxsize=64)
def _local(reason: Reason, now: datetime, zone: tuple[str, str]) -> str:
    """Return the reason with local times. Cached: thousands of jobs may wait for one reason."""
    del zone  # only part of the cache key
    return reason.local(now)


MOST = 100
"""Number of jobs listed without `--limit`."""


def _waited(job: Job) -> str:
    first = next((attempt.started_at for attempt in job.attempts if attempt.started_at), None)
    return format_duration(first - max(job.submitted_at, job.spec.begin_at or job.submitted_at)) if first else "-"


def _gpu_hours(job: Job) -> str:
    seconds = (
        (each.ended_at - each.started_at).total_seconds() * each.gpu_count * each.gpu_share
        for each in job.attempts
        if each.started_at is not None and each.ended_at is not None
    )
    return f"{sum(seconds) / 3600:.2f}"


_WITHOUT = {BATCH_SCRIPT: "sbatch", OTHER_GPUTUI: "?"}
"""Words for jobs of a cluster without an image that were not submitted from here."""
HISTORY_COLUMNS: Mapping[str, tuple[TextColumn, Callable[[Job], str]]] = {
    "id": (TextColumn("ID", right=True), lambda job: job.shown_id),
    "state": (TextColumn("ST"), lambda job: job.state.short),
    "name": (TextColumn("NAME", 24, least=8), lambda job: job.name),
    "tenant": (TextColumn("TENANT", 12, least=4), lambda job: job.spec.tenant),
    "user": (TextColumn("USER", 12, least=4), lambda job: job.submitted_by),
    "priority": (TextColumn("PRI", right=True), lambda job: str(job.priority)),
    "gpus": (TextColumn("GPUS", right=True), lambda job: str(job.attempt.gpu_count if job.attempt else 0)),
    "image": (TextColumn("IMAGE", 30, least=8), lambda job: job.spec.image or _WITHOUT.get(job.submitted_via, "host")),
    "command": (TextColumn("COMMAND", 40, least=8), lambda job: " ".join(element_spec(job).command)),
    "submitted": (TextColumn("SUBMITTED"), lambda job: local_minute(job.submitted_at)),
    "started": (TextColumn("STARTED"), lambda job: local_minute(job.started_at)),
    "ended": (TextColumn("ENDED"), lambda job: local_minute(job.end)),
    "wait": (TextColumn("WAIT", right=True), _waited),
    "time": (
        TextColumn("TIME", right=True),
        lambda job: format_duration(job.ended_at - job.started_at) if job.ended_at and job.started_at else "-",
    ),
    "gpu_hours": (TextColumn("GPU-H", right=True), _gpu_hours),
    "attempts": (TextColumn("TRIES", right=True), lambda job: str(len(job.attempts))),
    "exit": (TextColumn("EXIT", right=True), lambda job: "-" if job.exit_code is None else str(job.exit_code)),
    "why": (TextColumn("INFO"), lambda job: job.end_info),
}
"""Columns by name; columns that the console's queue also has share its names."""
USUAL = ("ended", "id", "state", "name", "tenant", "gpus", "wait", "time", "why")


@click.command("history", epilog=FILTER_HELP)
@click.argument("words", metavar="[FILTER]...", nargs=-1)
@click.option("--since", metavar="TIME", help="Jobs that ended since then: -7d, 'last monday', 2026-11-01.")
@click.option("--until", metavar="TIME", help="Jobs that ended before then. [now]")
@click.option(
    "-n",
    "--limit",
    metavar="N",
    type=click.IntRange(min=0),
    default=MOST,
    help=f"Maximum number of jobs; 0: all. [{MOST}]",
)
@click.option("-c", "--columns", metavar="NAME[,…]", help=f"Columns to print: {', '.join(HISTORY_COLUMNS)}.")
@click.option("--json", "as_json", is_flag=True, help="Print an array of jobs as JSON.")
@pass_session
def history(
    session: Session,
    words: tuple[str, ...],
    since: str | None,
    until: str | None,
    limit: int,
    columns: str | None,
    as_json: bool,
) -> None:
    """List jobs that have ended, the latest first, by the filter language of the queue.

    Write `--` before a filter that begins with a dash: gputui history -- -is:failed.
    """
    names = [name.strip() for name in columns.split(",") if name.strip()] if columns else USUAL
    for name in names:
        if name not in HISTORY_COLUMNS:
            raise InputError(
                f"{quoted(plain(name))} is not a column", where="--columns", hint=", ".join(HISTORY_COLUMNS)
            )
    shown = [HISTORY_COLUMNS[name] for name in names]
    chosen = read_filter(" ".join(words), "FILTER")
    now = bootstrap.clock().now()
    begin = times.past(since, "--since", now) if since is not None else None
    end = times.past(until, "--until", now) if until is not None else None
    with session.backend() as backend:
        # the latest first; only the months concerned are read
        in_queue = sorted((job for job in backend.queue.jobs().values() if job.state.is_terminal), key=latest_first)
        ended = heapq.merge(in_queue, by_month(backend.queue.past(begin)), key=latest_first)
        meant = (job for job in ended if (begin is None or job.end >= begin) and (end is None or job.end < end))
        parts = (
            chosen.part(FilterSubject(job, now, None, searched_text(job, None))) if chosen else job for job in meant
        )
        found = (part for part in parts if part is not None)
        listed = islice(found, limit) if limit else found
        if as_json:
            terminal.write_lines(array_parts(map(job_json, listed)))  # one at a time: all may not fit into memory
            terminal.write("\n")
        else:
            terminal.write("\n".join(output.table(shown, listed)) + "\n")
        is_more = bool(limit) and next(found, None) is not None
    if is_more:
        terminal.tell(f"the latest {limit} are listed: --limit 0 lists all that match")
