"""`gputui resume`: let jobs start on GPUs again."""

from __future__ import annotations

import click

from gputui import bootstrap
from gputui.cli import readings
from gputui.cli.session import Session, pass_session


@click.command("resume")
@click.argument("gpus", nargs=-1, required=True, metavar="GPU...")
@pass_session
def command(session: Session, gpus: tuple[str, ...]) -> None:
    """Let jobs start again on GPUs that were drained."""
    with session.store() as store:
        uuids = readings.find_gpus(session.options, store, gpus)
        bootstrap.actions(store).resume(uuids)
