"""The waiting jobs of a snapshot in their order: gone through at every look, one by one, so it is in a hurry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from gputui.domain.job import Job
from gputui.domain.policy.fairshare import factors
from gputui.domain.policy.lanes import LaneKey, Waiting
from gputui.domain.policy.look import Look
from gputui.domain.policy.order import topped
from gputui.domain.policy.place import is_plain


class Entry(NamedTuple):
    """A waiting job."""

    job: Job
    key: LaneKey
    item: Waiting


@dataclass(eq=False, slots=True)
class Lineup:
    """Waiting jobs, their lanes and how they wait in them: three lists side by side, with no object a job."""

    jobs: list[Job]
    keys: list[LaneKey]
    items: list[Waiting]

    def __iter__(self) -> Iterator[Entry]:
        return map(Entry, self.jobs, self.keys, self.items)

    def entry(self, place: int) -> Entry:
        """The one of that place."""
        return Entry(self.jobs[place], self.keys[place], self.items[place])

    def by_lane(self) -> Iterable[tuple[LaneKey, list[Waiting]]]:
        """What waits in each lane."""
        lanes: defaultdict[LaneKey, list[Waiting]] = defaultdict(list)
        for key, item in zip(self.keys, self.items, strict=True):
            lanes[key].append(item)
        return lanes.items()

    def at(self, places: Iterable[int]) -> Lineup:
        """Those of these places."""
        jobs, keys, items = self.jobs, self.keys, self.items
        chosen = list(places)
        return Lineup([jobs[n] for n in chosen], [keys[n] for n in chosen], [items[n] for n in chosen])


_waiting: Callable[[tuple[Any, ...]], Waiting] = partial(tuple.__new__, Waiting)
"""The same as the class, called, in half the time."""


def in_order(look: Look) -> Lineup:
    """All waiting jobs, first to start first: in the order of their ranks."""
    jobs = look.waiting
    fair, rules = fair_shares(look, jobs), look.board.rules
    points = {tenant: rules.fair_weight * factor for tenant, factor in fair.items()}
    line = as_they_wait(look, jobs)
    scores = rules.ageing.scores(line.items, [points[key[0]] for key in line.keys], look.second)
    # sorts by one number each, the least important first: a fraction of one sort by four
    places = sorted(range(len(jobs)), key=[job.id for job in jobs].__getitem__)
    places.sort(key=[item[0] for item in line.items].__getitem__)
    places.sort(key=scores.__getitem__)
    if any(item[5] for item in line.items):
        places.sort(key=[-item.topped for item in line.items].__getitem__)
    return line.at(places)


def as_they_wait(look: Look, jobs: list[Job]) -> Lineup:
    """The jobs as they wait in their lanes, in no order yet."""
    plain: dict[tuple[str, int, int], LaneKey] = {}
    base, seconds, keys, items = look.board.rules.base, look.durations.seconds, [], []
    for job in jobs:
        spec = job.spec
        request = spec.gpus
        kind = (spec.tenant, request.minimum, request.maximum)
        if job.array is not None or not is_plain(job):
            key = look.key(job)
        elif (known := plain.get(kind)) is not None:
            key = known
        else:
            key = plain[kind] = look.key(job)
        when = topped(job) if job.topped_at else 0.0
        points = base(job.priority, spec.nice)
        keys.append(key)
        items.append(_waiting((job.submitted_at.timestamp(), job.id, seconds(job), points, job.priority, when)))
    return Lineup(jobs, keys, items)


def fair_shares(look: Look, waiting: Iterable[Job]) -> dict[str, float]:
    """F of every tenant that waits, runs or has run."""
    names = {job.spec.tenant for job in waiting}
    return factors(look.board.ledger.used(look.second), look.board.rules.weights, names)
