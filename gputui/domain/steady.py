"""The rule against flapping: a state is told once it has held for 10 seconds, until it has been over for 10 seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Generic, TypeVar

K = TypeVar("K")
HOLD = timedelta(seconds=10)
"""Time for which a state must last until it is told, and be over until it is no longer told."""


class Steady(Generic[K]):
    """States of which each is told while it holds."""

    def __init__(self) -> None:
        self._told: frozenset[K] | None = None
        self._changing: dict[K, datetime] = {}
        """Time since which each state differs from what is told."""

    def update(
        self, present: Iterable[K], now: datetime, since: Mapping[K, datetime] = MappingProxyType({})
    ) -> frozenset[K]:
        """Take the present states, with the known times of their beginning; return those that hold.

        At first all do: nothing is known of the time before.
        """
        found = frozenset(present)
        told = found if self._told is None else self._told
        changing = {key: self._changing.get(key) or since.get(key, now) for key in told ^ found}
        changed = {key for key, begun in changing.items() if abs(now - begun) >= HOLD}
        self._changing = {key: begun for key, begun in changing.items() if key not in changed}
        self._told = told ^ changed
        return self._told


def holds(readings: Iterable[bool | None]) -> bool | None:
    """Return whether a state holds by the same rule, given whether it was there in each second, the newest first.

    The last stretch of 10 seconds without a change decides, else the oldest reading. None: nothing was read.
    """
    state: bool | None = None
    length = 0
    for reading in readings:
        if reading is None:
            continue
        length = length + 1 if reading is state else 1
        state = reading
        if length > HOLD.total_seconds():
            break
    return state
