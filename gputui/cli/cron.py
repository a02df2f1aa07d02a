"""`gputui cron`: submit jobs at regular times, as crontab(5) does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta

import click
from msgspec.structs import replace

from gputui import bootstrap
from gputui.cli import completing, output, queue, submit, terminal
from gputui.cli.main import CommandGroup
from gputui.cli.output import TextColumn, confirm, print_json, quiet_option
from gputui.cli.session import Session, pass_session
from gputui.cli.terminal import print_done
from gputui.domain.action import AddRecurring
from gputui.domain.arrays import indices_word
from gputui.domain.as_json import json_text, recurring_json
from gputui.domain.errors import InputError
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.recurring import Missed, Overlap, Recurrence, RecurringJob
from gputui.domain.spec_values import check_gpus
from gputui.domain.text import local_time, plain
from gputui.domain.verbs import RECURRING_VERBS, Verb
from gputui.engine.actions.admission import local_zone_name
from gputui.request import job_values, submitter

_DONE = {"pause_recurring": "paused", "resume_recurring": "resumed", "remove": "removed"}
"""Participles of the verbs, for confirmations."""
_FAR = timedelta(days=300)
_EPILOG = """\b
The five fields, in quotes: minute, hour, day of month, month, day of week; or @hourly, @daily, @weekly,
@monthly, @yearly. Each is *, a number, a range 1-5, a list 1,3,5, with steps */15 or 8-18/2; months and days
also by name, jan and mon. With both days restricted, either of them will do.
After -- come the options and arguments of submit:
  gputui cron add '30 2 * * 1-5' --name nightly -- --gpus 2 trainer:latest python eval.py
