"""`gputui wait`: return when jobs have ended, with their exit code."""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager

import click

from gputui.cli import terminal
from gputui.cli.job_ids import Named, ids_argument, is_array, resolve_all
from gputui.cli.session import Session, pass_session
from gputui.domain import event
from gputui.domain.job import Job, JobState
from gputui.domain.job_spec import JobId
from gputui.domain.text import plain, plural
from gputui.ports import Queue, StoreWatch
from gputui.ports.backend import DirectBackend
from gputui.request import job_values

TIMED_OUT = 124
"""Exit code of a wait that timed out, as in timeout(1)."""
LOOK_EVERY, LOOK_EVERY_WATCHED = 0.2, 2.0
"""Seconds between two checks of the queue's version: without a watch, and with one."""
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


@contextmanager
def changes_of(backend: DirectBackend) -> Iterator[Changes]:
    """Yield a wait for changes of the queue, closed at the end."""
    with closing(Changes(backend)) as changes:
        yield changes


def exit_code(job: Job) -> int:
    """Return the exit code for an ended job: its own, or 1 for a job that failed without one or with 0."""
    if job.state is JobState.COMPLETED:
        return 0
    return job.exit_code or 1


def sentence(job: Job) -> str:
    """Return a sentence about the end of a job, with its exit code unless the cause already contains it."""
    told = event.ended(job).text
    return told if not job.exit_code or str(job.exit_code) in told else f"{told}, exit code {job.exit_code}"


def ended_among(queue: Queue, waiting: set[JobId]) -> Iterator[Job]:
    """Remove the ids of ended jobs from the set, and yield these jobs; elements of one entry together."""
    jobs = queue.jobs()
    live: set[JobId] = set()
    for entry in jobs.values():
        if not entry.has_ended:
            live.update(entry.ids)
    ended = waiting - live
    waiting -= ended
    for entry in jobs.values():
        if not ended:
            return
        mine = ended.intersection(entry.ids)
        ended -= mine
        if mine and (part := entry.divided(mine)[0]) is not None:
            yield part
    yield from map(queue.get, sorted(ended))


def wait_for(
    backend: DirectBackend, ids: Iterable[JobId], deadline: float | None = None, *, is_one_enough: bool = False
) -> Iterator[Job]:
    """Yield jobs as they end, until all have, or the first if one is enough. Raises TimeoutError at the deadline."""
    waiting = set(ids)
    with changes_of(backend) as changes:
        while True:
            found = list(ended_among(backend.queue, waiting))
            yield from found
            if not waiting or (found and is_one_enough):
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
            terminal.tell("no scheduler is running: start `gputui` or `gputui serve`")
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
