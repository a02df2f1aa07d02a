"""`gputui priority`: move jobs forward or back in the queue."""

from __future__ import annotations

import click

from gputui import bootstrap
from gputui.cli.elements import Named
from gputui.cli.session import Session, pass_session
from gputui.cli.wishes import JobIds, flat
from gputui.domain.job import JobId
from gputui.ports import JobStore
from gputui.request import specs


@click.command("priority", context_settings={"ignore_unknown_options": True})
@click.argument("names", type=JobIds(), metavar="ID[,ID…]")
@click.argument("value", metavar="VALUE|+N|-N|top")
@click.option("--dry-run", is_flag=True, help="Print whose start would shift, and do nothing.")
@pass_session
def command(session: Session, names: tuple[Named, ...], value: str, dry_run: bool) -> None:
    """Set a job's priority (0 to 100), raise or lower it, or put the job at the head of the queue."""
    change = specs.priority_change(value, "VALUE")
    with session.store() as store:
        ids = flat(store, (names,))
        if dry_run:
            _show(session, store, ids, change)
            return
        actions = bootstrap.actions(store)
        if change.top:
            actions.top(ids)
        elif change.relative:
            actions.add_priority(ids, change.value)
        else:
            actions.set_priority(ids, change.value)


def _show(session: Session, store: JobStore, ids: tuple[JobId, ...], change: specs.PriorityChange) -> None:
    from gputui.cli import dry_run  # the policy is not needed to wish
    from gputui.domain.policy.whatif import prioritised, topped

    for job_id in ids:
        store.get(job_id)
    now = bootstrap.clock().now()
    wished = topped(ids, now) if change.top else prioritised(ids, change.value, relative=change.relative)
    dry_run.show(session, store, wished)
