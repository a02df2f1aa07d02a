"""Waiting jobs in lanes: those of a lane differ only in when they came and how long they run.

All of a lane's jobs grow old alike, so their order never changes; only the lanes' heads have to be compared.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from gputui.domain.job import JobId
from gputui.domain.policy.machine import Ask

Rank: TypeAlias = tuple[float, float, float, JobId]
"""Sorts first what starts first: topped, score, submit time, id."""


class Waiting(NamedTuple):
    """A job that only waits for its turn and for GPUs. Times are seconds since the epoch."""

    submitted: float
    id: JobId
    duration: float
    """Seconds it is planned to run."""


class LaneKey(NamedTuple):
    """What the jobs of a lane have in common."""

    tenant: str
    priority: int
    nice: int
    topped: float
    ask: Ask
    array: JobId | None = None
    array_limit: int = 0


@dataclass(eq=False, slots=True)
class Lane:
    """Jobs alike, in the order they came."""

    key: LaneKey
    base: float
    """Points that do not change: class and nice."""
    items: list[Waiting] = field(default_factory=list)
    shortest: float = float("inf")
    """No job in it is planned to run shorter."""

    def copy(self) -> Lane:
        """A lane that can go on without this one."""
        return Lane(self.key, self.base, list(self.items), self.shortest)

    def add(self, item: Waiting) -> None:
        """Put a job where its submit time puts it: mostly at the end."""
        if self.items and item < self.items[-1]:
            self.items.insert(bisect_left(self.items, item), item)
        else:
            self.items.append(item)
        self.shortest = min(self.shortest, item.duration)

    def take(self, position: int) -> None:
        """Take a job out."""
        taken = self.items.pop(position)
        if taken.duration <= self.shortest:
            self.shortest = min((item.duration for item in self.items), default=float("inf"))

    def next_shorter(self, position: int, duration: float) -> int:
        """The next job from there on that is planned to run shorter; past the end when there is none."""
        if self.shortest >= duration:
            return len(self.items)
        items = self.items
        while position < len(items) and items[position].duration >= duration:
            position += 1
        return position
