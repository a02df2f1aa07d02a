"""`gputui wait` and `gputui logs`: the ends of jobs, and their output."""

from __future__ import annotations

import select
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress

import click
from msgspec import Struct

from gputui.cli import terminal
from gputui.cli.job_ids import Named, OneJobId, ids_argument, is_array, resolve_all, resolve_one
from gputui.cli.output import jobs_of
from gputui.cli.session import Session, pass_session
from gputui.domain import event
from gputui.domain.errors import NotFoundError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.state import NO_SCHEDULER, JobState
from gputui.domain.text import fit, plain, plain_bytes, plural
from gputui.ports import LiveLogStream, LogStream, Queue, StoreWatch
from gputui.ports.backend import DirectBackend, LogRequest
from gputui.request import job_values

TIMED_OUT = 124
"""Exit code of a wait that timed out, as in timeout(1)."""
LOOK_EVERY, LOOK_EVERY_WATCHED = 0.2, 2.0
"""Seconds between two checks of the queue's version: without a watch, and with one."""
_LATE_AFTER = 5.0
_LATE = "no output has come for 5 s: `gputui doctor` tells whether its engine answers"
_TOGETHER = 0.05
"""Minimum seconds between two reads of a queue that changes all the time."""


class Changes:
    """Waits for changes of the queue: on a watch where there is one, else by its version."""

    def __init__(self, backend: DirectBackend) -> None:
        self._backend = backend
        self._poll = select.poll()
        self._watch: StoreWatch | None = None
        self._use(backend.queue)

    def _use(self, queue: Queue) -> None:
        """Watch this queue: another one once an owner has appeared, or ended."""
        self.close()
        self._queue, self._watch = queue, queue.watch()
        if self._watch is not None:
            self._poll.register(self._watch.fileno(), select.POLLIN)
        self._seen = queue.version()

    def wait(self, deadline: float | None = None, *others: int) -> bool:
        """Wait for a write, or for input on another descriptor; return False at `deadline`, on the monotonic clock."""
        for other in others:
            self._poll.register(other, select.POLLIN)
        try:
            while (queue := self._backend.queue) is self._queue and (version := queue.version()) == self._seen:
                left = float("inf") if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    return False
                ready = self._poll.poll(1000 * min(left, LOOK_EVERY_WATCHED if self._watch else LOOK_EVERY))
                if any(descriptor in others for descriptor, _ in ready):
                    return True
                if ready and self._watch is not None:
                    self._watch.clear()
                    time.sleep(_TOGETHER)
            if queue is self._queue:
                self._seen = version
            else:
                self._use(queue)
            return True
        finally:
            for other in others:
                self._poll.unregister(other)

    def close(self) -> None:
        if self._watch is not None:
            self._poll.unregister(self._watch.fileno())
            self._watch.close()
            self._watch = None


def exit_code(job: Job) -> int:
    """Return the exit code for an ended job: its own, or 1 for a job that failed without one or with 0."""
    return 0 if job.state is JobState.COMPLETED else job.exit_code or 1


def sentence(job: Job) -> str:
    told = event.ended(job).text
    return told if not job.exit_code or str(job.exit_code) in told else f"{told}, exit code {job.exit_code}"


def wait_for(
    backend: DirectBackend, ids: Iterable[JobId], deadline: float | None = None, *, is_one_enough: bool = False
) -> Iterator[Job]:
    """Yield jobs as they end, until all have, or the first if one is enough. Raises TimeoutError at the deadline.

    Elements of one entry come together.
    """
    waiting = set(ids)
    with closing(Changes(backend)) as changes:
        while True:
            queue = backend.queue
            live = {job_id for entry in queue.jobs().values() if not entry.has_ended for job_id in entry.ids}
            ended, waiting = waiting - live, waiting & live
            yield from jobs_of(queue, ended)
            if not waiting or (ended and is_one_enough):
                return
            if not changes.wait(deadline):
                raise TimeoutError


