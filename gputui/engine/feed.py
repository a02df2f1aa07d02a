"""Feed of snapshots from the scheduler to its subscribers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from msgspec import Struct, field

from gputui.domain.snapshot import EMPTY, Snapshot

log = logging.getLogger(__name__)


class Feed(Struct, eq=False):
    """Passes each snapshot to every subscriber. Safe to use from any thread."""

    latest: Snapshot = EMPTY
    """Last published snapshot; EMPTY before the first."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _subscribers: list[Callable[[Snapshot], None]] = field(default_factory=list)

    def publish(self, snapshot: Snapshot) -> None:
        """Store the snapshot and pass it to every subscriber, in the calling thread; their errors are logged."""
        with self._lock:
            self.latest = snapshot
            subscribers = tuple(self._subscribers)
        for tell in subscribers:
            try:
                tell(snapshot)
            except Exception:  # a border: a screen that fails must not fail the tick
                log.exception("a picture could not be shown")

    def subscribe(self, tell: Callable[[Snapshot], None]) -> Callable[[], None]:
        """Call `tell` with each snapshot from now on; return a function that ends the subscription."""
        with self._lock:
            self._subscribers.append(tell)

        def unsubscribe() -> None:
            with self._lock:
                if tell in self._subscribers:
                    self._subscribers.remove(tell)

        return unsubscribe
