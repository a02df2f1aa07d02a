"""`gputui resume`: start jobs on GPUs again."""

from __future__ import annotations

from collections.abc import Iterator

import click

from gputui import bootstrap
from gputui.cli import completing, readings
from gputui.cli.confirmation import confirm, dry_run_option, quiet_option
from gputui.cli.session import Session, pass_session
from gputui.cli.verb_command import show_shifts
from gputui.domain.action import ResumeGpus
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import plain
from gputui.domain.verbs import BY_NAME


@click.command("resume", help=BY_NAME["resume"].shell_help)
@click.argument("gpus", nargs=-1, required=True, metavar="GPU...", shell_complete=completing.drained)
@dry_run_option
@quiet_option
@pass_session
def command(session: Session, gpus: tuple[str, ...], dry_run: bool, quiet: bool) -> None:
    """Resume the GPUs named, and report on stderr why one of them still takes no jobs."""
    with session.store() as store:
        uuids = readings.find_gpus(session.options, store, gpus)
        if dry_run:
            show_shifts(session, store, ResumeGpus(uuids))
            return
        bootstrap.actions(store, session.options).act(ResumeGpus(uuids))
        snapshot = bootstrap.current_snapshot(session.options, store)
        confirm(f"resumed {readings.gpu_names(snapshot, uuids)}: jobs start there again", quiet=quiet)
        for sentence in obstacles(snapshot, uuids):
            click.echo(sentence, err=True)


def obstacles(snapshot: Snapshot, uuids: tuple[str, ...]) -> Iterator[str]:
    """Yield a sentence for each of these GPUs on which no job starts in spite of the resume."""
    for view in snapshot.gpus:
        is_sick = not view.health.is_schedulable and not view.is_stopped_by_xid
        if view.gpu.uuid in uuids and is_sick:
            yield f"GPU {view.gpu.index} is resumed, but no job starts there yet: {plain(view.health.text)}"
