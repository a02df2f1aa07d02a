"""`gputui unpause`: start jobs again."""

from __future__ import annotations

import click

from gputui import bootstrap
from gputui.cli.session import Session, pass_session


@click.command("unpause")
@pass_session
def command(session: Session) -> None:
    """Start jobs again after a pause."""
    with session.store() as store:
        bootstrap.actions(store).unpause()
