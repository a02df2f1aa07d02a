"""`gputui cron`: submit jobs again and again, as crontab(5) has it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import click
from click.shell_completion import CompletionItem

from gputui import bootstrap
from gputui.cli import queue, submit, table
from gputui.cli.done import print_done
from gputui.cli.output import json_text, print_json, recurring_json
from gputui.cli.session import Session, pass_session
from gputui.domain.arrays import indices_word
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.job import JobId, Submission
from gputui.domain.recurring import Missed, Overlap, Recurrence, RecurringJob
from gputui.domain.text import plain
from gputui.engine.actions import Actions
from gputui.engine.zones import local_name
from gputui.request import numbers, options, texts
from gputui.request import submitter as request

COLUMNS = (
    table.Column("ID", right=True),
    table.Column("NEXT"),
    table.Column("LAST"),
    table.Column("JOB", right=True),
    table.Column("WHEN", 24, least=13),
    table.Column("ZONE", 20, least=4),
    table.Column("NAME", 20, least=4),
    table.Column("SUBMITS"),
)
_FAR = timedelta(days=300)
_EPILOG = """\b
The five fields, in quotes: minute, hour, day of month, month, day of week; or @hourly, @daily, @weekly,
@monthly, @yearly. Each is *, a number, a range 1-5, a list 1,3,5, with steps */15 or 8-18/2; months and days
also by name, jan and mon. With both days restricted, either of them will do.
After -- come the options and arguments of submit:
  gputui cron add '30 2 * * 1-5' --name nightly -- --gpus 2 trainer:latest python eval.py
"""


@click.group("cron")
def command() -> None:
    """Submit jobs again and again, at times written as in a crontab."""


class AddCommand(click.Command):
    """Tells where the options of submit belong."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; those after `--` are submit's."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            text = f"{error.option_name} is not an option of cron add (those of submit come after --)"
            raise click.UsageError(text, ctx) from error


@command.command("add", cls=AddCommand, epilog=_EPILOG, short_help="submit a job again and again")
@click.argument("expression", metavar="'MIN HOUR DOM MON DOW'")
@click.option("--time-zone", metavar="ZONE", help="In which the fields are meant, Europe/Berlin; else this host's.")
@click.option(
    "--missed",
    type=click.Choice([each.value for each in Missed]),
    default=Missed.ONCE.value,
    metavar="once|skip",
    help="Runs missed while nothing scheduled: one job for all of them afterwards (the default), or none.",
)
@click.option(
    "--overlap",
    type=click.Choice([each.value for each in Overlap]),
    default=Overlap.SKIP.value,
    metavar="skip|allow",
    help="While a job of an earlier run waits or runs: leave the run out (the default), or submit another.",
)
@click.option("--name", metavar="NAME", help="A name; also of its jobs, unless submit's --name gives them another.")
@click.option("--json", "as_json", is_flag=True, help="Print the id as JSON.")
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
    arguments: tuple[str, ...],
) -> None:
    """Submit a job again and again, and print the id of that, which is no job's."""
    named = texts.job_name(name, "--name") if name is not None else ""
    wished = Recurrence(expression, time_zone or local_name(), named, Missed(missed), Overlap(overlap))
    submission = _submission(ctx, session, arguments, named)
    with session.store() as store:
        recurring = bootstrap.actions(store, session.options).add_recurring(wished, submission)
    text = json_text({"id": recurring}) if as_json else str(recurring)
    print_done(text, f"recurring job {recurring} is added")


def _submission(ctx: click.Context, session: Session, arguments: Sequence[str], name: str) -> Submission:
    """What is submitted each time, read as `gputui submit` reads it."""
    inner = submit.command.make_context("submit", list(arguments), parent=ctx)
    given, found = inner.params, options.tidied(inner)
    for option in ("file", "as_json", "dry_run"):
        if given.pop(option):
            text = f"--{option.removeprefix('as_').replace('_', '-')}"
            raise InputError("is no option of what is submitted again and again", where=text)
    words, host, anyway = given.pop("arguments"), given.pop("host"), given.pop("anyway")
    submitter = request.Submitter(bootstrap.actor().user, bootstrap.clock().now())
    submission = options.submission_of(given, words, host, submitter, found)
    submit.tell(found, submission)
    submit.check_runtime(submission, session.options)
    if not anyway:
        submit.check_gpus((submission,), session.options)
    if name and not given["name"]:
        submission = replace(submission, spec=replace(submission.spec, name=name))
    return submission


