"""`gputui priority`: move jobs forward or back in the queue."""

from __future__ import annotations

import click

from gputui import bootstrap
from gputui.cli.confirmation import changed, confirm, dry_run_option, jobs_of, named, quiet_option
from gputui.cli.job_arguments import JobIds, check_known, flat
from gputui.cli.job_ids import Named
from gputui.cli.session import Session, pass_session
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.verbs import PRIORITY_HELP
from gputui.ports import JobStore
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
            _show(session, store, ids, change)
            return
        actions = bootstrap.actions(store, session.options)
        if change.top:
            done = actions.top(ids)
        elif change.relative:
            done = actions.add_priority(ids, change.value)
        else:
            done = actions.set_priority(ids, change.value)
        if not quiet:
            jobs = jobs_of(store, done)
            confirm(changed("top", jobs) if change.top else _words(change, jobs))


def _words(change: job_values.PriorityChange, jobs: list[Job]) -> str:
    """Return the confirmation of a new priority; a priority that was already 0 or 100 is not changed."""
    found = {job.priority for job in jobs}
    if not jobs:
        return "nothing was changed: the priority was that already"
    if len(found) == 1:
        return f"priority is now {found.pop()}: {named(jobs)}"
    return f"priority {'raised' if change.value > 0 else 'lowered'} by {abs(change.value)}: {named(jobs)}"


def _show(session: Session, store: JobStore, ids: tuple[JobId, ...], change: job_values.PriorityChange) -> None:
    from gputui.cli import start_times  # imports the policy, which the change itself does not need
    from gputui.domain.policy.whatif import prioritised, topped

    check_known(store, ids)
    actions = bootstrap.actions(store, session.options)
    actions.rehearse_priority(ids, change.value, relative=change.relative, top=change.top)
    now = bootstrap.clock().now()
    change_shown = topped(ids, now) if change.top else prioritised(ids, change.value, now, relative=change.relative)
    start_times.print_shifts(session, store, change_shown)
