"""The waiting jobs of a snapshot in their order: gone through at every look, one by one, so it is in a hurry."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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


_entry: Callable[[tuple[Any, ...]], Entry] = partial(tuple.__new__, Entry)
_waiting: Callable[[tuple[Any, ...]], Waiting] = partial(tuple.__new__, Waiting)
"""The same as the classes, called, in half the time."""


def in_order(look: Look) -> list[Entry]:
    """All waiting jobs, first to start first: in the order of their ranks."""
    jobs = look.waiting
    fair, rules = fair_shares(look, jobs), look.board.rules
    entries = _entries(look, jobs)
    points = {tenant: rules.fair_weight * factor for tenant, factor in fair.items()}
    scores = rules.ageing.scores([(item, points[key.tenant]) for _, key, item in entries], look.second)
    # three sorts by one number each, the least important first: a fraction of one sort by four
    places = sorted(range(len(entries)), key=[job.id for job in jobs].__getitem__)
    places.sort(key=[item[0] for _, _, item in entries].__getitem__)
    places.sort(key=scores.__getitem__)
    if any(job.topped_at for job in jobs):
        places.sort(key=[-item.topped for _, _, item in entries].__getitem__)
    return [entries[place] for place in places]


def _entries(look: Look, jobs: Iterable[Job]) -> list[Entry]:
    """The jobs as they wait in their lanes."""
    plain: dict[tuple[str, int, int], LaneKey] = {}
    base, seconds, entries = look.board.rules.base, look.durations.seconds, []
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
        item = _waiting((job.submitted_at.timestamp(), job.id, seconds(job), points, job.priority, when))
        entries.append(_entry((job, key, item)))
    return entries


def fair_shares(look: Look, waiting: Iterable[Job]) -> dict[str, float]:
    """F of every tenant that waits, runs or has run."""
    names = {job.spec.tenant for job in waiting}
    return factors(look.board.ledger.used(look.second), look.board.rules.weights, names)