"""


@click.group("cron", cls=CommandGroup)
def command() -> None:
    """Submit jobs at regular times, written as in a crontab."""


class AddCommand(click.Command):
    """Command whose error for an unknown option says that options of submit go after `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            text = f"{error.option_name} is not an option of cron add (those of submit come after --)"
            raise click.UsageError(text, ctx) from error


@command.command("add", cls=AddCommand, epilog=_EPILOG, short_help="Add a recurring job.")
@click.argument("expression", metavar="'MIN HOUR DOM MON DOW'")
@click.option(
    "--time-zone", metavar="ZONE", help="Time zone of the fields, such as Europe/Berlin; this host's by default."
)
@click.option(
    "--missed",
    type=click.Choice([each.value for each in Missed]),
    default=Missed.ONCE.value,
    metavar="once|skip",
    help="Runs missed while no scheduler ran: one job for all of them afterwards (the default), or none.",
)
@click.option(
    "--overlap",
    type=click.Choice([each.value for each in Overlap]),
    default=Overlap.SKIP.value,
    metavar="skip|allow",
    help="While a job of an earlier run waits or runs: skip the run (the default), or submit another job.",
)
@click.option(
    "--name", metavar="NAME", help="Name of the recurring job and, unless submit's --name differs, of its jobs."
)
@click.option("--json", "as_json", is_flag=True, help="Print the id as JSON.")
@quiet_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="-- [SUBMIT OPTIONS] IMAGE [COMMAND...]")
@pass_session
@click.pass_context
def add(
    ctx: click.Context,
    session: Session,
    /,
    expression: str,
    time_zone: str | None,
    missed: str,
    overlap: str,
    name: str | None,
    as_json: bool,
    quiet: bool,
    arguments: tuple[str, ...],
) -> None:
    """Add a recurring job, and print its id (ids of jobs are separate)."""
    named = job_values.job_name(name, "--name") if name is not None else ""
    recurrence = Recurrence(expression, time_zone or local_zone_name(), named, Missed(missed), Overlap(overlap))
    # parsed as `gputui submit` parses its arguments
    inner = submit.command.make_context("submit", list(arguments), parent=ctx)
    given, found = inner.params, submitter.tidied(inner)
    for option in ("file", "as_json", "dry_run", "quiet"):
        if given.pop(option):
            text = f"--{option.removeprefix('as_').replace('_', '-')}"
            raise InputError("does not apply to recurring jobs", where=text)
    words, host, anyway = given.pop("arguments"), given.pop("host"), given.pop("anyway")
    submission = submitter.submission_of(given, words, host, session.submitter(), found)
    submit.tell(found, submission)
    submit.check_runtime(submission, bootstrap.runtime_names(session.options))
    if named and not given["name"]:
        submission = replace(submission, spec=replace(submission.spec, name=named))
    with session.backend() as backend:
        if not anyway:
            check_gpus((submission,), backend.known_gpus)
        (recurring,) = backend.act(AddRecurring(recurrence, submission)).ids
        next_at = backend.queue.recurring()[recurring].next_at
    # `recurring job 3: next run Tue 2026-03-03 02:30 CET; time limit 1h30m`
    now = bootstrap.clock().now()
    times = submit.times_understood(submission.spec, now)
    understood = f"recurring job {recurring}: next run {local_time(next_at, now)}" + (f"; {times}" if times else "")
    confirm(understood, quiet=quiet or as_json)
    text = json_text({"id": recurring}) if as_json else str(recurring)
    print_done(text, f"recurring job {recurring} is added")


@command.command("list", short_help="List recurring jobs and their next runs.")
@click.option("--json", "as_json", is_flag=True, help="Print an array as JSON.")
@pass_session
def list_(session: Session, as_json: bool) -> None:
    """List recurring jobs: next run, last run, and the submission."""
    with session.backend() as backend:
        entries = tuple(backend.queue.recurring().values())
    if as_json:
        print_json([recurring_json(entry) for entry in entries])
        return
    now = bootstrap.clock().now()
    columns: tuple[tuple[TextColumn, Callable[[RecurringJob], str]], ...] = (
        (TextColumn("ID", right=True), lambda entry: str(entry.id)),
        (TextColumn("NEXT"), lambda entry: "paused" if entry.paused else _short(entry.next_at, now)),
        (TextColumn("LAST"), lambda entry: _short(entry.last_at, now)),
        (TextColumn("JOB", right=True), lambda entry: str(entry.last_job_id or "-")),
        (TextColumn("WHEN", 24, least=13), lambda entry: entry.expression),
        (TextColumn("ZONE", 20, least=4), lambda entry: entry.zone),
        (TextColumn("NAME", 20, least=4), lambda entry: entry.name or "-"),
        (TextColumn("SUBMITS"), lambda entry: submission_words(entry.submission)),
    )
    lines = output.table(columns, entries) if entries else ["no recurring jobs"]
    terminal.write("\n".join(lines) + "\n")
    if terminal.is_tty(terminal.ERR):
        terminal.write_lines((f"{plain(note)}\n" for note in footnotes(entries, now)), err=True)


def footnotes(entries: Sequence[RecurringJob], now: datetime) -> Iterator[str]:
    """Yield a sentence for each recurring job whose latest run was skipped, with the reason."""
    for entry in entries:
        if entry.skipped and (entry.last_at is None or entry.skipped.at > entry.last_at):
            yield f"{entry.id}: the run of {_short(entry.skipped.at, now)} was left out: {entry.skipped.why}"


def submission_words(submission: Submission) -> str:
    import shlex

    spec = submission.spec
    words = ["--gpus", queue.request_word(spec.gpus)] if spec.gpus.minimum else []
    words += [word for name, values in spec.sweep for word in ("--sweep", shlex.quote(f"{name}={values}"))]
    words += ["--array", indices_word(submission.array)] if submission.array and not spec.sweep else []
    words += ["--hold"] if submission.held else []
    words += ["--host", "--"] if spec.image is None else [spec.image]
    return " ".join([*words, *map(shlex.quote, spec.command)])


def _short(at: datetime | None, now: datetime) -> str:
    if at is None:
        return "-"
    return f"{at.astimezone():%m-%d %H:%M}" if abs(at - now) < _FAR else f"{at.astimezone():%Y-%m-%d}"


class RecurringIds(click.ParamType[tuple[JobId, ...]]):
    name = "ID"

    def convert(
        self, value: str | tuple[JobId, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[JobId, ...]:
        return job_values.job_ids(value, "ID") if isinstance(value, str) else value


@completing.quiet
def _recurring(ctx: click.Context, param: click.Parameter, incomplete: str) -> completing.Items:
    with completing.opened(ctx) as (_, backend):
        entries = backend.queue.recurring().values()
    words = ((str(each.id), f"{each.expression} {each.name or submission_words(each.submission)}") for each in entries)
    return completing.matching(words, incomplete)


def _add_verb(verb: Verb[RecurringJob]) -> None:
    """Add the command of a verb about recurring jobs; its name is the last word of `cron NAME`."""

    @command.command(verb.shell.split()[1], help=verb.shell_help)
    @click.argument("ids", nargs=-1, required=True, type=RecurringIds(), metavar="ID...", shell_complete=_recurring)
    @quiet_option
    @pass_session
    def _(session: Session, ids: tuple[tuple[JobId, ...], ...], quiet: bool) -> None:
        chosen = tuple(dict.fromkeys(one for some in ids for one in some))
        with session.backend() as backend:
            backend.act(verb.on(chosen))
        jobs = "recurring job" if len(chosen) == 1 else f"{len(chosen)} recurring jobs:"
        confirm(f"{_DONE[verb.name]} {jobs} {' '.join(map(str, chosen))}", quiet=quiet)


for _verb in RECURRING_VERBS:
    _add_verb(_verb)
