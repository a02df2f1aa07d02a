"""`gputui attach`: attach to a job again."""

from __future__ import annotations

import signal

import click

from gputui.cli import conversation, wait
from gputui.cli.attendance import Attendance
from gputui.cli.exec import check_terminal
from gputui.cli.job_ids import Named, OneJobId, resolve_one
from gputui.cli.logs import print_log, wait_until_started
from gputui.cli.session import Session, pass_session


@click.command("attach", short_help="attach to a job again")
@click.option(
    "--detach-keys", "keys", metavar="KEYS", default=conversation.DEFAULT, help="Keys that leave the job running."
)
@click.argument("ids", type=OneJobId(), metavar="ID")
@pass_session
def command(session: Session, keys: str, ids: tuple[Named, ...]) -> int:
    """Attach to a job that `gputui run` started, and return its exit code.

    Ctrl-C leaves a job without a terminal; ctrl-p ctrl-q leaves one with a terminal. The job keeps running. The output
    of a job that `gputui submit` started is followed, as `gputui logs -f` does.
    """
    conversation.parse(keys)
    with session.backend() as backend:
        job = backend.job(resolve_one(backend.queue, ids[0]))
        interactive = job.spec.interactive
        if interactive is None:
            wait_until_started(backend.queue, job.id)
            try:
                if backend.job(job.id).attempts:
                    print_log(backend.log(job.id, follow=True))
                return max(map(wait.exit_code, wait.wait_for(backend.queue, (job.id,))))
            except KeyboardInterrupt:
                click.echo(f"gputui: job {job.id} keeps running", err=True)
                return 128 + signal.SIGINT
        check_terminal(stdin=interactive.stdin, is_tty=interactive.tty)
        return Attendance(session, backend, job.id, keys, is_owner=False).run()
