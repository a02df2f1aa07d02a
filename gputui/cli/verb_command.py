"""Builds the command of a verb about jobs."""

from __future__ import annotations

from collections.abc import Callable

import click

from gputui import bootstrap
from gputui.cli.confirmation import changed, confirm, jobs_of, quiet_option
from gputui.cli.job_arguments import flat, ids_argument, is_live
from gputui.cli.job_ids import Named
from gputui.cli.session import Session, pass_session
from gputui.domain.job import Job
from gputui.domain.verb import Order, Verb


def verb_command(verb: Verb[Job], suits: Callable[[Job], bool] = is_live) -> click.Command:
    """Return the command of a verb; it changes all named jobs, or none if one is refused."""

    @click.command(verb.name, help=verb.shell_help)
    @ids_argument
    @quiet_option
    @pass_session
    def command(session: Session, ids: tuple[tuple[Named, ...], ...], quiet: bool) -> None:
        with session.store() as store:
            done = verb.call(bootstrap.actions(store, session.options), Order(flat(store, ids, suits)))
            if not quiet:
                confirm(changed(verb.name, jobs_of(store, done or ())))

    return command
