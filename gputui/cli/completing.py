"""Completes words in a shell: GPUs, models, states, reservations, tenants. Shows no errors while completing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from gputui.cli import terminal
from gputui.cli.session import Session, is_elsewhere
from gputui.domain.errors import GputuiError, NotFoundError
from gputui.domain.state import JobState
from gputui.domain.text import plain, plural

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from gputui.domain.gpu import Gpu
    from gputui.ports.backend import DirectBackend

PATIENCE = 1.5
"""Seconds that a reading of the GPUs may take while the user waits for a completion."""

Items: TypeAlias = "list[CompletionItem[str]]"
_Completer = Callable[[click.Context, click.Parameter, str], Items]


def quiet(complete: _Completer) -> _Completer:
    """Make a completer offer nothing when it cannot read its data, or when that is on the servers of `--on`."""

    @wraps(complete)
    def offer(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
        if is_elsewhere(ctx):
            return []
        try:
            return complete(ctx, param, incomplete)
        except (GputuiError, OSError):
            return []

    return offer


def servers(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    with suppress(GputuiError, OSError):
        named = [(each.name, each.address or "this machine") for each in Session().options.settings.servers]
        return matching([*named, ("local", "this machine"), *([("all", "all of them")] if named else [])], incomplete)
    return []


@quiet
def gpus(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Return the indices of GPUs, with their models; UUIDs for a word that begins like one."""
    by_uuid = incomplete[:1].isalpha()
    found = ((gpu.uuid if by_uuid else str(gpu.index), gpu.model or "") for gpu in _known_gpus(ctx))
    return matching(found, incomplete)


@quiet
def drained(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Return what can be drained: the names of a cluster's nodes, else GPUs."""
    takes_gpus = True
    with suppress(NotFoundError), opened(ctx) as (_, backend):
        takes_gpus = backend.about().caps.runs_jobs
    return (gpus if takes_gpus else nodes)(ctx, param, incomplete)


@quiet
def nodes(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    with opened(ctx) as (_, backend):
        found = backend.snapshots().read().nodes
        return matching(((node.name, plural(len(node.gpus), "GPU")) for node in found), incomplete)


@quiet
def models(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Return the parts of the GPUs' model names, in lower case: `h100` of NVIDIA H100 80GB HBM3."""
    words = {word: gpu.model for gpu in _known_gpus(ctx) if gpu.model for word in gpu.model.lower().split()}
    words.pop("nvidia", None)
    return matching(((word, words[word] or "") for word in sorted(words)), incomplete.lower())


def states(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Return states of jobs; in a list with commas the last one is completed."""
    before, comma, last = incomplete.upper().rpartition(",")
    found = matching(((state.value, state.short) for state in JobState), last)
    for item in found:
        item.value = f"{before}{comma}{item.value}"
    return found


@quiet
def reservations(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    with opened(ctx) as (_, backend):
        windows = backend.queue.controls().reservations
        return matching(((window.name, f"{window.start.astimezone():%b %d %H:%M}") for window in windows), incomplete)


@quiet
def tenants(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    with opened(ctx) as (session, backend):
        names = {job.spec.tenant for job in backend.queue.jobs().values()}
        told = (*session.options.settings.policy.tenants, *backend.queue.controls().tenants)
        names |= {tenant.name for tenant in told}
        return matching(((name, "") for name in sorted(names)), incomplete)


def with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with the options of a job, completed where their values are known."""
    from gputui.request import submitter  # not needed to complete the words of other commands

    return submitter.with_options(function, {"gpu_model": models, "tenant": tenants})


def matching(found: Iterable[tuple[str, str]], incomplete: str) -> Items:
    from click.shell_completion import CompletionItem

    return [CompletionItem(word, help=plain(words, 60) or None) for word, words in found if word.startswith(incomplete)]


def _known_gpus(ctx: click.Context) -> tuple[Gpu, ...]:
    session = ctx.find_object(Session) or Session()
    with suppress(NotFoundError), session.existing_backend() as backend:
        if views := backend.snapshots().read().gpus:
            return tuple(view.gpu for view in views)
    from gputui.bootstrap import adapters

    return adapters.read_gpus(session.options, PATIENCE).gpus


@contextmanager
def opened(ctx: click.Context) -> Iterator[tuple[Session, DirectBackend]]:
    session = ctx.find_object(Session) or Session()
    with session.existing_backend() as backend:
        yield session, backend


@click.command("completions", short_help="print the completion script of a shell")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completions(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash: eval "$(gputui completions bash)" in ~/.bashrc
    zsh:  eval "$(gputui completions zsh)" in ~/.zshrc
    fish: gputui completions fish > ~/.config/fish/completions/gputui.fish
    """
    from click.shell_completion import get_completion_class

    root = ctx.find_root()
    chosen = get_completion_class(shell)
    assert chosen is not None  # the Choice above has only those click knows
    script = chosen(root.command, {}, "gputui", "_GPUTUI_COMPLETE")
    # not source(): it starts bash to ask for its version, and some machines have no bash
    source = script.source_template % script.source_vars()
    if shell == "fish":  # fish would cut values and descriptions at their first comma
        source = source.replace('(string split "," $completion)', '(string split --max 1 "," $completion)')
    terminal.write(source)
