"""`gputui remote`: the server's end of a console over several servers."""

from __future__ import annotations

import click

from gputui.cli.session import Session, pass_session


@click.command("remote")
@pass_session
def command(session: Session) -> None:
    """Speak with a console on another machine, over stdin and stdout; `gputui --on` starts it over ssh.

    Messages are JSON objects, one on each line. It acts with your rights, never schedules, and ends with stdin.
    """
    from gputui.bootstrap.backend import serve_console

    serve_console(session.options)
