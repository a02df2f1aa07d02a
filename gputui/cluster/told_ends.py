"""Record of the ends of jobs that hooks were told of, kept beside the records of ended jobs."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from pathlib import Path

from msgspec import Struct

from gputui.cluster.journal import Journal

_MOST_BYTES = 4 * 1024**2


class Told(Struct, frozen=True):
    """An end that was told."""

    event: str
    """Id of the event."""
    at: float
    """Second since 1970."""


class ToldEnds:
    """Ids of the events that were told, as long as the file keeps them."""

    def __init__(self, directory: Path) -> None:
        self._journal = Journal(directory / "told.jsonl", Told, _MOST_BYTES)
        self._events: set[str] = set()

    def events(self) -> Collection[str]:
        """Return the ids of all events that were told."""
        is_new, told = self._journal.fresh()
        if is_new:
            self._events = set()
        self._events.update(each.event for each in told)
        return self._events

    def add(self, events: Iterable[str]) -> None:
        """Record durably that these were told; raises OSError."""
        now = time.time()
        self._journal.append(Told(event, now) for event in events)
