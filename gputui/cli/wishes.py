"""Commands that carry a wish about jobs into the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click
from click.shell_completion import CompletionItem

from gputui import bootstrap
from gputui.cli import elements
from gputui.cli.elements import Named
from gputui.cli.session import Session, pass_session
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.job import Job, JobId
from gputui.domain.text import plain
from gputui.domain.units import listed
from gputui.engine.actions import Actions
from gputui.ports import JobStore
from gputui.request.texts import quoted

MAX_COMPLETIONS = 200
_NAMED = 10
"""Jobs that are named in one sentence."""


class JobIds(click.ParamType[tuple[Named, ...]]):
    """`7`, `7,9`, `7-9`, `12_5` or `12_[3-7]`."""

    name = "ID"

    def convert(
        self, value: str | tuple[Named, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Named, ...]:
        """What is named; raises InputError."""
        del param, ctx
        return elements.parse(value, "ID") if isinstance(value, str) else value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Ids of live jobs that begin so, with their names."""
        del param
        session = ctx.find_object(Session)
        try:
            with (session or Session()).existing_store() as store:
                jobs = [job for job in store.jobs().values() if not job.state.is_terminal]
        except (GputuiError, OSError):  # a shell that completes shows no errors
            return []
        named = ((_word(job, element="_" in incomplete), job) for job in jobs)
        found = [(word, job) for word, job in named if word.startswith(incomplete)][:MAX_COMPLETIONS]
        return [CompletionItem(word, help=plain(f"{job.state.short} {job.spec.name}", 40)) for word, job in found]


def _word(job: Job, *, element: bool) -> str:
    return job.shown_id if element else str(job.id)


class OneJobId(JobIds):
    """`7` or `12_5`."""

    def convert(
        self, value: str | tuple[Named, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Named, ...]:
        """What is named, as a tuple of one; raises InputError."""
        named = super().convert(value, param, ctx)
        if len(named) != 1 or not named[0].is_one:
            raise InputError(f"{quoted(str(value))} names several jobs", where="ID", hint="write 7 or 12_5")
        return named


def ids_argument(function: Callable[..., None]) -> Callable[..., None]:
    """The function, with an argument of one or more ids."""
    return click.argument("ids", nargs=-1, required=True, type=JobIds(), metavar="ID...")(function)


def is_live(job: Job) -> bool:
    """Whether it is not over."""
    return not job.state.is_terminal


def flat(
    store: JobStore, ids: Sequence[tuple[Named, ...]], suits: Callable[[Job], bool] = is_live
) -> tuple[JobId, ...]:
    """All jobs meant, each once; of whole arrays only those that suit."""
    return elements.every(store, (named for some in ids for named in some), suits)


def left_alone(store: JobStore, asked: Sequence[JobId], done: Sequence[JobId]) -> list[str]:
    """Return a sentence about the jobs that nothing was wished of because they have ended."""
    news = frozenset(done)
    over = [job for job in map(store.get, (job_id for job_id in asked if job_id not in news)) if job.state.is_terminal]
    if not over:
        return []
    if len(over) == 1:
        return [f"job {over[0].shown_id} has ended already: it is {over[0].state}"]
    named = [job.shown_id for job in over[:_NAMED]] + ([f"{len(over) - _NAMED} more"] if len(over) > _NAMED else [])
    return [f"{len(over)} jobs have ended already: {listed(named)}"]


def wish_command(
    name: str,
    about: str,
    wish: Callable[[Actions, tuple[JobId, ...]], tuple[JobId, ...]],
    suits: Callable[[Job], bool] = is_live,
) -> click.Command:
    """A command that wishes the same of every job named: all of them, or none when one cannot be."""

    @click.command(name, help=about)
    @ids_argument
    @pass_session
    def command(session: Session, ids: tuple[tuple[Named, ...], ...]) -> None:
        with session.store() as store:
            wish(bootstrap.actions(store), flat(store, ids, suits))

    return command
