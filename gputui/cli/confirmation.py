"""Options, and the line on stderr in which a command reports its result. `--quiet` suppresses it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from gputui.cli import terminal
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.text import plain
from gputui.domain.units import plural
from gputui.ports import Queue

if TYPE_CHECKING:
    from gputui.domain.verbs import Verb


class FiniteRange(click.FloatRange):
    """Range that refuses NaN, which compares with no bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; fails for one outside the range."""
        found = super().convert(value, param, ctx)
        if found != found:
            self.fail(f"{value} is not a number.", param, ctx)
        return found


_NAMED = 10
"""Maximum number of jobs named in one sentence."""


quiet_option = click.option("-q", "--quiet", is_flag=True, help="Print no confirmation on stderr.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print which jobs would start earlier or later, and change nothing."
)


def confirm(sentence: str, *, quiet: bool = False) -> None:
    """Print the sentence on stderr, so that scripts which read stdout are not disturbed.

    A closed or full stderr is not an error: the change has been made.
    """
    if not quiet:
        with suppress(OSError):
            terminal.echo(plain(sentence), err=True)


def jobs_of(queue: Queue, ids: Iterable[JobId]) -> list[Job]:
    """Return the jobs with these ids, elements of one entry together; those in history come last.

    A single job is read alone, so that the others need not be decoded.
    """
    left, found = set(ids), []
    for job in queue.jobs().values() if len(left) > 1 else ():
        mine = left.intersection(job.ids)
        left -= mine
        if mine and (part := job.divided(mine)[0]) is not None:
            found.append(part)
    return [*found, *map(queue.get, sorted(left))]


def named(jobs: Sequence[Job]) -> str:
    """Return `job 12`, or `3 jobs: 5 7 9`."""
    count = sum(job.count for job in jobs)
    if count == 1:
        return f"job {jobs[0].shown_id}"
    more = sum(job.count for job in jobs[_NAMED:])
    words = [job.shown_id for job in jobs[:_NAMED]] + ([f"and {more} more"] if more else [])
    return f"{plural(count, 'job')}: {' '.join(words)}"


def changed(verb: Verb[Job], jobs: Sequence[Job]) -> str:
    """Return the sentence about jobs that a verb has changed; `jobs` are in their state after the change."""
    if not jobs:
        return "nothing was changed"
    waiting = [job for job in jobs if not job.state.is_active]
    running = [job for job in jobs if job.state.is_active]
    told = [verb.shell_done.format(named(waiting))] if waiting else []
    told += [(verb.shell_done_running or verb.shell_done).format(named(running))] if running else []
    return "; ".join(told)
