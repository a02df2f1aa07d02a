"""`gputui serve`: schedule without a screen."""

from __future__ import annotations

import click

from gputui import bootstrap
from gputui.cli.numbers import duration
from gputui.cli.session import Session, pass_session


@click.command("serve")
@click.option("--wait", default="0", metavar="DURATION", help="Wait so long for another scheduler to go.")
@pass_session
def command(session: Session, wait: str) -> int:
    """Schedule without a screen, until told to end. Containers run on when it ends."""
    return bootstrap.run_serve(session.options, wait=duration(wait, "--wait").total_seconds())
