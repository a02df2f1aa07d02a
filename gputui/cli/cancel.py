"""`gputui cancel`: end jobs, or keep them from starting."""

from __future__ import annotations

import click

from gputui import bootstrap
from gputui.cli.confirmation import changed, confirm, dry_run_option, jobs_of, quiet_option
from gputui.cli.job_ids import Named, flat, ids_argument, left_alone
from gputui.cli.session import Session, pass_session
from gputui.cli.verb_command import show_jobs
from gputui.domain.action import Cancel
from gputui.domain.verbs import JOB_VERB


@click.command("cancel", help=JOB_VERB["cancel"].shell_help)
@ids_argument
@dry_run_option
@quiet_option
@pass_session
def command(session: Session, ids: tuple[tuple[Named, ...], ...], dry_run: bool, quiet: bool) -> None:
    """Cancel jobs, and report on stderr which ones are cancelled and which had already ended."""
    with session.store() as store:
        if dry_run:
            show_jobs(session, store, JOB_VERB["cancel"], flat(store, ids))
            return
        asked = flat(store, ids)
        done = bootstrap.actions(store, session.options).act(Cancel(asked)).ids
        if done and not quiet:
            confirm(changed("cancel", jobs_of(store, done)))
        for line in left_alone(store, asked, done):
            click.echo(line, err=True)
