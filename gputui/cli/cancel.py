"""`gputui cancel`: end jobs, or keep them from starting."""

from __future__ import annotations

import click

from gputui import bootstrap
from gputui.cli.confirmation import changed, confirm, jobs_of, quiet_option
from gputui.cli.job_arguments import check_known, flat, ids_argument, left_alone
from gputui.cli.job_ids import Named
from gputui.cli.session import Session, pass_session
from gputui.domain.job_spec import JobId
from gputui.domain.verbs import JOB_VERB
from gputui.ports import JobStore


@click.command("cancel", help=JOB_VERB["cancel"].shell_help)
@ids_argument
@click.option("--dry-run", is_flag=True, help="Print which jobs would start earlier or later, and change nothing.")
@quiet_option
@pass_session
def command(session: Session, ids: tuple[tuple[Named, ...], ...], dry_run: bool, quiet: bool) -> None:
    """Cancel jobs, and report on stderr which ones are cancelled and which had already ended."""
    with session.store() as store:
        if dry_run:
            _show(session, store, flat(store, ids))
            return
        asked = flat(store, ids)
        done = bootstrap.actions(store, session.options).cancel(asked)
        if done and not quiet:
            confirm(changed("cancel", jobs_of(store, done)))
        for line in left_alone(store, asked, done):
            click.echo(line, err=True)


def _show(session: Session, store: JobStore, ids: tuple[JobId, ...]) -> None:
    from gputui.cli import start_times  # imports the policy, which the change itself does not need
    from gputui.domain.policy.whatif import cancelled

    check_known(store, ids)
    start_times.print_shifts(session, store, cancelled(ids))
