"""`gputui priority`: move jobs forward or back in the queue."""

from __future__ import annotations

import click

from gputui import bootstrap
from gputui.cli import specs
from gputui.cli.session import Session, pass_session
from gputui.cli.wishes import JobIds
from gputui.domain.job import JobId


@click.command("priority", context_settings={"ignore_unknown_options": True})
@click.argument("ids", type=JobIds(), metavar="ID[,ID…]")
@click.argument("value", metavar="VALUE|+N|-N|top")
@pass_session
def command(session: Session, ids: tuple[JobId, ...], value: str) -> None:
    """Set a job's priority (0 to 100), raise or lower it, or put the job at the head of the queue."""
    change = specs.priority_change(value, "VALUE")
    with session.store() as store:
        actions = bootstrap.actions(store)
        if change.top:
            actions.top(ids)
        elif change.relative:
            actions.add_priority(ids, change.value)
        else:
            actions.set_priority(ids, change.value)
