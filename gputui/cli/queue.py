"""`gputui queue`: live jobs, in the order they will start."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from datetime import datetime

import click

from gputui import bootstrap
from gputui.cli import completing, table
from gputui.cli.output import job_json, print_json
from gputui.cli.session import Session, pass_session
from gputui.domain import arrays
from gputui.domain.errors import InputError
from gputui.domain.filter import FIELDS, Seen, parse_filter, shown_text
from gputui.domain.gpu import GpuView
from gputui.domain.job import GpuRequest, Job, JobId
from gputui.domain.short_names import short_names
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState, PendingReason
from gputui.domain.text import plain
from gputui.domain.units import format_duration, format_size, listed
from gputui.request.texts import quoted

COLUMNS = (
    table.Column("ID", right=True),
    table.Column("ST"),
    table.Column("PRI", right=True),
    table.Column("NAME", 24, least=8),
    table.Column("TENANT", 12, least=4),
    table.Column("GPUS", 10),
    table.Column("TIME", 15, right=True),
    table.Column("REASON"),
)


FILTER_HELP = (
    "A filter is made of words, all of which must fit: FIELD:VALUE[,VALUE…] (whole, with * and ?), FIELD~PATTERN, "
    "FIELD=, !=, <, <=, >, >= and single words, looked for in what is shown; - before a word turns it round. "
    "Fields: " + "; ".join(f"{name} ({field.help}: {field.example})" for name, field in FIELDS.items()) + "."
)


@click.command("queue", epilog=FILTER_HELP)
@click.option("-a", "--all", "everything", is_flag=True, help="Finished jobs too, as far as the queue still has them.")
@click.option(
    "-s",
    "--state",
    "states",
    metavar="STATE[,…]",
    multiple=True,
    shell_complete=completing.states,
    help="Only these states (PD or PENDING).",
)
@click.option("-t", "--tenant", metavar="NAME", shell_complete=completing.tenants, help="Only this tenant's.")
@click.option(
    "-f",
    "--filter",
    "words",
    metavar="WORDS",
    help="Only jobs these fit, as in 'gpus>=4 name~bert -is:held'; see below.",
)
@click.option("-r", "--array", "unfold", is_flag=True, help="A line for each waiting element of an array.")
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
    """List live jobs: those that run, then those that wait, in the order they will start."""
    wanted = parse_states(states)
    chosen = parse_filter(words or "", where="--filter")
    everything = everything or bool(chosen.fields & {"state", "is", "id", "exit"})
    with session.store() as store:
        snapshot = bootstrap.current_snapshot(session.options, store)
    jobs = [
        job
        for job in in_order(snapshot)
        if (job.state in wanted if wanted else everything or not job.state.is_terminal)
        and (tenant is None or job.spec.tenant == tenant)
        and (not chosen or chosen.matches(seen(job, snapshot)))
    ]
    if as_json:
        print_json([job_json(job, snapshot) for job in jobs])
    else:
        groups = [(job,) for job in jobs] if unfold else arrays.folded(jobs)
        rows = (row(group[0], snapshot, group) for group in groups)
        sys.stdout.write("\n".join(table.lines(COLUMNS, rows, table.terminal_width())) + "\n")
        if sys.stderr.isatty() or (snapshot.leader is not None and snapshot.leader.silent_for):
            sys.stderr.writelines(f"{plain(note)}\n" for note in footnotes(snapshot))


def seen(job: Job, snapshot: Snapshot) -> Seen:
    """The job as a filter looks at it."""
    reason = snapshot.reasons.get(job.id)
    return Seen(job, snapshot.taken_at, reason, shown_text(job, reason))


def footnotes(snapshot: Snapshot) -> Iterator[str]:
    """What keeps every job from starting, and what an operator should know."""
    controls = snapshot.controls
    if snapshot.leader is None and snapshot.order:
        yield "nobody schedules: run gputui, or gputui serve"
    if controls.paused:
        why = f": {controls.pause_reason}" if controls.pause_reason else ""
        yield f"paused by {controls.paused_by}{why} (gputui unpause)"
    yield from (notice.text for notice in snapshot.notices if notice.severity != "information")


def parse_states(texts: Iterable[str]) -> frozenset[JobState]:
    """The states of `PD`, `pending` or `R,CG`; empty when none is given."""
    known = {name: state for state in JobState for name in (state.value, state.short)}
    wanted = set()
    for text in (part for given in texts for part in given.split(",")):
        if text.strip().upper() not in known:
            hint = ", ".join(state.short for state in JobState)
            raise InputError(f"{quoted(text)} is not a state", where="--state", hint=hint)
        wanted.add(known[text.strip().upper()])
    return frozenset(wanted)


def in_order(snapshot: Snapshot) -> list[Job]:
    """Active jobs by their start, waiting ones by the order of their start, finished ones the latest first."""
    place = {job_id: number for number, job_id in enumerate(snapshot.order)}

    def rank(job: Job) -> tuple[int, float, int]:
        if job.state.is_terminal:
            return (2, -job.ended_at.timestamp() if job.ended_at else 0.0, -job.id)
        if job.state.is_active:
            return (0, job.started_at.timestamp() if job.started_at else float("inf"), job.id)
        return (1, place.get(job.id, float("inf")), job.id)

    return sorted(snapshot.jobs, key=rank)


def row(job: Job, snapshot: Snapshot, group: tuple[Job, ...] = ()) -> tuple[str, ...]:
    """The cells of a job, which may stand for a group of its array's elements."""
    return (
        arrays.id_word(group or (job,)),
        job.state.short,
        str(job.priority),
        job.spec.name + (f" (cron {job.recurring})" if job.recurring else ""),
        job.spec.tenant,
        gpus_word(job, snapshot.gpus),
        time_word(job, snapshot.taken_at),
        why(job, snapshot),
    )


