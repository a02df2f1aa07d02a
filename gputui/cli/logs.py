"""`gputui logs`: the output of a job."""

from __future__ import annotations

import shutil
from contextlib import suppress

import click

from gputui.cli import terminal
from gputui.cli.job_ids import Named, OneJobId, resolve_one
from gputui.cli.session import Session, pass_session
from gputui.cli.wait import changes_of
from gputui.domain.errors import NotFoundError
from gputui.domain.job import Job, JobState
from gputui.domain.job_spec import JobId
from gputui.domain.text import fit, plain_bytes
from gputui.ports import LiveLogStream, LogStream
from gputui.ports.backend import DirectBackend
from gputui.request import job_values

RESET = "\x1b[0m"


@click.command("logs")
@click.option(
    "-f", "--follow", is_flag=True, help="Wait for the job to start, and follow its output until the attempt ends."
)
@click.option("-n", "--tail", metavar="N", help="Only the last N lines.")
@click.option("--attempt", metavar="K", help="Output of attempt K; the default is the last one.")
@click.argument("ids", type=OneJobId(), metavar="ID")
@pass_session
def command(session: Session, follow: bool, tail: str | None, attempt: str | None, ids: tuple[Named, ...]) -> None:
    """Print the output of a job, also after its container is gone.

    On a terminal, control sequences other than colours are removed; to a file or a pipe, byte for byte.
    """
    lines = job_values.tail(tail, "--tail") if tail is not None else None
    number = job_values.attempt(attempt, "--attempt") if attempt is not None else None
    with session.backend() as backend:
        job_id = resolve_one(backend.queue, ids[0])
        if follow and number is None:
            wait_until_started(backend, job_id)
        print_log(backend.log(job_id, number, tail=lines, follow=follow))


def print_log(stream: LogStream) -> None:
    """Print a log to its end, and close it."""
    printer = TerminalPrinter() if terminal.is_tty(terminal.OUT) else RawPrinter()
    if isinstance(stream, LiveLogStream):
        stream.watch(printer.show_rest)
    try:
        for line in stream:
            printer.print_line(line)
    finally:
        stream.close()
    if notice := getattr(stream, "notice", ""):
        terminal.echo(f"gputui: {notice}", err=True)


def wait_until_started(backend: DirectBackend, job_id: JobId) -> None:
    """Return when the job has output to follow, or will never have any; raise at once what forbids to read it."""
    if was_started(job := backend.job(job_id)):
        return
    if not job.attempts:
        with suppress(NotFoundError):  # it has not started
            backend.log(job_id).close()
    with changes_of(backend) as changes:
        if terminal.is_tty(terminal.ERR):
            terminal.echo(f"job {job.shown_id} has not started yet: waiting (Ctrl-C ends that)", err=True)
        while not was_started(backend.job(job_id)):
            changes.wait()


def was_started(job: Job) -> bool:
    """Return whether the job has output to follow, or will never have any."""
    attempt = job.attempt
    if attempt is None:
        return job.state.is_terminal
    # others than its submitter are not told the container's id
    has_container = attempt.container_id is not None or job.state is JobState.RUNNING
    if attempt.node:  # of a cluster, which need not name its containers
        has_container |= job.state is not JobState.CONFIGURING
    return has_container or attempt.is_over


class TerminalPrinter:
    """Prints lines as text; of a line that has not ended its last state, in place."""

    def __init__(self) -> None:
        self._cells = 0
        """Width of the state that is shown."""

    def show_rest(self, line: bytes) -> None:
        """Show the beginning of a line, cut to the width of the terminal, since it is replaced."""
        self._clear()
        self._cells = max(1, shutil.get_terminal_size().columns - 1)
        terminal.echo(fit(plain_bytes(line), self._cells), nl=False)

    def print_line(self, line: bytes) -> None:
        self._clear()
        shown = plain_bytes(line)
        terminal.echo(shown + RESET if "\x1b" in shown else shown)

    def _clear(self) -> None:
        if self._cells:
            terminal.write("\r" + " " * self._cells + "\r")
            self._cells = 0


class RawPrinter:
    """Writes lines byte for byte, each byte as soon as it is there."""

    def __init__(self) -> None:
        self._written = 0
        """Number of bytes of the current line that are written already."""

    def show_rest(self, line: bytes) -> None:
        """Write what was added to the beginning of a line."""
        self._write(line)
        self._written = len(line)

    def print_line(self, line: bytes) -> None:
        self._write(line + b"\n")
        self._written = 0

    def _write(self, line: bytes) -> None:
        terminal.binary().write(line[self._written :])
        terminal.binary().flush()
