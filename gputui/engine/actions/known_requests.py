"""Requests with idempotency keys that were carried out, so that a repeated one is not carried out again."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gputui.domain.access import Caller, check_same, name_of_key
from gputui.domain.action import Done
from gputui.domain.errors import StoreBusyError
from gputui.domain.job_spec import JobId
from gputui.ports.store import Queue

MOST = 100_000
"""Maximum number of requests that are known."""
_PATIENCE = 30.0
"""Seconds to wait for the same request, which is still carried out."""


class KnownRequests:
    """Requests of all callers, by this process, or by those before as far as the queue knows them. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], tuple[str, tuple[JobId, ...]]] = {}
        """Keys as stored with the jobs, by uid and key."""
        self._running: set[tuple[int, str]] = set()
        self._read: set[int] = set()
        """Users whose requests were read from the queue."""
        self._changed = threading.Condition()

    def once(self, caller: Caller, queue: Queue, act: Callable[[], Done]) -> Done:
        """Return the result of `act`, or of the request that was carried out with the caller's key.

        Raises InputError if that was another request. Nobody else of that key acts meanwhile.
        """
        if not caller.key:
            return act()
        mine = caller.uid, name_of_key(caller.key)
        with self._changed:
            if not self._changed.wait_for(lambda: mine not in self._running, _PATIENCE):
                raise StoreBusyError("the same request is still carried out", hint="ask again")
            if caller.uid not in self._read:
                self._read.add(caller.uid)
                for key, ids in queue.requests(caller.uid):
                    self._keep(caller.uid, key, ids)
            if (known := self._known.get(mine)) is not None:
                check_same(caller.key, known[0])
                return Done(known[1], is_repeated=True)
            self._running.add(mine)
        try:
            done = act()
            with self._changed:
                self._keep(caller.uid, caller.key, done.ids)
            return done
        finally:
            with self._changed:
                self._running.discard(mine)
                self._changed.notify_all()

    def _keep(self, uid: int, key: str, ids: tuple[JobId, ...]) -> None:
        self._known[uid, name_of_key(key)] = key, ids
        while len(self._known) > MOST:
            del self._known[next(iter(self._known))]
