"""`gputui queue`: live jobs, in the order of the queue."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import lru_cache

import click

from gputui.cli import completing, output, terminal
from gputui.cli.output import print_json
from gputui.cli.session import Session, pass_session
from gputui.domain import arrays
from gputui.domain.as_json import job_json
from gputui.domain.filter import FIELDS, Filter, in_order, parse_filter, parse_states, seen
from gputui.domain.gpu import GpuView, faulty_gpus, short_names
from gputui.domain.idle_gpus import idle_gpus
from gputui.domain.job import Job, JobState, PendingReason, Reason
from gputui.domain.job_spec import GpuRequest
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import format_duration, format_limit, format_size, listed, plain
from gputui.request import local_files

COLUMNS = (
    output.TextColumn("ID", right=True),
    output.TextColumn("ST"),
    output.TextColumn("PRI", right=True),
    output.TextColumn("NAME", 24, least=8),
    output.TextColumn("TENANT", 12, least=4),
    output.TextColumn("GPUS", 10),
    output.TextColumn("TIME", 15, right=True),
    output.TextColumn("REASON"),
)
GPUS_AT = 5
NODE = output.TextColumn("NODE", 16, least=4)
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
        local_files.check_here("the filter has patterns")
    return parse_filter(words, where=where)


def footnotes(snapshot: Snapshot) -> Iterator[str]:
    """Yield sentences below the table: why no job starts at all, and what needs an operator's attention."""
    controls = snapshot.controls
    if snapshot.leader is None and snapshot.order:
        yield "no scheduler is running: start gputui, or gputui serve"
    if controls.paused:
        why = f": {controls.pause_reason}" if controls.pause_reason else ""
        at = f", {controls.paused_at.astimezone():%Y-%m-%d %H:%M}" if controls.paused_at else ""
        by = f" by {controls.paused_by}" if controls.paused_by else ""
        yield f"paused{by}{at}{why} (gputui unpause)"
    yield from (notice.text for notice in snapshot.notices if notice.severity != "information")


def row(job: Job, snapshot: Snapshot, group: tuple[Job, ...] = ()) -> tuple[str, ...]:
    """Return the cells of a row: a job, or a group of elements of an array."""
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
        gpus_word(job, snapshot.gpus),
        time_word(job, snapshot.taken_at),
        (f"{count} elements: " if count > 1 else "") + why(job, snapshot),
    )


def gpus_word(job: Job, views: Iterable[GpuView]) -> str:
    """Return the number of GPUs that the job wants; for a running one also their indices, if known."""
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
    """Return the job's runtime, with its time limit until it has ended."""
    limit = f"/{format_limit(job.spec.time_limit)}" if job.spec.time_limit else ""
    if job.state in {JobState.PENDING, JobState.CONFIGURING} or job.started_at is None:
        return f"-{limit}" if limit else "-"
    if job.state.is_terminal:
        return format_duration((job.ended_at or now) - job.started_at)
    return format_duration(now - job.started_at) + limit


def why(job: Job, snapshot: Snapshot) -> str:
    """Return why the job waits and when it may start, its progress, or how it ended."""
    if job.state.is_terminal:
        return job.end_info
    if job.state.is_active:
        others = snapshot.sharing_with(job)
        beside = f"beside {'job' if len(others) == 1 else 'jobs'} {listed(others)}" if others else ""
        doing = snapshot.progress.get(job.id, "") or beside
        doing = "suspended" if job.suspended else doing or _idle(job, snapshot)
        return f"ending: {job.stopping.cause.text}" if job.stopping else _faulty(job, snapshot) or doing
    reason, expected = snapshot.reasons.get(job.id), snapshot.expected_starts.get(job.id)
    sentence = _local(reason, snapshot.taken_at, time.tzname) if reason else _of_itself(job)
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


def _faulty(job: Job, snapshot: Snapshot) -> str:
    """Return `GPU 4 lost` for a job that holds lost or sick GPUs, or uses some that it does not hold."""
    held = frozenset(job.gpus)
    concerned = (view for view in snapshot.gpus if view.gpu.uuid in held or job.id in view.trespassers)
    return faulty_gpus(concerned).get(job.id, "")


def _idle(job: Job, snapshot: Snapshot) -> str:
    """Return `GPU 2 idle 45m` for a job that leaves GPUs idle."""
    mine = [view for view in snapshot.gpus if job.id in view.job_ids]
    return idle_gpus(mine, snapshot.taken_at).get(job.id, "")


def _of_itself(job: Job) -> str:
    """Return why the job waits as far as the job itself shows it, without the scheduler's reason."""
    if job.cancel_requested:
        return "will be cancelled"
    by = f" by {job.held_by}" if job.held_by else ""
    return f"{job.hold_reason or f'held{by}'} ({PendingReason.JOB_HELD_USER})" if job.held else ""
