"""`gputui serve`: schedule without a screen."""

from __future__ import annotations

import click

from gputui.cli.session import Session, pass_session
from gputui.request.numbers import duration


@click.command("serve")
@click.option("--wait", default="0", metavar="DURATION", help="Wait this long for another scheduler to end.")
@pass_session
def command(session: Session, wait: str) -> int:
    """Schedule without a screen until stopped. Containers keep running when it ends."""
    from gputui.console.serving import serve

    return serve(session.options, duration(wait, "--wait").total_seconds())
