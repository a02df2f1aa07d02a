"""What this owner remembers of requests: those with keys, which may come again, and changes, which may be undone."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count

from msgspec import Struct

from gputui.api.messages import ChangeNumber
from gputui.api.problems import HttpError
from gputui.domain.access import Caller
from gputui.domain.errors import NotFoundError
from gputui.domain.job_spec import JobId
from gputui.domain.keys import check_same, name_of_key, requests_of
from gputui.ports.actions import ActionChange
from gputui.ports.store import Queue

MOST_CHANGES = 20_000
"""Maximum number of changes that can be undone."""
MOST_KEYS = 100_000
"""Maximum number of requests that are known by their keys."""
_PATIENCE = 30.0


class KnownRequest(Struct, frozen=True):
    """A request that was carried out."""

    key: str
    """As it is stored, with the digest of the request."""
    ids: tuple[JobId, ...] = ()
    """Jobs that it submitted or changed."""
    answer: bytes = b""
    """Body of its answer; empty: another owner gave it."""


class KnownRequests:
    """Requests with keys that were carried out, by this owner or by those before, as far as the queue knows them."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], KnownRequest] = {}
        self._running: set[tuple[int, str]] = set()
        self._changed = threading.Condition()
        self._is_loaded = False

    @contextmanager
    def turn(self, caller: Caller, queue: Queue) -> Iterator[KnownRequest | None]:
        """Hold back other requests of the same key for the block; yield the one that was carried out with it, if any.

        Raises InputError if that was another request. Does nothing for a caller without a key.
        """
        if not caller.key:
            yield None
            return
        mine = caller.uid, name_of_key(caller.key)
        with self._changed:
            if not self._is_loaded:
                self._load(queue)
            if not self._changed.wait_for(lambda: mine not in self._running, _PATIENCE):
                raise HttpError(503, "the same request is still carried out", headers=(("Retry-After", "1"),))
            known = self._known.get(mine)
            if known is not None:
                check_same(caller.key, known.key)
            self._running.add(mine)
        try:
            yield known
        finally:
            with self._changed:
                self._running.discard(mine)
                self._changed.notify_all()

    def keep(self, caller: Caller, ids: tuple[JobId, ...], answer: bytes) -> None:
        """Remember a request that was carried out, if it has a key."""
        if caller.key:
            with self._changed:
                self._keep(caller.uid, KnownRequest(caller.key, ids, answer))

    def _keep(self, uid: int, request: KnownRequest) -> None:
        self._known[uid, name_of_key(request.key)] = request
        while len(self._known) > MOST_KEYS:
            del self._known[next(iter(self._known))]

    def _load(self, queue: Queue) -> None:
        for uid, key, ids in requests_of(queue.jobs().values()):
            self._keep(uid, KnownRequest(key, ids))
        self._is_loaded = True


class KeptChanges:
    """Changes that can be undone by their numbers, as long as this owner lives."""

    def __init__(self) -> None:
        self._changes: dict[int, tuple[int, ActionChange]] = {}
        """Changes with the uid of whoever made them."""
        self._numbers = count(1)
        self._lock = threading.Lock()

    def keep(self, caller: Caller, changes: Iterable[ActionChange], indices: Mapping[str, str]) -> list[ChangeNumber]:
        """Give each change a number; `indices` has the displayed index of each GPU, by UUID."""
        with self._lock:
            noted = {next(self._numbers): change for change in tuple(changes)[-MOST_CHANGES:]}
            self._changes |= {number: (caller.uid, change) for number, change in noted.items()}
            while len(self._changes) > MOST_CHANGES:
                del self._changes[next(iter(self._changes))]
        return [ChangeNumber(number, change.subject(indices), change.done) for number, change in noted.items()]

    def of(self, caller: Caller, numbers: Iterable[int]) -> list[ActionChange]:
        """Return the caller's changes with these numbers; raises NotFoundError, also for those of others."""
        with self._lock:
            found = [self._changes.get(number) for number in numbers]
        changes = [each[1] for each in found if each is not None and each[0] == caller.uid]
        if len(changes) < len(found):
            what = f"{len(found) - len(changes)} of these changes were made before this owner began, or too long ago"
            raise NotFoundError(what)
        return changes
