"""`gputui run`: submit a job, wait for it, and attach to it."""

from __future__ import annotations

from typing import Any

import click
from msgspec.structs import replace

from gputui import bootstrap
from gputui.cli import completing, conversation, terminal
from gputui.cli.attendance import Attendance, follow_output
from gputui.cli.conversation import check_terminal
from gputui.cli.session import Session, pass_session
from gputui.cli.submit import (
    check_runtime,
    confirm_times,
    tell,
    with_elements,
)
from gputui.domain.action import SubmitJobs
from gputui.domain.errors import InputError
from gputui.domain.job_spec import Interactive, Submission
from gputui.domain.spec_values import check_gpus
from gputui.request import submitter
from gputui.request.submitter import SubmitCommand, Tidied

_EPILOG = """\b
While the job waits, one line on stderr says why and until when; Ctrl-C cancels it. Afterwards:
    without -t  Ctrl-C asks the job to stop, as `gputui cancel` does; a second one leaves at once.
    with -t     Ctrl-C goes to the job like every other key; ctrl-p ctrl-q leaves the job running.
If the terminal is lost, a waiting job is cancelled and a running one continues: `gputui attach ID` attaches again.
"""


@click.command("run", cls=SubmitCommand, epilog=_EPILOG, short_help="submit a job, wait for it, and attach to it")
@completing.with_options
@click.option("-i", "--interactive", "stdin", is_flag=True, help="Pass on standard input.")
@click.option("-t", "--tty", "is_tty", is_flag=True, help="Give the job a terminal.")
@click.option(
    "--detach-keys", "keys", metavar="KEYS", default=conversation.DEFAULT, help="Keys that leave the job running."
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing about the wait and the end.")
@click.option("--host", is_flag=True, help="Run COMMAND as a process on the host, without a container.")
@click.option("--anyway", is_flag=True, help="Queue it even if this server does not have such GPUs.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="IMAGE [COMMAND...]")
@pass_session
@click.pass_context
def command(
    ctx: click.Context,
    session: Session,
    /,
    stdin: bool,
    is_tty: bool,
    keys: str,
    quiet: bool,
    host: bool,
    anyway: bool,
    arguments: tuple[str, ...],
    **given: Any,
) -> int:
    """Submit a job, wait until it starts, and attach to it; the exit code is the job's.

    Takes the options of `gputui submit`. Standard output and standard error stay apart, unless -t gives the job a
    terminal.
    """
    check_terminal(stdin=stdin, is_tty=is_tty)
    conversation.parse(keys)
    given = with_elements(session, given)
    found = submitter.tidied(ctx)
    _refuse_detached(found)
    asked = submitter.submission_of(given, arguments, host, session.submitter(), found)
    if asked.array:
        raise InputError("is for submit: run attaches to one job", where="--array")
    with session.backend() as backend:
        runs_jobs = backend.about().caps.runs_jobs
        is_attached = runs_jobs or stdin or is_tty
        submission = _interactive(asked, Interactive(stdin, is_tty)) if is_attached else asked
        if not quiet:
            tell(found, submission)
        check_runtime(submission, bootstrap.runtime_names(session.options))
        if not anyway:
            check_gpus((submission,), backend.known_gpus)
        if not is_attached:
            (job_id,) = backend.act(SubmitJobs((submission,))).ids
            confirm_times(f"job {job_id}", submission.spec, quiet=quiet)
            return follow_output(backend, job_id, is_quiet=quiet)
        job_id, awaited = backend.submit_attached(submission, keys)
        confirm_times(f"job {job_id}", submission.spec, quiet=quiet)
        return Attendance(session, backend, job_id, keys, is_owner=True, is_quiet=quiet, awaited=awaited).run()


def _refuse_detached(found: Tidied) -> None:
    """Raise InputError for the option of docker run that run cannot take."""
    if detached := next((name for name in found.taken if name in {"-d", "--detach"}), None):
        hint = "gputui submit, or leave it out"
        raise InputError("is what `gputui submit` does: run attaches", where=detached, hint=hint)


def _interactive(submission: Submission, interactive: Interactive) -> Submission:
    """Return the submission of an interactive job; with a terminal, TERM is set in its environment."""
    spec = submission.spec
    env = dict(spec.options.env)
    if interactive.tty and "TERM" not in env and (term := terminal.environ().get("TERM")):
        spec = replace(spec, options=replace(spec.options, env=(*spec.options.env, ("TERM", term))))
    return replace(submission, spec=replace(spec, interactive=interactive))
