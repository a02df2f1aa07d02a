"""`gputui exec`: run a command in a running job."""

from __future__ import annotations

import os
import sys

import click

from gputui.cli import conversation
from gputui.cli.job_ids import Named, OneJobId, resolve_one
from gputui.cli.session import Session, pass_session
from gputui.domain.container import ExecRequest
from gputui.domain.errors import InputError


@click.command(
    "exec",
    short_help="run a command in a running job",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
)
@click.option("-i", "--interactive", "stdin", is_flag=True, help="Pass on standard input.")
@click.option("-t", "--tty", "is_tty", is_flag=True, help="Give the command a terminal.")
@click.option(
    "--detach-keys", "keys", metavar="KEYS", default=conversation.DEFAULT, help="Keys that leave the command running."
)
@click.argument("ids", type=OneJobId(), metavar="ID")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
@pass_session
def command(
    session: Session, stdin: bool, is_tty: bool, keys: str, ids: tuple[Named, ...], words: tuple[str, ...]
) -> int:
    """Run a command in a running job, and return its exit code.

    In a container it runs as `docker exec` would. In a host job it gets the job's environment, working directory,
    limits and user, and is ended with the job. Only the submitter of a job and operators may; the audit log has it.
    """
    check_terminal(stdin=stdin, is_tty=is_tty)
    sequence = conversation.parse(keys)
    rows, columns = conversation.terminal_size()
    term = os.environ.get("TERM", "xterm")
    request = ExecRequest(words, stdin, is_tty, rows, columns, term, keys if is_tty else "")
    with session.backend() as backend:
        job_id = resolve_one(backend.queue, ids[0])
        with conversation.Signals(conversation.SIGNALS) as signals:
            channel = backend.enter(job_id, request)
            try:
                talk = conversation.Conversation(
                    channel, signals, has_input=stdin, detach_keys=sequence, on_signal=_interrupted
                )
                outcome = talk.run()
                code = channel.exit_code() if outcome is conversation.Ending.ENDED else None
            finally:
                channel.close()
    if outcome in {conversation.Ending.HUNG_UP, conversation.Ending.LEFT}:
        return talk.exit_code
    if outcome is conversation.Ending.DETACHED:
        return 0
    if code is None:
        click.echo("gputui: the connection ended, and the command's exit code is not known", err=True)
        return 1
    return code


def check_terminal(*, stdin: bool, is_tty: bool) -> None:
    """Raise InputError if a terminal is requested but standard input is not one."""
    if stdin and is_tty and not sys.stdin.isatty():
        raise InputError("standard input is not a terminal", where="-t", hint="leave out -t")


def _interrupted(number: int) -> None:
    raise conversation.Leaving(number)
