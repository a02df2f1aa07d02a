"""Order of lanes: by level, then by score, so that a pass examines only those that may be next."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import NamedTuple, TypeAlias

from gputui.domain.job_spec import JobId
from gputui.domain.policy.gpus.placement import Ask
from gputui.domain.policy.lanes import Lane, LaneKey
from gputui.domain.policy.order import FIRST, level, scores

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
        """Remove the lane with that key."""
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
        if now >= self._next:
            self._promote(now)
        last: BandLevel = (_FOREVER, _FOREVER)
        while True:
            if not self._order:
                self._order = sorted(self._bands)
            place = bisect_left(self._order, last) - 1
            if place < 0:
                return
            last = self._order[place]
            yield last, self._bands[last]

    def _promote(self, now: float) -> None:
        self._next = _FOREVER
        for lane in [lane for band in self._bands.values() for lanes in band.values() for lane in lanes.values()]:
            self.put(lane, now)


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
            return self._found()
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

    def _found(self) -> Lane:
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

    def _sort(self) -> None:
        self._sorted = list(map(_ranked, self._lanes, self._scores))
        heapify(self._sorted)
        self._lanes, self._scores = [], []


def _ranked(lane: Lane, score: float) -> _Ranked:
    placed, item = lane.key.placed, lane.head
    if placed is None:
        return (score, item.since, item.id, 0.0, item.id, lane)
    return (score, item.since, placed.beside, placed.tie, item.id, lane)