@click.command("wait", short_help="return when jobs have ended, with their exit code")
@click.option("--any", "is_one_enough", is_flag=True, help="Return as soon as one of them has ended.")
@click.option("--timeout", metavar="DURATION", help="Give up after this long, with exit code 124.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing about jobs that end.")
@ids_argument
@pass_session
def command(
    session: Session, is_one_enough: bool, timeout: str | None, quiet: bool, ids: tuple[tuple[Named, ...], ...]
) -> int:
    """Wait until jobs have ended, and print a line for each.

    The exit code is the job's; of several jobs the highest; with --any that of the job that ended first. A job that
    ended without one, or with 0 but not as COMPLETED, counts as 1. A job that will be retried has not ended. The
    command only reads the queue: it needs no rights to the engine, and interrupting it changes nothing.
    """
    patience = job_values.duration(timeout, "--timeout").total_seconds() if timeout is not None else None
    deadline = None if patience is None else time.monotonic() + patience
    with session.backend() as backend:
        wanted = _wanted(backend.queue, ids)
        if any(not backend.job(job_id).has_ended for job_id in wanted[:1]) and not backend.is_scheduled():
            terminal.tell(NO_SCHEDULER)
        codes, left = [0], set(wanted)
        try:
            for job in wait_for(backend, wanted, deadline, is_one_enough=is_one_enough):
                left.difference_update(job.ids)
                codes.append(exit_code(job))
                if not quiet:
                    terminal.echo(plain(sentence(job)))
                if is_one_enough:
                    return codes[-1]
        except TimeoutError:
            running = "has" if len(left) == 1 else "have"
            terminal.tell(f"{plural(len(left), 'job')} of {len(wanted)} {running} not ended yet")
            return TIMED_OUT
        return max(codes)


def _wanted(queue: Queue, ids: tuple[tuple[Named, ...], ...]) -> tuple[JobId, ...]:
    """Return the ids of all jobs named; of arrays also elements that ended and left the queue. Raises NotFoundError."""
    names = tuple(named for some in ids for named in some)
    wanted = dict.fromkeys(resolve_all(queue, names))
    arrays = queue.arrays()
    whole = {queue.whole_id(named.ids[0]) for named in names if named.is_one and not named.indices}
    heads = {head for head in whole if head in arrays or is_array(queue, head)}
    for job in queue.past() if heads else ():
        if job.array and job.array.id in heads:
            wanted |= dict.fromkeys(job.ids)
    return tuple(wanted)


RESET = "\x1b[0m"


@click.command("logs")
@click.option(
    "-f", "--follow", is_flag=True, help="Wait for the job to start, and follow its output until the attempt ends."
)
@click.option("-n", "--tail", metavar="N", help="Only the last N lines.")
@click.option("--attempt", metavar="K", help="Output of attempt K; the default is the last one.")
@click.argument("ids", type=OneJobId(), metavar="ID")
@pass_session
def logs(session: Session, follow: bool, tail: str | None, attempt: str | None, ids: tuple[Named, ...]) -> None:
    """Print the output of a job, also after its container is gone.

    On a terminal, control sequences other than colours are removed; to a file or a pipe, byte for byte.
    """
    lines = job_values.tail(tail, "--tail") if tail is not None else None
    number = job_values.attempt(attempt, "--attempt") if attempt is not None else None
    with session.backend() as backend:
        job_id = resolve_one(backend.queue, ids[0])
        if follow and number is None:
            wait_until_started(backend, job_id)
        late = threading.Timer(_LATE_AFTER, terminal.tell, (_LATE,))
        late.daemon = True
        late.start()
        try:
            stream = backend.log(job_id, LogRequest(number, lines, follow=follow))
        finally:
            late.cancel()
        print_log(stream)


def print_log(stream: LogStream) -> None:
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
    with closing(Changes(backend)) as changes:
        if terminal.is_tty(terminal.ERR):
            terminal.echo(f"job {job.shown_id} has not started yet: waiting (Ctrl-C ends that)", err=True)
        while not was_started(backend.job(job_id)):
            changes.wait()


def was_started(job: Job) -> bool:
    attempt = job.attempt
    if attempt is None:
        return job.state.is_terminal
    # others than its submitter are not told the container's id
    has_container = attempt.container_id is not None or job.state is JobState.RUNNING
    if attempt.node:  # of a cluster, which need not name its containers
        has_container |= job.state is not JobState.CONFIGURING
    return has_container or attempt.is_over


class TerminalPrinter(Struct, eq=False):
    """Prints lines as text; of a line that has not ended its last state, in place."""

    _cells: int = 0
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


class RawPrinter(Struct, eq=False):
    """Writes lines byte for byte, each byte as soon as it is there."""

    _written: int = 0
    """Number of bytes of the current line that are written already."""

    def show_rest(self, line: bytes) -> None:
        self._write(line)
        self._written = len(line)

    def print_line(self, line: bytes) -> None:
        self._write(line + b"\n")
        self._written = 0

    def _write(self, line: bytes) -> None:
        terminal.binary().write(line[self._written :])
        terminal.binary().flush()
