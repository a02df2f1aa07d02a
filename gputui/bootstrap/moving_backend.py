"""The queue of this machine: as the process that schedules serves it, else as this process opens it for the moment."""

from __future__ import annotations

import os
import threading
import time
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
ASK_AGAIN = 5.0
"""Seconds for which an owner who has ended, or hangs, is not asked again."""


class MovingBackend:
    """Passes each call on: to the owner of the queue while there is one who answers, else to this process's backend."""

    def __init__(self, options: Options, waiting: Callable[[str], None] | None = None) -> None:
        self._options = options
        self._waiting = waiting
        self._local = LocalBackend(options, waiting)
        self._api: ApiBackend | None = None
        self._left: list[ApiBackend] = []
        self._ask_at = 0.0
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
                self._api, self._ask_at = None, time.monotonic() + ASK_AGAIN
            if self._api is None and time.monotonic() >= self._ask_at:
                self._api = self._ask()
            return self._api or self._local

    def _ask(self) -> ApiBackend | None:
        if not any(map(os.path.lexists, self._options.sockets.paths)):
            return None
        from gputui.bootstrap.owner import open_api

        return open_api(self._options, self._waiting, self._instead)

    def _instead(self, key: str) -> DirectBackend:
        """Return the queue as this process opens it, for a key under which the owner was asked already, or for ''."""
        return bootstrap.open_backend(self._options, self._waiting, key) if key else self._local

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


class ConsoleBackend(MovingBackend):
    """The queue of a console, whose screen waits for nobody to learn what it is."""

    def about(self, server: str = "") -> About:
        return self._local.about(server)


def open_console_backend(options: Options, waiting: Callable[[str], None] | None = None) -> DirectBackend:
    """Return the queue of a console; raises NoOwnerError as `bootstrap.ask_backend` does."""
    if options.in_cluster or not bootstrap.may_open(options):
        return bootstrap.ask_backend(options, waiting)
    return cast("DirectBackend", ConsoleBackend(options, waiting))
