"""`gputui drain`: let no further job start on GPUs."""

from __future__ import annotations

import click

from gputui import bootstrap
from gputui.cli import completing, readings
from gputui.cli.session import Session, pass_session
from gputui.ports import JobStore
from gputui.request import texts


@click.command("drain")
@click.argument("gpus", nargs=-1, required=True, metavar="GPU...", shell_complete=completing.gpus)
@click.option("-r", "--reason", default="", metavar="TEXT", help="Why; shown to everybody.")
@click.option("--dry-run", is_flag=True, help="Print whose start would shift, and do nothing.")
@pass_session
def command(session: Session, gpus: tuple[str, ...], reason: str, dry_run: bool) -> None:
    """Let no further job start on GPUs, named by index, UUID or its beginning. What runs there goes on."""
    words = texts.one_line(reason, "--reason") if reason else ""
    with session.store() as store:
        uuids = readings.find_gpus(session.options, store, gpus)
        if dry_run:
            _show(session, store, uuids)
            return
        bootstrap.actions(store).drain(uuids, words)


def _show(session: Session, store: JobStore, uuids: tuple[str, ...]) -> None:
    from gputui.cli import dry_run  # the policy is not needed to wish
    from gputui.domain.policy.whatif import drained

    dry_run.show(session, store, drained(uuids, bootstrap.clock().now()))
