"""Order of waiting jobs, by priority and by score, and lanes, whose jobs differ only in age.

They rank by the time at which they became eligible, then by id, so their order within a lane never changes, and a
refused job keeps back all behind it in its lane. Only the heads of lanes have to be compared, by level, then by score.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from gputui.domain.job_spec import NORMAL_PRIORITY, JobId, whole_class
from gputui.domain.policy.placement import Ask
from gputui.domain.settings import PolicySettings

_TOPS = (25.5, 74.5, 100.5)
"""Levels above every priority of class low, normal and high, but below every level of the next class."""
_MOST_NICE = 10_000
_FEWER = 12.0
"""Seconds of credit lost per second of planned runtime."""
FIRST = -float("inf")
"""Stand-in for the score of a promoted job, so that the job that became eligible first is first."""


def credit(used: float, settings: PolicySettings) -> float:
    """Return the maximum credited seconds of wait for jobs of a tenant that used less than its share.

    `used` is its U/S.
    """
    return settings.newcomer_credit.total_seconds() * max(0.0, 1.0 - used)


def credited(most: float, planned: float) -> float:
    """Return the credited seconds of wait for a job with that many planned seconds: the longer the job, the less."""
    return max(0.0, most - _FEWER * planned)


def scores(waits: Iterable[tuple[float, float, float]], now: float, unit: float) -> list[float]:
    """Return the score of each (eligible since, planned seconds, maximum credit); the least goes first.

    It is minus the expansion factor minus the age in units. It never grows with the wait, so the jobs of a lane stay in
    the order in which they became eligible.
    """
    return [
        -1.0 - (now - since) * (1 / planned + 1 / unit) - (bonus if (bonus := most / planned - _FEWER) > 0.0 else 0.0)
        for since, planned, most in waits
    ]


def score(waited: float, planned: float, most: float, settings: PolicySettings) -> float:
    """Return the score among jobs of equal priority; the higher goes first. `most` is the result of `credit`."""
    [found] = scores([(0.0, planned, most)], waited, settings.age_unit.total_seconds())
    return -found


def level(priority: int, nice: int, *, promoted: bool = False) -> float:
    """Return the level of a job; a higher level goes first, whatever the scores.

    It is the priority, lowered by less than half a point by nice; a promoted job is above all others of its class.
    """
    if promoted:
        return _TOPS[whole_class(priority)]
    return priority - 0.5 * min(nice, _MOST_NICE) / (_MOST_NICE + 1) if nice > 0 else priority


def is_top(height: float) -> bool:
    return height in _TOPS


class ScoreTerms(Struct, frozen=True):
    """Terms of a job's rank, for `explain`."""

    level: float
    """Effective priority: lowered by nice, or that of a promoted job."""
    is_promoted: bool
    waited: float
    credited: float
    planned: float
    """Seconds of eligible wait, of credit, and of planned runtime."""
    expansion: float
    """(waited + credited + planned) / planned."""
    age: float
    """Eligible wait in units of `policy.age_unit`."""
    total: float
    """Score; on the same level the higher goes first."""


def score_terms(height: float, waited: float, planned: float, used: float, settings: PolicySettings) -> ScoreTerms:
    """Return the terms of a job on that level; `used` is its tenant's U/S, times are in seconds."""
    most = credit(used, settings)
    bonus = credited(most, planned)
    return ScoreTerms(
        level=height,
        is_promoted=is_top(height),
        waited=waited,
        credited=bonus,
        planned=planned,
        expansion=(waited + bonus + planned) / planned,
        age=waited / settings.age_unit.total_seconds(),
        total=score(waited, planned, most, settings),
    )


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
            before, behind = item.id - each.id, each.id + each.count - item.id - 1
            parts = [Waiting(each.since, each.id, before), Waiting(each.since, item.id + 1, behind)]
            others += [part for part in parts if part.count]
        else:
            others.append(each)
    return lane_of(lane.key, others)


_FOREVER = float("inf")
Band: TypeAlias = dict[Ask, dict[LaneKey, Lane]]
"""Lanes on one level, by what their jobs ask for."""
BandLevel: TypeAlias = tuple[float, float]
"""Time at which a job was put at the head of the queue, and its level; the greatest goes first."""