def gpus_word(job: Job, views: Iterable[GpuView]) -> str:
    """How many GPUs it wants; of a running one, which it holds, by their indices where these are known."""
    if not job.gpus:
        return request_word(job.spec.gpus)
    indices = {view.gpu.uuid: view.gpu.index for view in views}
    if all(uuid in indices for uuid in job.gpus):
        return f"{len(job.gpus)}:" + ",".join(str(index) for index in sorted(indices[uuid] for uuid in job.gpus))
    return str(len(job.gpus))


def request_word(gpus: GpuRequest) -> str:
    """`2`, `2-4`, `all`, `#0,1`, `1 x 10G` of shared ones; `-` for none."""
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
    """How long it has run, and may; of a finished one how long it ran."""
    limit = f"/{format_duration(job.spec.time_limit)}" if job.spec.time_limit else ""
    if job.state in {JobState.PENDING, JobState.CONFIGURING} or job.started_at is None:
        return f"-{limit}" if limit else "-"
    if job.state.is_terminal:
        return format_duration((job.ended_at or now) - job.started_at)
    return format_duration(now - job.started_at) + limit


def why(job: Job, snapshot: Snapshot) -> str:
    """Why it waits and when it may start, what it is doing, or how it ended."""
    if job.state.is_terminal:
        return job.cause.text if job.cause else ""
    if job.state.is_active:
        doing = snapshot.progress.get(job.id, "") or _beside(snapshot.beside(job))
        return f"ending: {job.stopping.cause.text}" if job.stopping else doing
    reason, expected = snapshot.reasons.get(job.id), snapshot.expected_starts.get(job.id)
    sentence = f"{reason.code}: {reason.local(snapshot.taken_at)}" if reason else _of_itself(job)
    if expected is None or (reason is not None and reason.tells(expected)):
        return sentence
    today = expected.astimezone().date() == snapshot.taken_at.astimezone().date()
    return f"{sentence}; about {expected.astimezone():{'%H:%M' if today else '%Y-%m-%d %H:%M'}}"


def _beside(others: tuple[JobId, ...]) -> str:
    return f"beside {'job' if len(others) == 1 else 'jobs'} {listed(others)}" if others else ""


def _of_itself(job: Job) -> str:
    """What a waiting job says about itself where no scheduler has said anything."""
    if job.cancel_requested:
        return "will be cancelled"
    return f"{PendingReason.JOB_HELD_USER}: {job.hold_reason or 'held'}" if job.held else ""
