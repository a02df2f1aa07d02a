"""`gputui report`: GPU-hours, waits, energy and cost of a period."""

from __future__ import annotations

import csv
import gc
import io
from pathlib import Path

import click
from msgspec.structs import replace

from gputui import bootstrap
from gputui.cli import terminal
from gputui.cli.report_figures import Replayed, Report, as_json, lines, period, replay_jobs, report, row
from gputui.cli.session import Session, pass_session
from gputui.domain.accounting import GROUPINGS
from gputui.domain.as_json import json_text
from gputui.domain.decoding import convert
from gputui.domain.errors import GputuiError
from gputui.domain.job import Job
from gputui.domain.job_record import JobRecord, UseRecord
from gputui.ports.backend import DirectBackend

FORMATS = ("table", "csv", "json", "html")


@click.command("report")
@click.option("--since", metavar="TIME", help="Begin of the period, such as -7d, 'last monday', 2026-11-01. [-30d]")
@click.option("--until", metavar="TIME", help="End of the period; jobs count up to it. [now]")
@click.option(
    "--by",
    metavar="|".join(GROUPINGS),
    type=click.Choice(GROUPINGS),
    default="tenant",
    help="One line for each of these. [tenant]",
)
@click.option(
    "--format", "form", metavar="|".join(FORMATS), type=click.Choice(FORMATS), default="table", help="[table]"
)
@click.option("-o", "--output", metavar="FILE", help="Write it to this file.")
@click.option("--what-if", is_flag=True, help="Add the waits that other policies would have given these jobs.")
@pass_session
def command(
    session: Session, since: str | None, until: str | None, by: str, form: str, output: str | None, what_if: bool
) -> None:
    """Report the GPU-hours, waits, energy and cost of a period.

    Only the part of an attempt inside the period counts; a running attempt counts up to now. `?` means not
    measured. docs/accounting.md defines each figure.
    """
    gc.disable()  # a year of jobs is millions of objects, none of which is in a cycle
    found = read(session, since, until, by, with_gpus=form == "html")
    replayed = None
    if what_if:
        replayed = replay_jobs(session, found)
    text = _text(found, form, replayed, total=None if output else terminal.width())
    if output is None:
        terminal.write(text)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise GputuiError(f"cannot be written: {error.strerror}", where=output) from error


def read(session: Session, since: str | None, until: str | None, by: str, *, with_gpus: bool = False) -> Report:
    """Return the report of a period about all jobs of the store; with the indices of the GPUs where they are shown."""
    now = bootstrap.clock().now()
    chosen = period(since, until, now)
    with session.backend() as backend:
        running = {job.id: job for job in backend.queue.jobs().values() if job.state.is_active and job.gpus}
        jobs = tuple(
            _with_use(backend, record, running[record.id]) if record.id in running else record
            for record in backend.queue.records(chosen.since)
        )
        views = backend.snapshots().read().gpus if with_gpus or by == "gpu" else ()
    indices = {view.gpu.uuid: view.gpu.index for view in views if view.gpu.index >= 0}
    return report(jobs, chosen, by, session.options.settings.report, now, indices)


def _with_use(backend: DirectBackend, record: JobRecord, job: Job) -> JobRecord:
    """Return the record of a running job with what was measured so far; the store has figures of ended attempts."""
    last = max(backend.measured(job.id).items(), default=(0, None))[1]
    if last is None or last.summary is None or not record.attempts or record.attempts[-1].ended_at is not None:
        return record
    use = convert(last.summary, UseRecord, from_attributes=True)
    return replace(record, attempts=(*record.attempts[:-1], replace(record.attempts[-1], telemetry=use)))


def _text(found: Report, form: str, replayed: Replayed | None, total: int | None) -> str:
    if form == "json":
        told = as_json(found)
        return json_text(told | ({"what_if": replayed.as_json()} if replayed else {})) + "\n"
    if form == "csv":
        rows = as_json(found)["groups"]
        empty = {"group": "", "name": "", **row(found.accounts.total, found.rates)}
        file = io.StringIO()
        writer = csv.DictWriter(file, [found.by if key == "group" else key for key in empty], lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {found.by if key == "group" else key: _safe(value) for key, value in row.items()} for row in rows
        )
        return file.getvalue()
    if form == "html":
        from gputui.cli import report_page

        if needed := report_page.lacking():
            terminal.echo(f"gputui: note: {needed}", err=True)
        return report_page.page(found, replayed)
    shown = [*lines(found, total), *(replayed.lines() if replayed else [])]
    return "\n".join(shown) + "\n"


def _safe(value: object) -> object:
    """Return the text escaped so that a spreadsheet does not take it for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in {"=", "+", "-", "@", "\t", "\r"} else value