@command.command("list", short_help="what is submitted, and when next")
@click.option("--json", "as_json", is_flag=True, help="Print an array as JSON.")
@pass_session
def list_(session: Session, as_json: bool) -> None:
    """List what is submitted again and again: when next, when last, and what."""
    with session.store() as store:
        entries = tuple(store.recurring().values())
    if as_json:
        print_json([recurring_json(entry) for entry in entries])
        return
    now = bootstrap.clock().now()
    rows = [row(entry, now) for entry in entries]
    lines = table.lines(COLUMNS, rows, table.terminal_width()) if rows else ["no recurring jobs"]
    sys.stdout.write("\n".join(lines) + "\n")
    if sys.stderr.isatty():
        sys.stderr.writelines(f"{plain(note)}\n" for note in footnotes(entries, now))


def row(entry: RecurringJob, now: datetime) -> tuple[str, ...]:
    """The cells of one."""
    return (
        str(entry.id),
        "paused" if entry.paused else _short(entry.next_at, now),
        _short(entry.last_at, now),
        str(entry.last_job_id or "-"),
        entry.expression,
        entry.zone,
        entry.name or "-",
        submission_words(entry.submission),
    )


def footnotes(entries: Sequence[RecurringJob], now: datetime) -> Iterator[str]:
    """Why the latest run of each was not made, where it was not."""
    for entry in entries:
        if entry.skipped and (entry.last_at is None or entry.skipped.at > entry.last_at):
            yield f"{entry.id}: the run of {_short(entry.skipped.at, now)} was left out: {entry.skipped.why}"


def submission_words(submission: Submission) -> str:
    """What is submitted, in one line, as it would be typed."""
    import shlex

    spec = submission.spec
    words = ["--gpus", queue.request_word(spec.gpus)] if spec.gpus.minimum else []
    words += ["--array", indices_word(submission.array)] if submission.array else []
    words += ["--hold"] if submission.held else []
    words += ["--host", "--"] if spec.image is None else [spec.image]
    return " ".join([*words, *map(shlex.quote, spec.command)])


def _short(at: datetime | None, now: datetime) -> str:
    """`03-02 12:15`, local; the date alone, with its year, where that is far away."""
    if at is None:
        return "-"
    return f"{at.astimezone():%m-%d %H:%M}" if abs(at - now) < _FAR else f"{at.astimezone():%Y-%m-%d}"


class RecurringIds(click.ParamType[tuple[JobId, ...]]):
    """`7` or `7,9`, of recurring jobs."""

    name = "ID"

    def convert(
        self, value: str | tuple[JobId, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[JobId, ...]:
        """The ids; raises InputError."""
        del param, ctx
        return numbers.job_ids(value, "ID") if isinstance(value, str) else value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Ids that begin so, with what they submit."""
        del param
        session = ctx.find_object(Session)
        try:
            with (session or Session()).existing_store() as store:
                entries = store.recurring().values()
        except (GputuiError, OSError):  # a shell that completes shows no errors
            return []
        found = [entry for entry in entries if str(entry.id).startswith(incomplete)]
        return [CompletionItem(str(entry.id), help=plain(_about(entry), 60)) for entry in found]


def _about(entry: RecurringJob) -> str:
    return f"{entry.expression} {entry.name or submission_words(entry.submission)}"


def _wish(name: str, about: str, wish: Callable[[Actions, tuple[JobId, ...]], None]) -> None:
    """Add a command that wishes the same of all that are named."""

    @command.command(name, help=about)
    @click.argument("ids", nargs=-1, required=True, type=RecurringIds(), metavar="ID...")
    @pass_session
    def _(session: Session, ids: tuple[tuple[JobId, ...], ...]) -> None:
        with session.store() as store:
            wish(bootstrap.actions(store), tuple(one for some in ids for one in some))


_wish("remove", "Submit them no more. Jobs that were submitted stay.", Actions.remove_recurring)
_wish("pause", "Submit nothing until they are resumed.", Actions.pause_recurring)
_wish("resume", "Submit again. Runs whose time came meanwhile are not made up for.", Actions.resume_recurring)
