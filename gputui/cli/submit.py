"""`gputui submit`: put a job, or a file of jobs, into the queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from gputui import bootstrap
from gputui.cli import docker_only, request
from gputui.cli.keys import BY_NAME, KEYS, Key, Kind
from gputui.cli.output import print_json
from gputui.cli.session import Session, pass_session
from gputui.config import Options
from gputui.domain.errors import InputError
from gputui.domain.job import Job, JobId, Submission
from gputui.ports import JobStore

_EPILOG = """\b
Options of docker run that every job has anyhow are taken and change nothing: --rm, -d, --init.
Options after IMAGE belong to the job's own command.
A host process (--host) starts in the current directory, with your PATH.
"""


class SubmitCommand(click.Command):
    """Refuses an option it does not know with what to write instead."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; options end at the image, or at `--`."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            hint = docker_only.hint(error.option_name)
            if hint is None:
                raise
            raise click.UsageError(f"{error.option_name} is not an option of submit ({hint})", ctx) from error


def _refuse(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        option = parameter.opts[0]
        raise click.UsageError(f"{option} is not an option of submit ({docker_only.hint(option)})", ctx)


def _option(key: Key) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    names = (*key.short, key.option, key.name)
    if key.kind is Kind.FLAG:
        return click.option(*names, is_flag=True, help=key.help)
    many = key.kind in {Kind.MANY, Kind.PAIRS}
    return click.option(*names, multiple=many, metavar=key.metavar, help=key.help)


def _with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with an option for every key, and those of docker that change nothing."""
    for key in reversed(KEYS):
        function = _option(key)(function)
    function = click.option(*docker_only.IGNORED, "ignored", is_flag=True, hidden=True, expose_value=False)(function)
    for options in (("-i", "--interactive"), ("-t", "--tty")):
        refused = click.option(*options, is_flag=True, hidden=True, expose_value=False, callback=_refuse)
        function = refused(function)
    return function


@click.command(
    "submit",
    cls=SubmitCommand,
    epilog=_EPILOG,
    context_settings={"allow_interspersed_args": False},
    short_help="put a job, or a file of jobs, into the queue",
)
@_with_options
@click.option("--host", is_flag=True, help="Run COMMAND as a process of the host, without a container.")
@click.option("-f", "--file", metavar="FILE.toml", help="Submit every [[job]] of a file, or none.")
@click.option("--json", "as_json", is_flag=True, help="Print the ids as JSON.")
@click.option("--dry-run", is_flag=True, help="Print when it would start and whom it would put back; submit nothing.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="IMAGE [COMMAND...]")
@pass_session
@click.pass_context
def command(
    ctx: click.Context,
    session: Session,
    /,
    host: bool,
    file: str | None,
    as_json: bool,
    dry_run: bool,
    arguments: tuple[str, ...],
    **given: Any,
) -> None:
    """Put a job into the queue and print its id.

    Takes docker run's own options: a docker run line works with the two words replaced.
    """
    submitter = request.Submitter(bootstrap.actor().user, bootstrap.clock().now())
    if file is not None:
        from gputui.cli import jobfile  # not needed for one job

        _refuse_others(given, arguments, host)
        submissions = jobfile.read(file, submitter)
    else:
        submissions = (submission_of(given, arguments, host, submitter),)
    for submission in submissions:
        check_runtime(submission, session.options)
    with session.store() as store:
        if dry_run:
            _show(session, store, submissions)
            return
        _print_ids(bootstrap.actions(store, session.options).submit(submissions), as_json)


def _show(session: Session, store: JobStore, submissions: Sequence[Submission]) -> None:
    """Print when the jobs would start, and whom they would put back."""
    from gputui.cli import dry_run  # the policy is not needed to submit
    from gputui.domain.policy.whatif import submitted

    first, now = max(store.jobs(), default=0) + 1, bootstrap.clock().now()
    specs = [(submission.spec, submission.held) for submission in submissions for _ in submission.array or (0,)]
    jobs = [Job(first + n, spec, now, priority=spec.priority, held=held) for n, (spec, held) in enumerate(specs)]
    dry_run.show(session, store, submitted(*jobs))


def check_runtime(submission: Submission, options: Options) -> None:
    """Refuse what no runtime here will ever run."""
    if submission.spec.is_host and not options.settings.scheduler.host_jobs and options.runtime != "process":
        raise InputError("host jobs are switched off", where="--host", hint="the setting scheduler.host_jobs")
    if not submission.spec.is_host and options.runtime == "process":
        hint = "submit --host -- COMMAND..., or leave out --runtime process"
        raise InputError("there is no engine here to run an image", where="IMAGE", hint=hint)


def submission_of(
    given: dict[str, Any], arguments: tuple[str, ...], host: bool, submitter: request.Submitter
) -> Submission:
    """What the options and arguments ask for."""
    image, rest = (None, arguments) if host else (arguments[0] if arguments else "", arguments[1:])
    if image == "":
        raise InputError("is missing", where="IMAGE", hint="gputui submit [OPTIONS] IMAGE [COMMAND...]")
    values = {name: _read(BY_NAME[name], value) for name, value in given.items() if value not in (None, (), False)}
    return request.submission(values, image, rest, submitter, _option_name)


def _read(key: Key, value: Any) -> object:
    if key.kind is Kind.FLAG:
        return value
    if key.kind is Kind.ONE:
        return key.read(_unsigned(key, value), key.option)
    return tuple(key.read(_unsigned(key, text), key.option) for text in value)


def _unsigned(key: Key, text: str) -> str:
    """The value of `-m=16g` or `-e=A=1`, where docker takes the first sign away: no such value begins with one."""
    has_letter = any(len(name) == 2 for name in key.short)
    if not has_letter or (key.kind is Kind.PAIRS and "=" not in text[1:]):
        return text
    return text.removeprefix("=")


def _option_name(key: str) -> str:
    return BY_NAME[key].option if key in BY_NAME else key.upper()


def _refuse_others(given: dict[str, Any], arguments: tuple[str, ...], host: bool) -> None:
    """With a file, everything is in the file."""
    names = [BY_NAME[name].option for name, value in given.items() if value not in (None, (), False)]
    names += ["--host"] if host else []
    names += ["IMAGE"] if arguments else []
    if names:
        raise InputError("cannot be given beside --file", where=names[0], hint="write it into the file")


def _print_ids(ids: Sequence[JobId], as_json: bool) -> None:
    if not as_json:
        click.echo("\n".join(map(str, ids)))
    elif len(ids) == 1:
        print_json({"id": ids[0]})
    else:
        print_json([{"id": job_id} for job_id in ids])
