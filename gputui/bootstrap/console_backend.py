"""The queue of a console: its own while it schedules, else as the process that schedules serves it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

from gputui import bootstrap
from gputui.bootstrap.backend import LocalBackend

if TYPE_CHECKING:
    from gputui.api.backend import ApiBackend
    from gputui.config import Options
    from gputui.ports import JobStore
    from gputui.ports.backend import About, DirectBackend

_ENDED = "was changed through a process that no longer schedules"


class ConsoleBackend:
    """Passes all calls on: to this process's own backend while it schedules or nobody does, else to the owner."""

    def __init__(self, local: LocalBackend, ask: Callable[[], ApiBackend | None]) -> None:
        self._local = local
        self._ask = ask
        self._api: ApiBackend | None = None
        self._left: list[ApiBackend] = []
        self._choosing = threading.Lock()
        self.leads: Callable[[], bool] = lambda: False
        """Returns whether this process schedules."""

    @property
    def store(self) -> JobStore:
        """The store, for a scheduler in this process."""
        return self._local.store

    def _present(self) -> LocalBackend | ApiBackend:
        with self._choosing:
            if self.leads():
                return self._local
            if self._api is not None and self._api.has_left_owner:
                self._left.append(self._api)  # its streams are still read
                self._api = None
            if self._api is None:
                self._api = self._ask()
            return self._api or self._local

    def about(self, server: str = "") -> About:
        return self._local.about(server)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._present(), name)

    def undo(self, changes: Iterable[Any], on_progress: Callable[[int, int], None] | None = None) -> list[Any]:
        """Undo changes where they were made, if that is still possible."""
        from gputui.api.backend import NumberedChange

        wanted, present = tuple(changes), self._present()
        numbered = tuple(each for each in wanted if isinstance(each, NumberedChange))
        own = tuple(each for each in wanted if not isinstance(each, NumberedChange))
        done = list(self._local.undo(own, on_progress)) if own else []
        if numbered and present is self._local:
            return [*done, *((each, _ENDED) for each in numbered)]
        return [*done, *(present.undo(numbered) if numbered else ())]

    def close(self) -> None:
        for each in (self._local, self._api, *self._left):
            if each is not None:
                each.close()


def open_console_backend(options: Options, waiting: Callable[[str], None] | None = None) -> DirectBackend:
    """Return the queue of a console; raises NoOwnerError as `bootstrap.ask_backend` does."""
    if options.in_cluster:
        return bootstrap.open_backend(options, waiting)
    if not bootstrap.may_open(options):
        return bootstrap.ask_backend(options, waiting)

    def ask() -> ApiBackend | None:
        if not any(map(os.path.lexists, options.sockets.paths)):
            return None
        from gputui.bootstrap.owner import open_api

        return open_api(options, waiting)

    return cast("DirectBackend", ConsoleBackend(LocalBackend(options, waiting), ask))
