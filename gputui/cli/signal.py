"""`gputui signal`: send running jobs a signal."""

from __future__ import annotations

import click

from gputui import bootstrap
from gputui.cli.confirmation import confirm, jobs_of, named, quiet_option
from gputui.cli.job_ids import Named, flat, ids_argument
from gputui.cli.session import Session, pass_session
from gputui.domain.action import Signal
from gputui.domain.cause import signal_name
from gputui.domain.state import JobState
from gputui.domain.verbs import SIGNAL, SIGNALS
from gputui.request.job_values import signal_number


@click.command("signal", help=SIGNAL.shell_help)
@ids_argument
@quiet_option
@click.argument("number", metavar="SIGNAL", shell_complete=lambda *_: [each.name for each in SIGNALS])
@pass_session
def command(session: Session, ids: tuple[tuple[Named, ...], ...], quiet: bool, number: str) -> None:
    """Request the signal; for a whole array, the running elements get it."""
    wanted = signal_number(number, "SIGNAL")
    with session.store() as store:
        chosen = flat(store, ids, lambda job: job.state is JobState.RUNNING)
        done = bootstrap.actions(store, session.options).act(Signal(chosen, wanted)).ids
        if not quiet:
            confirm(
                f"sending {signal_name(wanted)} to {named(jobs_of(store, done))}" if done else "nothing was changed"
            )
