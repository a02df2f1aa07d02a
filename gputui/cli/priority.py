"""`gputui priority`: move jobs forward or back in the queue."""

from __future__ import annotations

import click

from gputui import bootstrap
from gputui.cli.confirmation import changed, confirm, dry_run_option, jobs_of, named, quiet_option
from gputui.cli.job_ids import JobIds, Named, check_known, flat
from gputui.cli.session import Session, pass_session
from gputui.cli.verb_command import show_shifts
from gputui.domain.action import SetPriority, Top
from gputui.domain.job import Job
from gputui.domain.verbs import PRIORITY_HELP
from gputui.request import job_values


@click.command("priority", help=PRIORITY_HELP, context_settings={"ignore_unknown_options": True})
@click.argument("names", type=JobIds(), metavar="ID[,ID…]")
@click.argument("value", metavar="VALUE|+N|-N|top")
@dry_run_option
@quiet_option
@pass_session
def command(session: Session, names: tuple[Named, ...], value: str, dry_run: bool, quiet: bool) -> None:
    """Change the priority of jobs, or put them at the head of the queue."""
    change = job_values.priority_change(value, "VALUE")
    with session.store() as store:
        ids = flat(store, (names,))
        if dry_run:
            check_known(store, ids)
            alive = (job for job in jobs_of(store, ids) if not job.state.is_terminal)
            ids = tuple(job_id for job in alive for job_id in job.ids)
        action = Top(ids) if change.top else SetPriority(ids, change.value, change.relative)
        actions = bootstrap.actions(store, session.options)
        if dry_run:
            actions.foresee(action)
            show_shifts(session, store, action)
            return
        done = actions.act(action)
        if not quiet:
            jobs = jobs_of(store, done.ids)
            confirm(changed("top", jobs) if change.top else _words(change, jobs))


def _words(change: job_values.PriorityChange, jobs: list[Job]) -> str:
    """Return the confirmation of a new priority; a priority that was already 0 or 100 is not changed."""
    found = {job.priority for job in jobs}
    if not jobs:
        return "nothing was changed: the priority was that already"
    if len(found) == 1:
        return f"priority is now {found.pop()}: {named(jobs)}"
    return f"priority {'raised' if change.value > 0 else 'lowered'} by {abs(change.value)}: {named(jobs)}"
