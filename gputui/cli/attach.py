"""`gputui attach`: attach to a job again."""

from __future__ import annotations

import signal

import click

from gputui.bootstrap import job_access
from gputui.cli import ends
from gputui.cli.attached import conversation
from gputui.cli.attached.attendance import Attendance
from gputui.cli.exec import check_terminal
from gputui.cli.job_ids import Named, OneJobId, resolve_one
from gputui.cli.logs import print_log, wait_until_started
from gputui.cli.session import Session, pass_session
from gputui.domain.job_spec import JobId
from gputui.ports import JobStore


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
    with session.store() as store:
        job = store.get(resolve_one(store, ids[0]))
        interactive = job.spec.interactive
        if interactive is None:
            return _follow(session, store, job.id)
        check_terminal(stdin=interactive.stdin, is_tty=interactive.tty)
        return Attendance(session, store, job.id, keys, is_owner=False).run()


def _follow(session: Session, store: JobStore, job_id: JobId) -> int:
    """Print the output of a job to its end; return its exit code."""
    wait_until_started(store, job_id)
    try:
        if store.get(job_id).attempts:
            stream = job_access.open_logs(session.options, store).open(job_id, follow=True)
            print_log(stream)
        return max(map(ends.exit_code, ends.wait_for(store, (job_id,))))
    except KeyboardInterrupt:
        click.echo(f"gputui: job {job_id} keeps running", err=True)
        return 128 + signal.SIGINT
