"""Parameter types for job ids, and functions that resolve them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import click
from click.shell_completion import CompletionItem

from gputui.cli import job_ids
from gputui.cli.confirmation import jobs_of
from gputui.cli.job_ids import Named
from gputui.cli.session import Session, is_elsewhere
from gputui.domain import arrays
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.text import plain
from gputui.domain.units import listed, quoted
from gputui.ports import JobStore

R = TypeVar("R")
MAX_COMPLETIONS = 200
_NAMED = 10
"""Maximum number of jobs named in one sentence."""


class JobIds(click.ParamType[tuple[Named, ...]]):
    """Parameter type for jobs: `7`, `7,9`, `7-9`, `12_5` or `12_[3-7]`."""

    name = "ID"
    is_local = False
    """True if they are jobs of this server's own queue, also in cluster mode."""

    def convert(
        self, value: str | tuple[Named, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Named, ...]:
        """Parse the names; raise InputError."""
        del param, ctx
        return job_ids.parse(value, "ID") if isinstance(value, str) else value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Return the ids of live jobs that begin with this text, with their names."""
        del param
        if is_elsewhere(ctx):
            return []
        session = ctx.find_object(Session)
        try:
            with (session or Session()).existing_store(is_local=self.is_local) as store:
                entries = [job for job in store.jobs().values() if not job.state.is_terminal]
        except (GputuiError, OSError):  # a shell that completes shows no errors
            return []
        named = _named_elements(entries) if "_" in incomplete else _named_whole(entries)
        found = islice(((word, job) for word, job in named if word.startswith(incomplete)), MAX_COMPLETIONS)
        return [CompletionItem(word, help=plain(f"{job.state.short} {job.name}", 40)) for word, job in found]


def _named_whole(entries: Iterable[Job]) -> Iterator[tuple[str, Job]]:
    """Yield `7` for each single job, and `12` once for the elements of an array."""
    found = {str(job.id if job.array is None else job.array.id): job for job in reversed(list(entries))}
    yield from reversed(found.items())


def _named_elements(entries: Iterable[Job]) -> Iterator[tuple[str, Job]]:
    """Yield `12_5` for each element of an array, and `7` for each single job."""
    for job in entries:
        if job.array is None:
            yield str(job.id), job
        else:
            yield from ((f"{job.array.id}_{index}", job) for index in job.indices)


class OneJobId(JobIds):
    """Parameter type for exactly one job: `7` or `12_5`."""

    def convert(
        self, value: str | tuple[Named, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Named, ...]:
        """Parse the name into a tuple of one; raise InputError."""
        named = super().convert(value, param, ctx)
        if len(named) != 1 or not named[0].is_one:
            raise InputError(f"{quoted(str(value))} names several jobs", where="ID", hint="write 7 or 12_5")
        return named


def ids_argument(function: Callable[..., R]) -> Callable[..., R]:
    """Add an argument of one or more ids to a command function."""
    return click.argument("ids", nargs=-1, required=True, type=JobIds(), metavar="ID...")(function)


def is_live(job: Job) -> bool:
    """Return whether the job has not ended."""
    return not job.state.is_terminal


def flat(
    store: JobStore, ids: Sequence[tuple[Named, ...]], suits: Callable[[Job], bool] = is_live
) -> tuple[JobId, ...]:
    """Return the ids of all jobs named, each once; of whole arrays only the elements for which `suits` is true."""
    return job_ids.resolve_all(store, (named for some in ids for named in some), suits)


def left_alone(store: JobStore, asked: Sequence[JobId], done: Sequence[JobId]) -> list[str]:
    """Return a sentence about the jobs that were not changed because they have ended."""
    over = [job for job in jobs_of(store, set(asked).difference(done)) if job.state.is_terminal]
    if not over:
        return []
    count = arrays.count(over)
    if count == 1:
        return [f"job {over[0].shown_id} has ended already: it is {over[0].state}"]
    more = arrays.count(over[_NAMED:])
    named = [job.shown_id for job in over[:_NAMED]] + ([f"{more} more"] if more else [])
    return [f"{count} jobs have ended already: {listed(named)}"]


def check_known(store: JobStore, ids: Iterable[JobId]) -> None:
    """Raise NotFoundError for an id that no job has."""
    jobs = store.jobs()
    for job_id in ids:
        if job_id not in jobs:
            store.get(job_id)
