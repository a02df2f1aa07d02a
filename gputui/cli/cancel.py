"""`gputui cancel`: end jobs, or keep them from starting."""

from __future__ import annotations

import click

from gputui import bootstrap
from gputui.cli.elements import Named
from gputui.cli.session import Session, pass_session
from gputui.cli.wishes import flat, ids_argument, left_alone
from gputui.domain.job import JobId
from gputui.ports import JobStore


@click.command("cancel")
@ids_argument
@click.option("--dry-run", is_flag=True, help="Print whose start would shift, and do nothing.")
@pass_session
def command(session: Session, ids: tuple[tuple[Named, ...], ...], dry_run: bool) -> None:
    """End jobs: politely first, by force after a grace. One that waits never starts."""
    with session.store() as store:
        if dry_run:
            _show(session, store, flat(store, ids))
            return
        asked = flat(store, ids)
        for line in left_alone(store, asked, bootstrap.actions(store).cancel(asked)):
            click.echo(line, err=True)


def _show(session: Session, store: JobStore, ids: tuple[JobId, ...]) -> None:
    from gputui.cli import dry_run  # the policy is not needed to wish
    from gputui.domain.policy.whatif import cancelled

    for job_id in ids:
        store.get(job_id)
    dry_run.show(session, store, cancelled(ids))
