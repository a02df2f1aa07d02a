"""`gputui resume`: let jobs start on GPUs again."""

from __future__ import annotations

from collections.abc import Iterator

import click

from gputui import bootstrap
from gputui.cli import completing, readings
from gputui.cli.session import Session, pass_session
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import plain


@click.command("resume")
@click.argument("gpus", nargs=-1, required=True, metavar="GPU...", shell_complete=completing.gpus)
@pass_session
def command(session: Session, gpus: tuple[str, ...]) -> None:
    """Let jobs start again on GPUs that were drained, or that a fatal Xid stopped and that have been reset since."""
    with session.store() as store:
        uuids = readings.find_gpus(session.options, store, gpus)
        bootstrap.actions(store).resume(uuids)
        for sentence in obstacles(bootstrap.current_snapshot(session.options, store), uuids):
            click.echo(sentence, err=True)


def obstacles(snapshot: Snapshot, uuids: tuple[str, ...]) -> Iterator[str]:
    """Yield a sentence for each of these GPUs on which no job starts in spite of the resume."""
    for view in snapshot.gpus:
        is_sick = not view.health.is_schedulable and not view.is_stopped_by_xid
        if view.gpu.uuid in uuids and is_sick:
            yield f"GPU {view.gpu.index} is resumed, but no job starts there yet: {plain(view.health.text)}"
