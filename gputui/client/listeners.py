"""Events of jobs for all who wait for some: one stream for a client, since the owner allows an account only a few."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Protocol

from gputui.client.answers import Beginning, Event
from gputui.domain.errors import GputuiError

_CLOSED = "the client was closed"


class JobEventSource(Protocol):
    """Who reads events."""

    def events(self, *kinds: str) -> Iterator[Event]: ...

    def close(self) -> None:
        """End the events, from any thread."""
        ...


class JobListener:
    """What one who waits hears."""

    def __init__(self, deadline: float | None) -> None:
        """`deadline` is a time of the monotonic clock."""
        self._heard: SimpleQueue[Event | Exception] = SimpleQueue()
        self._deadline = deadline

    def tell(self, event: Event | Exception) -> None:
        self._heard.put(event)

    def next(self) -> Event:
        """Return the next event; raises TimeoutError, and GputuiError when there will be none."""
        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        try:
            event = self._heard.get(timeout=left)
        except Empty:
            raise TimeoutError from None
        if isinstance(event, Exception):
            raise event
        return event

    def close(self) -> None:
        """End the wait, from any thread."""
        self.tell(GputuiError(_CLOSED))


class SharedEvents:
    """Reads the events in a thread of its own, for as long as somebody listens."""

    def __init__(self, branch: Callable[[], JobEventSource]) -> None:
        self._branch = branch
        self._lock = threading.Lock()
        self._listeners: set[JobListener] = set()
        self._source: JobEventSource | None = None
        self._has_begun = False

    @contextmanager
    def listening(self, deadline: float | None) -> Iterator[JobListener]:
        """Yield a listener, who hears of a beginning first, and of all that happens after it."""
        mine = JobListener(deadline)
        with self._lock:
            self._listeners.add(mine)
            if self._source is None:
                self._source, self._has_begun = self._branch(), False
                threading.Thread(target=self._run, args=(self._source,), name="gputui", daemon=True).start()
            elif self._has_begun:
                mine.tell(Beginning())
        try:
            yield mine
        finally:
            with self._lock:
                self._listeners.discard(mine)
                unheard = None if self._listeners else self._source
                if unheard is not None:
                    self._source = None
            if unheard is not None:
                unheard.close()

    def _run(self, source: JobEventSource) -> None:
        last: Exception = GputuiError(_CLOSED)
        try:
            for event in source.events("job"):
                self._tell(source, event)
        except Exception as error:  # noqa: BLE001 - a border: those who wait raise it
            last = error
        self._tell(source, last)

    def _tell(self, source: JobEventSource, event: Event | Exception) -> None:
        with self._lock:
            if self._source is not source:
                return
            self._has_begun = True
            if isinstance(event, Exception):
                self._source = None
            for each in self._listeners:
                each.tell(event)
