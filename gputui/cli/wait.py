"""`gputui wait`: return when jobs have ended, with their exit code."""

from __future__ import annotations

import time

import click

from gputui import bootstrap
from gputui.cli import ends
from gputui.cli.job_ids import Named, ids_argument, resolve_all
from gputui.cli.session import Session, pass_session
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.text import plain
from gputui.domain.units import plural
from gputui.ports import JobStore
from gputui.request import numbers


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
    patience = numbers.duration(timeout, "--timeout").total_seconds() if timeout is not None else None
    deadline = None if patience is None else time.monotonic() + patience
    with session.store() as store:
        wanted = _wanted(store, ids)
        _warn(session, store, wanted)
        codes, left = [0], set(wanted)
        try:
            for job in ends.wait_for(store, wanted, deadline, is_one_enough=is_one_enough):
                left.difference_update(job.ids)
                codes.append(ends.exit_code(job))
                if not quiet:
                    print(plain(ends.sentence(job)), flush=True)
                if is_one_enough:
                    return codes[-1]
        except TimeoutError:
            running = "has" if len(left) == 1 else "have"
            click.echo(f"gputui: {plural(len(left), 'job')} of {len(wanted)} {running} not ended yet", err=True)
            return ends.TIMED_OUT
        return max(codes)


def _wanted(store: JobStore, ids: tuple[tuple[Named, ...], ...]) -> tuple[JobId, ...]:
    """Return the ids of all jobs named; of arrays also elements that ended and left the queue. Raises NotFoundError."""
    names = tuple(named for some in ids for named in some)
    wanted = dict.fromkeys(resolve_all(store, names))
    arrays = store.arrays()
    whole = {named.ids[0] for named in names if named.is_one and not named.indices}
    heads = {head for head in whole if head in arrays or _is_head(store.get(head))}
    for job in store.history() if heads else ():
        if job.array and job.array.id in heads:
            wanted |= dict.fromkeys(job.ids)
    return tuple(wanted)


def _is_head(job: Job) -> bool:
    return job.array is not None and job.array.id == job.id


def _warn(session: Session, store: JobStore, ids: tuple[JobId, ...]) -> None:
    """Warn on stderr that nothing starts or ends while no scheduler runs."""
    if any(not ends.has_ended(store.get(job_id)) for job_id in ids[:1]) and not bootstrap.is_scheduled(session.options):
        click.echo("gputui: no scheduler is running: start `gputui` or `gputui serve`", err=True)
