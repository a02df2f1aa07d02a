"""Waiting jobs in lanes: the jobs of a lane differ only in age.

They rank by the time at which they became eligible, then by id, so their order within a lane never changes, and a
refused job keeps back all behind it in its lane. Only the heads of lanes have to be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from gputui.domain.job_spec import NORMAL_PRIORITY, JobId
from gputui.domain.policy.gpus.placement import Ask


class Waiting(NamedTuple):
    """Jobs that wait for their turn and for GPUs: a single job, or elements of an array with consecutive ids."""

    since: float
    """Second since the epoch from which they were eligible."""
    id: JobId
    """Id of the first job."""
    count: int = 1  # type: ignore[assignment]  # tuple.count, which nobody needs here


class LanePlace(NamedTuple):
    """Place given by hand beside another job, whose parameters then determine the score."""

    tenant: str
    planned: float
    beside: JobId
    tie: float
    """Below 0 it goes before the other, above 0 behind it."""


class Stands(NamedTuple):
    """Parameters of the score."""

    tenant: str
    """Tenant whose fair share counts."""
    planned: float
    """Planned seconds that count."""


class LaneKey(NamedTuple):
    """Everything that the jobs of a lane have in common."""

    tenant: str
    ask: Ask
    priority: int = NORMAL_PRIORITY
    duration: float = 0.0
    """Planned seconds of each job."""
    nice: int = 0
    topped: float = 0.0
    """Time at which it was put at the head of the queue by hand, in seconds since the epoch; 0: it was not."""
    array: JobId | None = None
    array_limit: int = 0
    placed: LanePlace | None = None

    @property
    def stands(self) -> Stands:
        """Inputs of its score other than the wait: its own, or those of the job beside which it is placed."""
        if self.placed is not None:
            return Stands(self.placed.tenant, self.placed.planned)
        return Stands(self.tenant, self.duration)


class Lane(Struct, eq=False):
    """Jobs of equal kind in their order.

    Immutable, since copies of cluster states share lanes; a change makes a new lane.
    """

    key: LaneKey
    head: Waiting
    items: list[Waiting]
    """List that other lanes may share; items before `first` are gone or belong to the head."""
    first: int
    """Position of the first item behind the head."""
    end: int
    payer: str
    """Tenant whose fair share counts in their score."""
    planned: float
    """Planned seconds that count in their score."""

    @property
    def waiting(self) -> Iterator[Waiting]:
        """Waiting items of the lane."""
        yield self.head
        yield from self.items[self.first : self.end]


def lane_of(key: LaneKey, items: list[Waiting]) -> Lane:
    """Return the lane of these items, which are sorted; the lane owns the list from now on."""
    payer, planned = key.stands
    return Lane(key, items[0], items, 1, len(items), payer, planned)


def with_item(lane: Lane, item: Waiting) -> Lane:
    """Return the lane with one more waiting item, usually at the end."""
    last = lane.items[lane.end - 1] if lane.first < lane.end else lane.head
    if last < item and lane.end == len(lane.items):
        lane.items.append(item)  # lanes that share the list end before it
        return Lane(lane.key, lane.head, lane.items, lane.first, lane.end + 1, lane.payer, lane.planned)
    return lane_of(lane.key, sorted((*lane.waiting, item)))


def without_item(lane: Lane, item: Waiting) -> Lane | None:
    """Return the lane without the first job of `item`; None if no other job waits in it."""
    head, first = lane.head, lane.first
    if item.id == head.id:
        if head.count > 1:
            following = Waiting(head.since, head.id + 1, head.count - 1)
        elif first < lane.end:
            following, first = lane.items[first], first + 1
        else:
            return None
        return Lane(lane.key, following, lane.items, first, lane.end, lane.payer, lane.planned)
    others = []
    for each in lane.waiting:
        if each.id <= item.id < each.id + each.count and each.since == item.since:
            others += _without(each, item.id)
        else:
            others.append(each)
    return lane_of(lane.key, others)


def _without(item: Waiting, job_id: JobId) -> list[Waiting]:
    """Return the parts of the item before and behind one of its jobs."""
    before, behind = job_id - item.id, item.id + item.count - job_id - 1
    parts = [Waiting(item.since, item.id, before), Waiting(item.since, job_id + 1, behind)]
    return [part for part in parts if part.count]
