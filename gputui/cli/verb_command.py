"""Builds the command of a verb about jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import click

from gputui import bootstrap
from gputui.cli.confirmation import changed, confirm, dry_run_option, jobs_of, named, quiet_option
from gputui.cli.job_ids import Named, check_known, flat, ids_argument, is_live
from gputui.cli.session import Session, pass_session
from gputui.domain.action import Action
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.state import JobState
from gputui.domain.verb import Verb
from gputui.domain.verbs import BY_NAME
from gputui.ports import JobStore

_SUITS: Mapping[str, Callable[[Job], bool]] = {
    "hold": lambda job: job.state is JobState.PENDING,
    "suspend": BY_NAME["suspend"].may,
    "unsuspend": BY_NAME["unsuspend"].may,
}
"""Elements that a whole array stands for, by verb; of others those that have not ended."""


def verb_command(name: str) -> click.Command:
    """Return the command of a verb about jobs; it changes all named jobs, or none if one is refused."""
    verb, suits = BY_NAME[name], _SUITS.get(name, is_live)

    @click.command(verb.name, help=verb.shell_help)
    @ids_argument
    @quiet_option
    @pass_session
    def command(session: Session, ids: tuple[tuple[Named, ...], ...], quiet: bool, dry_run: bool = False) -> None:
        with session.store() as store:
            asked = flat(store, ids, suits)
            if dry_run:
                show_jobs(session, store, verb, asked)
                return
            done = bootstrap.actions(store, session.options).act(verb.on(asked))
            if not quiet:
                confirm(changed(verb.name, jobs_of(store, done.ids)))

    return dry_run_option(command) if verb.wish.has_forecast else command


def show_jobs(session: Session, store: JobStore, verb: Verb[Job], ids: tuple[JobId, ...]) -> None:
    """Print which of the jobs a verb would change, and which would start at another time."""
    check_known(store, ids)
    jobs = [job for job in jobs_of(store, ids) if verb.may(job)]
    first = f"would {verb.name}: {named(jobs)}" if jobs else "nothing would be changed"
    show_shifts(session, store, verb.on(ids), first)


def show_shifts(session: Session, store: JobStore, action: Action, first: str = "") -> None:
    """Print a first line, and which jobs would start at another time."""
    from gputui.cli import start_times  # imports the policy, which the change itself does not need
    from gputui.domain.policy.whatif import change_of

    start_times.print_shifts(session, store, change_of(action, bootstrap.clock().now()), first)
