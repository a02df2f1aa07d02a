"""The waiting jobs of a snapshot in their order: gone through at every look, one by one, so it is in a hurry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from gputui.domain.job import Job, JobId
from gputui.domain.policy.board import Rules
from gputui.domain.policy.durations import Durations
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


_Kind: TypeAlias = tuple[str, int, int]
"""Tenant, fewest and most GPUs: the same lane for all that ask for no more than that."""
_Seen: TypeAlias = dict[JobId, tuple[Job, _Kind | None, Waiting]]


class Known:
    """How jobs were found to wait, kept from one look to the next: it saves work, and changes no outcome.

    It holds for a job as long as that is the very same object.
    """

    def __init__(self) -> None:
        self._weight: tuple[float, ...] = ()
        self._basis: object = None
        self._seen: _Seen = {}

    def at(self, look: Look) -> _Seen:
        """What still holds at this look, to be added to."""
        rules, basis = look.board.rules, look.durations.basis
        weight = (rules.class_weight, rules.per_second, rules.most_off)
        if weight != self._weight or len(self._seen) > 2 * len(look.waiting) + _FEW:
            self._seen = {}
        elif basis != self._basis:  # some job has ended, and those like it are planned to run as long
            self._plan_anew(look.durations, rules)
        self._weight, self._basis = weight, basis
        return self._seen

    def _plan_anew(self, durations: Durations, rules: Rules) -> None:
        for job_id, (job, kind, item) in self._seen.items():
            planned = durations.seconds(job)
            if planned != item[2]:
                base = rules.base(job.priority, job.spec.nice, planned)
                self._seen[job_id] = (job, kind, _waiting((item[0], item[1], planned, base, *item[4:])))


_FEW = 1000
_waiting: Callable[[tuple[Any, ...]], Waiting] = partial(tuple.__new__, Waiting)
"""The same as the class, called, in half the time."""


def in_order(look: Look, known: Known | None = None) -> Lineup:
    """All waiting jobs, first to start first: in the order of their ranks."""
    jobs = look.waiting
    fair, rules = fair_shares(look, jobs), look.board.rules
    points = {tenant: rules.fair_weight * factor for tenant, factor in fair.items()}
    line = as_they_wait(look, jobs, (known or Known()).at(look))
    scores = rules.ageing.scores(line.items, [points[key[0]] for key in line.keys], look.second)
    # sorts by one number each, the least important first: a fraction of one sort by four
    places = sorted(range(len(jobs)), key=[job.id for job in jobs].__getitem__)
    places.sort(key=[item[0] for item in line.items].__getitem__)
    places.sort(key=scores.__getitem__)
    if any(item[5] for item in line.items):
        places.sort(key=[-item.topped for item in line.items].__getitem__)
    return line.at(places)


def as_they_wait(look: Look, jobs: list[Job], seen: _Seen | None = None) -> Lineup:
    """The jobs as they wait in their lanes, in no order yet; what was not `seen` before is added to that."""
    seen = {} if seen is None else seen
    lanes: dict[_Kind | None, LaneKey] = {}
    rules, seconds, keys, items = look.board.rules, look.durations.seconds, [], []
    for job in jobs:
        had = seen.get(job.id)
        if had is None or had[0] is not job:
            had = seen[job.id] = (job, _kind(job), _as_it_waits(job, seconds(job), rules))
        key = lanes.get(had[1])
        if key is None:
            key = look.key(job)
            if had[1] is not None:
                lanes[had[1]] = key
        keys.append(key)
        items.append(had[2])
    return Lineup(jobs, keys, items)


def _as_it_waits(job: Job, seconds: float, rules: Rules) -> Waiting:
    base = rules.base(job.priority, job.spec.nice, seconds)
    when = topped(job) if job.topped_at else 0.0
    return _waiting((job.submitted_at.timestamp(), job.id, seconds, base, job.priority, when))


def _kind(job: Job) -> _Kind | None:
    """What its lane is known by; None when it asks for more than numbers."""
    request = job.spec.gpus
    if not is_plain(job) or (job.array is not None and job.array.limit is not None):
        return None
    return (job.spec.tenant, request.minimum, request.maximum)


def fair_shares(look: Look, waiting: Iterable[Job]) -> dict[str, float]:
    """F of every tenant that waits, runs or has run."""
    names = {job.spec.tenant for job in waiting}
    return factors(look.board.ledger.used(look.second), look.board.rules.weights, names)
