"""`gputui history`: jobs that have ended, the latest first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from gputui import bootstrap
from gputui.cli import output, terminal
from gputui.cli.output import print_array
from gputui.cli.queue import FILTER_HELP, read_filter
from gputui.cli.session import Session, pass_session
from gputui.domain.as_json import job_json
from gputui.domain.errors import InputError
from gputui.domain.filter import Filter, FilterSubject, by_month, latest_first, searched_text
from gputui.domain.job import BATCH_SCRIPT, OTHER_GPUTUI, Attempt, Job, element_spec
from gputui.domain.text import format_duration, plain, quoted
from gputui.request import times

if TYPE_CHECKING:
    from gputui.ports import Queue

MOST = 100
"""Number of jobs listed without `--limit`."""


class HistoryColumn(Struct, frozen=True):
    """Column of the list."""

    column: output.TextColumn
    cell: Callable[[Job], str]


def _at(moment: datetime | None) -> str:
    return f"{moment.astimezone():%Y-%m-%d %H:%M}" if moment else "-"


def _ran(job: Job) -> str:
    return format_duration(job.ended_at - job.started_at) if job.ended_at and job.started_at else "-"


def _waited(job: Job) -> str:
    first = next((attempt.started_at for attempt in job.attempts if attempt.started_at), None)
    return format_duration(first - max(job.submitted_at, job.spec.begin_at or job.submitted_at)) if first else "-"


def _gpu_hours(job: Job) -> str:
    return f"{sum(map(_gpu_seconds, job.attempts)) / 3600:.2f}"


def _gpu_seconds(attempt: Attempt) -> float:
    if attempt.started_at is None or attempt.ended_at is None:
        return 0.0
    return (attempt.ended_at - attempt.started_at).total_seconds() * attempt.gpu_count * attempt.gpu_share


_WITHOUT = {BATCH_SCRIPT: "sbatch", OTHER_GPUTUI: "?"}
"""Words for jobs of a cluster without an image that were not submitted from here."""
COLUMNS: Mapping[str, HistoryColumn] = {
    "id": HistoryColumn(output.TextColumn("ID", right=True), lambda job: job.shown_id),
    "state": HistoryColumn(output.TextColumn("ST"), lambda job: job.state.short),
    "name": HistoryColumn(output.TextColumn("NAME", 24, least=8), lambda job: job.name),
    "tenant": HistoryColumn(output.TextColumn("TENANT", 12, least=4), lambda job: job.spec.tenant),
    "user": HistoryColumn(output.TextColumn("USER", 12, least=4), lambda job: job.submitted_by),
    "priority": HistoryColumn(output.TextColumn("PRI", right=True), lambda job: str(job.priority)),
    "gpus": HistoryColumn(
        output.TextColumn("GPUS", right=True), lambda job: str(job.attempt.gpu_count if job.attempt else 0)
    ),
    "image": HistoryColumn(
        output.TextColumn("IMAGE", 30, least=8), lambda job: job.spec.image or _WITHOUT.get(job.submitted_via, "host")
    ),
    "command": HistoryColumn(
        output.TextColumn("COMMAND", 40, least=8), lambda job: " ".join(element_spec(job).command)
    ),
    "submitted": HistoryColumn(output.TextColumn("SUBMITTED"), lambda job: _at(job.submitted_at)),
    "started": HistoryColumn(output.TextColumn("STARTED"), lambda job: _at(job.started_at)),
    "ended": HistoryColumn(output.TextColumn("ENDED"), lambda job: _at(job.end)),
    "wait": HistoryColumn(output.TextColumn("WAIT", right=True), _waited),
    "time": HistoryColumn(output.TextColumn("TIME", right=True), _ran),
    "gpu_hours": HistoryColumn(output.TextColumn("GPU-H", right=True), _gpu_hours),
    "attempts": HistoryColumn(output.TextColumn("TRIES", right=True), lambda job: str(len(job.attempts))),
    "exit": HistoryColumn(
        output.TextColumn("EXIT", right=True), lambda job: "-" if job.exit_code is None else str(job.exit_code)
    ),
    "why": HistoryColumn(output.TextColumn("INFO"), lambda job: job.end_info),
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
@click.option("-c", "--columns", metavar="NAME[,…]", help=f"Columns to print: {', '.join(COLUMNS)}.")
@click.option("--json", "as_json", is_flag=True, help="Print an array of jobs as JSON.")
@pass_session
def command(
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
        if name not in COLUMNS:
            raise InputError(f"{quoted(plain(name))} is not a column", where="--columns", hint=", ".join(COLUMNS))
    shown = [COLUMNS[name] for name in names]
    chosen = read_filter(" ".join(words), "FILTER")
    now = bootstrap.clock().now()
    begin = times.past(since, "--since", now) if since is not None else None
    end = times.past(until, "--until", now) if until is not None else None
    with session.backend() as backend:
        found = _matching(_ended(backend.queue, begin, end), chosen, now)
        listed = islice(found, limit) if limit else found
        if as_json:
            print_array(map(job_json, listed))
        else:
            cells = ([column.cell(job) for column in shown] for job in listed)
            lines = output.lines([column.column for column in shown], cells, terminal.width())
            terminal.write("\n".join(lines) + "\n")
        is_more = bool(limit) and next(found, None) is not None
    if is_more:
        terminal.tell(f"the latest {limit} are listed: --limit 0 lists all that match")


def _ended(queue: Queue, since: datetime | None, until: datetime | None) -> Iterator[Job]:
    """Yield the jobs that ended in that time, the latest first; reads only the months concerned."""
    in_queue = sorted((job for job in queue.jobs().values() if job.state.is_terminal), key=latest_first)
    left = heapq.merge(in_queue, by_month(queue.past(since)), key=latest_first)
    return (job for job in left if (since is None or job.end >= since) and (until is None or job.end < until))


def _matching(jobs: Iterable[Job], chosen: Filter, now: datetime) -> Iterator[Job]:
    for job in jobs:
        part = chosen.part(FilterSubject(job, now, None, searched_text(job, None))) if chosen else job
        if part is not None:
            yield part
