"""Commands that carry a wish about jobs into the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click
from click.shell_completion import CompletionItem

from gputui import bootstrap
from gputui.cli import numbers
from gputui.cli.session import Session, pass_session
from gputui.domain.errors import GputuiError
from gputui.domain.job import JobId
from gputui.domain.text import plain
from gputui.engine.actions import Actions

MAX_COMPLETIONS = 200


class JobIds(click.ParamType[tuple[JobId, ...]]):
    """`7`, `7,9` or `7-9`."""

    name = "ID"

    def convert(
        self, value: str | tuple[JobId, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[JobId, ...]:
        """The ids; raises InputError."""
        del param, ctx
        return numbers.job_ids(value, "ID") if isinstance(value, str) else value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Ids of live jobs that begin so, with their names."""
        del param
        session = ctx.find_object(Session)
        try:
            with session.store() if session else Session().store() as store:
                jobs = [job for job in store.jobs().values() if not job.state.is_terminal]
        except (GputuiError, OSError):  # a shell that completes shows no errors
            return []
        found = [job for job in jobs if str(job.id).startswith(incomplete)][:MAX_COMPLETIONS]
        return [CompletionItem(str(job.id), help=plain(f"{job.state.short} {job.spec.name}", 40)) for job in found]


class OneJobId(JobIds):
    """One id."""

    def convert(
        self, value: str | tuple[JobId, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[JobId, ...]:
        """The id, as a tuple of one; raises InputError."""
        del param, ctx
        return (numbers.job_id(value, "ID"),) if isinstance(value, str) else value


def ids_argument(function: Callable[..., None]) -> Callable[..., None]:
    """The function, with an argument of one or more ids."""
    return click.argument("ids", nargs=-1, required=True, type=JobIds(), metavar="ID...")(function)


def flat(ids: Sequence[tuple[JobId, ...]]) -> tuple[JobId, ...]:
    """All ids, each once."""
    return tuple(dict.fromkeys(job_id for some in ids for job_id in some))


def wish_command(
    name: str,
    about: str,
    wish: Callable[[Actions, tuple[JobId, ...]], tuple[JobId, ...]],
) -> click.Command:
    """A command that wishes the same of every job named: all of them, or none when one cannot be."""

    @click.command(name, help=about)
    @ids_argument
    @pass_session
    def command(session: Session, ids: tuple[tuple[JobId, ...], ...]) -> None:
        with session.store() as store:
            wish(bootstrap.actions(store), flat(ids))

    return command
