"""`gputui demo`: the console on simulated GPUs."""

from __future__ import annotations

import click

from gputui import bootstrap
from gputui.cli.session import Session, pass_session


@click.command("demo")
@pass_session
def command(session: Session) -> int:
    """Open the console on eight simulated GPUs with real short jobs, in a throw-away state directory."""
    return bootstrap.run_demo(session.options)
