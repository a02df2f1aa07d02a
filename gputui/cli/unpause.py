"""`gputui unpause`: start jobs again."""

from __future__ import annotations

import click

from gputui import bootstrap
from gputui.cli.confirmation import confirm, quiet_option
from gputui.cli.session import Session, pass_session
from gputui.domain.action import Unpause
from gputui.domain.verbs import BY_NAME


@click.command("unpause", help=BY_NAME["unpause"].shell_help)
@quiet_option
@pass_session
def command(session: Session, quiet: bool) -> None:
    """End the pause of the queue."""
    with session.store() as store:
        bootstrap.actions(store, session.options).act(Unpause())
    if not quiet:
        rest = "" if bootstrap.is_scheduled(session.options) else " once a scheduler runs: gputui or gputui serve"
        confirm(f"unpaused: jobs start again{rest}")
