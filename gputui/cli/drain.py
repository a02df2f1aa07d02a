"""`gputui drain`: start no new jobs on GPUs."""

from __future__ import annotations

import click

from gputui import bootstrap
from gputui.cli import completing, readings
from gputui.cli.confirmation import confirm, dry_run_option, named, quiet_option
from gputui.cli.session import Session, pass_session
from gputui.cli.verb_command import show_shifts
from gputui.domain.action import DrainGpus
from gputui.domain.verbs import BY_NAME
from gputui.ports import JobStore
from gputui.request import texts


@click.command("drain", help=BY_NAME["drain"].shell_help)
@click.argument("gpus", nargs=-1, required=True, metavar="GPU...", shell_complete=completing.drained)
@click.option("-r", "--reason", default="", metavar="TEXT", help="Reason, shown to all users.")
@dry_run_option
@quiet_option
@pass_session
def command(session: Session, gpus: tuple[str, ...], reason: str, dry_run: bool, quiet: bool) -> None:
    """Drain the GPUs named, or in a cluster the nodes."""
    words = texts.one_line(reason, "--reason") if reason else ""
    with session.store() as store:
        uuids = readings.find_gpus(session.options, store, gpus)
        action = DrainGpus(uuids, words)
        if dry_run:
            show_shifts(session, store, action)
            return
        bootstrap.actions(store, session.options).act(action)
        if not quiet:
            confirm(_words(session, store, uuids))


def _words(session: Session, store: JobStore, uuids: tuple[str, ...]) -> str:
    """Return the confirmation, with the jobs that still run on the GPUs."""
    gpus = readings.gpu_names(bootstrap.current_snapshot(session.options, store), uuids)
    running = [job for job in store.jobs().values() if job.state.is_active and job.attempt]
    left = [job for job in running if job.attempt and not set(uuids).isdisjoint((*job.attempt.gpus, job.attempt.node))]
    rest = f"; {named(left)} {'continues' if len(left) == 1 else 'continue'}" if left else ""
    return f"drained {gpus}: no new jobs start there{rest}"