class Bands:
    """Lanes by level, which is the level of their head."""

    def __init__(self, promote_after: float, lanes: Iterable[Lane], now: float) -> None:
        """Create the bands; a job is promoted after `promote_after` seconds of eligible wait."""
        self._promote_after = promote_after
        self._bands: dict[BandLevel, Band] = {}
        self._levels: dict[LaneKey, BandLevel] = {}
        self._order: list[BandLevel] = []
        self._next = _FOREVER
        """Time of the next promotion of a lane."""
        self.shortest: dict[Ask, float] = {}
        """Minimum planned seconds of the lanes with that ask."""
        for lane in lanes:
            self.put(lane, now)

    def put(self, lane: Lane, now: float) -> None:
        """Add the lane, replacing the one with the same key."""
        key = lane.key
        due, ask = lane.head[0] + self._promote_after, key.ask
        promoted = due <= now
        at = (key.topped, level(key.priority, key.nice, promoted=promoted) if promoted or key.nice else key.priority)
        if not promoted and due < self._next:
            self._next = due
        before = self._levels.get(key)
        if before is not None and before != at:
            self.drop(key)
        self._levels[key] = at
        band = self._bands.get(at)
        if band is None:
            band = self._bands[at] = {}
            self._order = []
        lanes = band.get(ask)
        if lanes is None:
            lanes = band[ask] = {}
        lanes[key] = lane
        if key.duration < self.shortest.get(ask, _FOREVER):
            self.shortest[ask] = key.duration

    def drop(self, key: LaneKey) -> None:
        at = self._levels.pop(key)
        band = self._bands[at]
        del band[key.ask][key]
        if not band[key.ask]:
            del band[key.ask]
        if not band:
            del self._bands[at]
            self._order = []

    def at(self, now: float) -> Iterator[tuple[BandLevel, Band]]:
        """Yield the bands at that time, first to start first; lanes may be added and removed meanwhile."""
        if now >= self._next:  # some are promoted
            self._next = _FOREVER
            for lane in [lane for band in self._bands.values() for lanes in band.values() for lane in lanes.values()]:
                self.put(lane, now)
        last: BandLevel = (_FOREVER, _FOREVER)
        while True:
            if not self._order:
                self._order = sorted(self._bands)
            place = bisect_left(self._order, last) - 1
            if place < 0:
                return
            last = self._order[place]
            yield last, self._bands[last]


_Ranked: TypeAlias = tuple[float, float, JobId, float, JobId, Lane]
_FEW = 100
"""Maximum number of lanes that are sorted at once."""
_SEARCHES = 8
"""Number of searches for the first lane before all are sorted."""


class ScoreScale(NamedTuple):
    """Inputs of scores that are common to all jobs."""

    credited: Mapping[str, float]
    """Maximum credit in seconds of the jobs of each tenant."""
    now: float
    unit: float
    """Seconds of wait that are worth one point."""


class Turns:
    """Lanes of one level, returned in the rank of their heads."""

    def __init__(self, lanes: list[Lane], scale: ScoreScale, promoted_after: float | None = None) -> None:
        """Prepare the lanes; on a level of promoted jobs these have waited for `promoted_after` seconds."""
        self._scale, self._promoted_after = scale, promoted_after
        self._lanes = lanes
        self._scores = self._scored(lanes)
        self._sorted: list[_Ranked] = []
        self._searches = _SEARCHES
        if len(lanes) <= _FEW:
            self._sort()

    def pop(self) -> Lane | None:
        """Remove and return the lane that ranks first; None when there is none left."""
        if self._lanes and not self._searches:
            self._sort()
        if self._lanes:
            self._searches -= 1
            lanes, found = self._lanes, self._scores
            best = min(found)
            place = found.index(best)
            if found.count(best) > 1:
                ties = (n for n, score in enumerate(found) if score == best)
                place = min(ties, key=lambda n: _ranked(lanes[n], best)[:5])
            lane, lanes[place], found[place] = lanes[place], lanes[-1], found[-1]
            lanes.pop()
            found.pop()
            return lane
        return heappop(self._sorted)[-1] if self._sorted else None

    def put(self, lane: Lane) -> None:
        """Add a lane if it is on this level."""
        if self._promoted_after is not None and lane.head.since + self._promoted_after > self._scale.now:
            return
        [score] = self._scored([lane])
        if self._lanes:
            self._lanes.append(lane)
            self._scores.append(score)
        else:
            heappush(self._sorted, _ranked(lane, score))

    def _scored(self, lanes: list[Lane]) -> list[float]:
        """Return the scores; the first lane has the least."""
        if self._promoted_after is not None:
            return [FIRST] * len(lanes)
        credited, now, unit = self._scale
        return scores([(lane.head[0], lane.planned, credited[lane.payer]) for lane in lanes], now, unit)

    def _sort(self) -> None:
        self._sorted = list(map(_ranked, self._lanes, self._scores))
        heapify(self._sorted)
        self._lanes, self._scores = [], []


def _ranked(lane: Lane, score: float) -> _Ranked:
    placed, item = lane.key.placed, lane.head
    if placed is None:
        return (score, item.since, item.id, 0.0, item.id, lane)
    return (score, item.since, placed.beside, placed.tie, item.id, lane)
