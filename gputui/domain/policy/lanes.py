"""Waiting jobs in lanes: those of a lane have the tenant and the request in common.

A lane's jobs grow old alike and share their tenant's fair-share factor, so their order among themselves never changes,
unless age is capped. Only the lanes' heads have to be compared at every look.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from gputui.domain.job import JobId
from gputui.domain.policy.machine import Ask

_FOREVER = float("inf")
_submitted, _duration, _differs = itemgetter(0), itemgetter(2), itemgetter(3, 5)
Rank: TypeAlias = tuple[float, float, float, JobId]
"""Sorts first what starts first: topped, score, submit time, id."""


class Waiting(NamedTuple):
    """A job that only waits for its turn and for GPUs. Times are seconds since the epoch."""

    submitted: float
    id: JobId
    duration: float
    """Seconds it is planned to run."""
    base: float
    """Points that do not change: class and nice."""
    priority: int
    topped: float = 0.0


class LaneKey(NamedTuple):
    """What the jobs of a lane have in common."""

    tenant: str
    ask: Ask
    array: JobId | None = None
    array_limit: int = 0


class Unlike(NamedTuple):
    """Jobs that may start although others before them in their lane may not."""

    settled_below: float
    """Jobs that settle for the fewest GPUs and are planned to run shorter than that, in seconds."""
    below: float
    """Jobs that want more GPUs and are planned to run shorter than that, in seconds."""
    above: int | None
    """Jobs of higher priority than that are meant; None: priority makes no difference."""
    now: float
    patience: float
    """Waiting time in seconds after which jobs settle for fewer GPUs."""


@dataclass(frozen=True)
class Ageing:
    """Points for waiting: so many a second, up to a most."""

    slope: float
    most: float = _FOREVER

    def next_turn(self, items: Sequence[Waiting], now: float) -> float:
        """When the order among these may change next: once one has its most points the others gain on it."""
        if not self.slope or self.most == _FOREVER:
            return _FOREVER
        full = now - self.most / self.slope
        submitted: list[float] = list(map(_submitted, items))
        oldest = min(submitted)
        if oldest > full:
            return now + (oldest - full)
        return now if max(submitted) > full else _FOREVER

    def scores(self, items: Iterable[Waiting], fair: Iterable[float], now: float) -> list[float]:
        """Of many at once, each with the points of its tenant, what `rank` has in its second place."""
        slope, most = self.slope, self.most
        if most == _FOREVER:
            return [slope * item[0] - item[3] - points for item, points in zip(items, fair, strict=True)]
        return [
            -(item[3] + (most if (aged := slope * (now - item[0])) > most else aged) + points)
            for item, points in zip(items, fair, strict=True)
        ]

    def rank(self, item: Waiting, fair: float, now: float) -> Rank:
        """Where it stands; `fair` are the points of its tenant."""
        if self.most == _FOREVER:  # all gain alike: without `now` the order is the same at all times, to the last bit
            return (-item.topped, self.slope * item.submitted - item.base - fair, item.submitted, item.id)
        aged = self.slope * (now - item.submitted)
        score = item.base + (self.most if aged > self.most else aged) + fair  # noqa: FURB136 - min() costs more
        return (-item.topped, -score, item.submitted, item.id)


@dataclass(eq=False, slots=True)
class Lane:
    """Jobs alike, in their order."""

    key: LaneKey
    ageing: Ageing
    items: list[Waiting] = field(default_factory=list)
    shortest: float = _FOREVER
    """No job in it is planned to run shorter."""
    is_shortest_gone: bool = False
    """One that ran so short was taken out: `shortest` has to be looked for when it is needed."""
    mixed: bool = False
    """Its jobs differ in more than age, so that order is not just that of submission."""
    stale_at: float = 0.0
    """Of a mixed lane: when its order may be another one."""
    settled_at: float = -_FOREVER
    """When it was known to be in order."""

    def copy(self) -> Lane:
        """A lane that can go on without this one."""
        other = Lane(self.key, self.ageing, list(self.items), self.shortest, self.is_shortest_gone)
        other.mixed, other.stale_at, other.settled_at = self.mixed, self.stale_at, self.settled_at
        return other

    def add(self, item: Waiting) -> None:
        """Put a job where it belongs: mostly at the end."""
        self.shortest = min(self.shortest, item.duration)
        items = self.items
        if not items:
            self.mixed = False
        elif not self.mixed and (item.base, item.topped) != (items[0].base, items[0].topped):
            self.mixed, self.stale_at = True, 0.0
        if self.mixed:
            items.append(item)
            self.stale_at, self.settled_at = 0.0, -_FOREVER
        elif items and item < items[-1]:
            items.insert(bisect_left(items, item), item)
        else:
            items.append(item)

    def feed(self, items: list[Waiting], now: float) -> None:
        """Have these wait in it, and no others: they are in the order of this moment."""
        self.items = items
        self.shortest = min(map(_duration, items), default=_FOREVER)
        self.mixed = len(set(map(_differs, items))) > 1
        self.settled_at = now

    def settle(self, now: float) -> None:
        """Bring its jobs into the order of this moment."""
        if not self.mixed or now < self.stale_at or now == self.settled_at:
            return
        ageing = self.ageing
        if self.settled_at > -_FOREVER and not self.stale_at:
            self.stale_at = ageing.next_turn(self.items, self.settled_at)
            if now < self.stale_at:
                return
        self.items.sort(key=lambda item: ageing.rank(item, 0.0, now))
        self.stale_at = ageing.next_turn(self.items, now)

    def take(self, position: int) -> None:
        """Take a job out."""
        taken = self.items.pop(position)
        if taken.duration <= self.shortest:
            self.is_shortest_gone = True

    def next_above(self, position: int, priority: int) -> int:
        """Return the first place from there on with a job of at least that priority; past the end: none."""
        items = self.items
        return next((n for n in range(position, len(items)) if items[n].priority >= priority), len(items))

    def next_unlike(self, position: int, unlike: Unlike) -> int:
        """Return the first place from there on with such a job; past the end: none."""
        items, ask = self.items, self.key.ask
        settled_below, below, above, now, patience = unlike
        if above is None and ask.minimum == ask.maximum:
            return self._next_shorter(position, settled_below)
        below = min(below, settled_below)
        for place in range(position, len(items)):
            other = items[place]
            limit = settled_below if other[0] + patience <= now else below
            if other[2] < limit or (above is not None and other[4] > above):
                return place
        return len(items)

    def _next_shorter(self, position: int, duration: float) -> int:
        items = self.items
        if self.is_shortest_gone:
            self.shortest, self.is_shortest_gone = min(map(_duration, items), default=_FOREVER), False
        if self.shortest >= duration:
            return len(items)
        while position < len(items) and items[position].duration >= duration:
            position += 1
        return position

    def next_settling(self, now: float, patience: float, ends_by: float) -> float:
        """Return when the next job settles for fewer GPUs, of those that are planned to end by then if they start."""
        times = (at for item in self.items if (at := item[0] + patience) > now and at + item[2] <= ends_by)
        return min(times, default=_FOREVER)
