"""`gputui drain`: let no further job start on GPUs."""

from __future__ import annotations

import click

from gputui import bootstrap
from gputui.cli import readings, texts
from gputui.cli.session import Session, pass_session


@click.command("drain")
@click.argument("gpus", nargs=-1, required=True, metavar="GPU...")
@click.option("-r", "--reason", default="", metavar="TEXT", help="Why; shown to everybody.")
@pass_session
def command(session: Session, gpus: tuple[str, ...], reason: str) -> None:
    """Let no further job start on GPUs, named by index, UUID or its beginning. What runs there goes on."""
    words = texts.one_line(reason, "--reason") if reason else ""
    with session.store() as store:
        uuids = readings.find_gpus(session.options, store, gpus)
        bootstrap.actions(store).drain(uuids, words)
