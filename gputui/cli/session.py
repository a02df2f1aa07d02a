"""State shared by all commands: the options, resolved when first needed, and the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

import click
from msgspec import Struct
from msgspec.structs import replace

from gputui import bootstrap
from gputui.cli import terminal
from gputui.config import Options, resolve
from gputui.domain.errors import NotFoundError

if TYPE_CHECKING:
    from gputui.ports import JobStore
    from gputui.ports.backend import DirectBackend
    from gputui.request.submitter import Submitter

COMPLETION_PATIENCE = timedelta(seconds=3)
"""Time that an answer of a cluster may take while the user waits for a completion."""
_COMPLETING = "_GPUTUI_COMPLETE"
"""Variable set by a shell that completes a word; output on stderr would then end up in the user's input line."""


def ignored(options: Options, source: str, keys: Iterable[str]) -> str:
    return f"{source}: ignored {', '.join(keys)}: the site's {options.site} decides about that"


def is_elsewhere(ctx: click.Context) -> bool:
    """Return whether the command is for the servers of `--on`, whose jobs and GPUs are not known here."""
    return bool(ctx.find_root().params.get("servers"))


class Session(Struct, eq=False, dict=True):
    """State of one command: its options, and access to the store."""

    _state: str | None = None
    _config: str | None = None
    _probe: str | None = None
    _runtime: str | None = None
    slow: bool = False
    key: str = ""
    """Key of a request to an owner who did not answer; the command may have been carried out."""
    command: str | None = None
    """Name of the command, if there is one: some are refused in cluster mode."""

    @cached_property
    def options(self) -> Options:
        """Return the options, resolved on first use: help reads no file, so it never fails."""
        options = self.resolved()
        for source, keys in options.ignored if _COMPLETING not in terminal.environ() else ():
            terminal.tell(f"warning: {ignored(options, source, keys)}")
        if self.command is not None and (caps := bootstrap.first_caps(options)) is not None:
            caps.need_command(self.command)
        if options.probe.model is not None:
            from gputui.bootstrap import adapters

            adapters.check_probe(options)
        if self.slow:
            settings = options.settings
            console = replace(settings.console, slow=True)
            options = replace(options, settings=replace(settings, console=console))
        return options

    def resolved(self) -> Options:
        return resolve(state=self._state, config=self._config, probe=self._probe, runtime=self._runtime)

    def opened(self, options: Options) -> DirectBackend:
        if self.key:
            return bootstrap.open_backend(options, terminal.tell, self.key)
        return bootstrap.ask_backend(options, terminal.tell)

    def submitter(self) -> Submitter:
        from gputui.request import caller, submitter  # few commands submit

        return submitter.Submitter(self.user, bootstrap.clock().now(), inherited=caller.inherited())

    def forecast(self) -> AbstractContextManager[object]:
        """Return a context for a forecast, which takes long with thousands of jobs; the owner makes one at a time."""
        return nullcontext()

    @property
    def user(self) -> str:
        return bootstrap.actor().user

    @contextmanager
    def backend(self) -> Iterator[DirectBackend]:
        """Open the queue, and close it at the end; raise StoreDamagedError then if acknowledged changes are missing.

        What could not be read is told on stderr.
        """
        with closing(self.opened(self.options)) as backend:
            try:
                yield backend
            except NotFoundError:
                backend.queue.check()  # the job may be among the lost ones
                raise
            for sentence in backend.queue.unread():
                terminal.tell(f"warning: {sentence}")
            backend.queue.check()

    @contextmanager
    def store(self, *, is_local: bool = False) -> Iterator[JobStore]:
        """Open the store of this machine, as `backend` does; with `is_local` an existing one, in cluster mode too."""
        from gputui.bootstrap.backend import LocalBackend

        options = self.options.local() if is_local else self.options
        if is_local and not bootstrap.has_queue(options):
            raise NotFoundError("there is no queue yet", where=str(options.state))
        with closing(LocalBackend(options, terminal.tell)) as backend:
            yield backend.store
            for sentence in backend.store.unread():
                terminal.tell(f"warning: {sentence}")
            backend.store.check()

    @contextmanager
    def existing_backend(self, *, is_local: bool = False) -> Iterator[DirectBackend]:
        """Open the queue for shell completion: create none, print nothing, and do not wait long for a cluster.

        With `is_local` it is the queue of this server, also in cluster mode.
        """
        options = self.options.local() if is_local else self.options
        if bootstrap.may_open(options) and not bootstrap.has_queue(options):
            raise NotFoundError("there is no queue yet", where=str(options.state))
        cluster = options.settings.cluster
        soon = replace(cluster, command_timeout=min(cluster.command_timeout, COMPLETION_PATIENCE))
        hasty = replace(options, settings=replace(options.settings, cluster=soon))
        with closing(bootstrap.ask_backend(hasty)) as backend:
            yield backend


pass_session = click.make_pass_decorator(Session)
