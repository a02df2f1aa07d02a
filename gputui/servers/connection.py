"""Connection of a console to the owner of one server's queue, opened again when it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TypeVar
from weakref import WeakSet

from gputui import __version__
from gputui.api.backend import ApiBackend
from gputui.api.client import ApiClient
from gputui.api.follower import Follower
from gputui.api.messages import AboutView
from gputui.api.wire import Dial, Server, Wire
from gputui.domain.errors import GputuiError, InputErrors
from gputui.domain.settings import ServerSettings, Settings
from gputui.domain.snapshot import ServerView, Snapshot
from gputui.domain.text import plain
from gputui.servers.merging import IdMapper

T = TypeVar("T")

BEGIN_WITHIN = 45.0
"""Seconds for ssh to connect, and for the first event."""
ANSWER_WITHIN = 90.0
"""Seconds for an answer; the server's lock of the queue is waited for up to 60."""
KEEP = 25.0
"""Seconds for which an idle connection serves the next request; the server closes it after 30."""
LONGEST_PAUSE = 30.0
"""Seconds between two tries to connect, at most."""
_UNREAD = frozenset({"body", "query"})


class ServerConnection:
    """Keeps one server connected. Only `ask` blocks; methods may be called from any thread."""

    def __init__(
        self,
        settings: ServerSettings,
        number: int,
        now: Callable[[], datetime],
        changed: Callable[[], object],
        dial: Dial,
    ) -> None:
        """`number` is that of the server in this console, from 1; `changed` is called after each change of `view`."""
        self.name = settings.name
        self.settings = settings
        self.mapper = IdMapper(number, settings.name)
        """Translation of its ids."""
        self._now, self._changed, self._dial_on = now, changed, dial
        self._wires: WeakSet[Wire] = WeakSet()
        self._closed = threading.Event()
        self._backend = ApiBackend(self._client(ANSWER_WITHIN))
        self._follower = Follower(self._client(BEGIN_WITHIN), self._hear, now, longest_pause=LONGEST_PAUSE)
        self._known: AboutView | None = None

    def _client(self, patience: float) -> ApiClient:
        return ApiClient(self._dial, patience=patience, name=_it, keep=KEEP)

    def _dial(self, seconds: float) -> Wire:
        if self._closed.is_set():
            raise GputuiError("the connection is closed")
        wire = self._dial_on(seconds)
        self._wires.add(wire)
        return wire

    def start(self) -> None:
        """Begin to connect; a second call does nothing."""
        self._follower.start()

    def _hear(self) -> None:
        if self._follower.about is not self._known:
            self._known = self._follower.about
            self._backend.forget_owner()
        self._changed()

    @property
    def about(self) -> AboutView | None:
        """The server's own description; None before the first connection."""
        return self._follower.about

    @property
    def snapshot(self) -> Snapshot:
        """The last snapshot, with the server's own ids; EMPTY before the first."""
        return self._follower.snapshot

    @property
    def is_up(self) -> bool:
        """Whether the server answers."""
        return not self._follower.problem

    def view(self) -> ServerView:
        """Return the server with its last snapshot, whose ids and names are those of this console."""
        follower, about = self._follower, self.about
        settings = Settings(scheduler=about.scheduler, policy=about.policy) if about else Settings()
        seen_at = self._now() - timedelta(seconds=follower.age) if follower.has_snapshot else None
        return ServerView(
            self.name, self.mapper.snapshot(follower.snapshot), settings, seen_at, plain(follower.problem, 400)
        )

    def ask(self, call: Callable[[ApiBackend], T]) -> T:
        """Return what the server answers; raises GputuiError, which names the server."""
        if problem := self._follower.problem:
            raise GputuiError(f"it does not answer: {problem}", where=self.name)
        try:
            return call(self._backend)
        except GputuiError as error:
            theirs = self.about.gputui if self.about else __version__
            if theirs != __version__ and error.where in _UNREAD:
                what = f"its gputui {plain(theirs, 20)} does not know this: {error.what}"
                raise GputuiError(what, where=self.name, hint="update gputui there") from error
            for each in (error, *(error.errors if isinstance(error, InputErrors) else ())):
                each.where = f"{self.name}: {each.where}" if each.where else self.name
            raise

    def close(self) -> None:
        """End the connection, without waiting."""
        self._closed.set()
        self._follower.close()
        self._backend.close()
        for wire in tuple(self._wires):
            wire.close()

    def join(self, timeout: float) -> None:
        """Wait for the end of the connection."""
        self._follower.join(timeout)


def _it(server: Server) -> tuple[str, str]:
    """Return the name of a server in sentences that name it already, and what helps if it does not answer."""
    del server
    return "it", "what was asked may still be done"
