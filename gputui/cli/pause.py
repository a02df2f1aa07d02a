"""`gputui pause`: start no new jobs."""

from __future__ import annotations

import click

from gputui import bootstrap
from gputui.cli.confirmation import confirm, quiet_option
from gputui.cli.session import Session, pass_session
from gputui.domain.action import Pause
from gputui.domain.units import plural
from gputui.domain.verbs import BY_NAME
from gputui.request import texts


@click.command("pause", help=BY_NAME["pause"].shell_help)
@click.argument("reason", nargs=-1)
@quiet_option
@pass_session
def command(session: Session, reason: tuple[str, ...], quiet: bool) -> None:
    """Pause the queue, with a reason of several words."""
    words = texts.one_line(" ".join(reason), "REASON") if reason else ""
    with session.store() as store:
        bootstrap.actions(store, session.options).act(Pause(words))
        if not quiet:
            running = sum(job.count for job in store.jobs().values() if job.state.is_active)
            rest = (
                f"; {plural(running, 'running job')} {'continues' if running == 1 else 'continue'}" if running else ""
            )
            confirm(f"paused: no new jobs start{rest}")
