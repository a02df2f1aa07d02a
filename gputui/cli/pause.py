"""`gputui pause`: start no further job."""

from __future__ import annotations

import click

from gputui import bootstrap
from gputui.cli.session import Session, pass_session
from gputui.request import texts


@click.command("pause")
@click.argument("reason", nargs=-1)
@pass_session
def command(session: Session, reason: tuple[str, ...]) -> None:
    """Start no further job anywhere; running jobs go on. REASON is shown to everybody."""
    words = texts.one_line(" ".join(reason), "REASON") if reason else ""
    with session.store() as store:
        bootstrap.actions(store).pause(words)
