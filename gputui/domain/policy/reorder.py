"""What it takes to put a waiting job before or behind its neighbour: a priority, if any will do."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from gputui.domain.job import MAX_PRIORITY, NORMAL_PRIORITY, Job, JobId
from gputui.domain.policy.lineup import fair_shares, in_order
from gputui.domain.policy.look import Look
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot


class Standing(NamedTuple):
    """A waiting job in its place."""

    job: Job
    topped: float
    """When it was put on top by hand; 0 when it was not. It decides before the score."""
    score: float


@dataclass(frozen=True)
class Move:
    """What changes places, or why nothing does."""

    delta: int = 0
    """How much more priority; 0: nothing is to be done."""
    past: JobId | None = None
    """The neighbour that it goes past."""
    passes: int = 0
    """How many jobs it goes past with that, the neighbour among them."""
    refusal: str = ""


def standings(snapshot: Snapshot, settings: Settings, now: datetime) -> list[Standing]:
    """The waiting jobs, first to start first, each with the score that the plan orders by."""
    look = Look.at(snapshot, settings, now)
    rules, second = look.board.rules, look.second
    fair = fair_shares(look, look.waiting)
    found = []
    for entry in in_order(look):
        item, points = entry.item, rules.fair_weight * fair[entry.job.spec.tenant]
        age = min(rules.ageing.most, rules.ageing.slope * max(0.0, second - item.submitted))
        found.append(Standing(entry.job, item.topped, item.base + age + points))
    return found


def move(order: list[Standing], job_ids: Collection[JobId], step: int, settings: Settings) -> Move:
    """One place up (-1) or down (1) of jobs that stand together, by the least change of priority that does it."""
    places = [place for place, standing in enumerate(order) if standing.job.id in job_ids]
    if not places:
        return Move(refusal="only a waiting job has a place in the queue")
    here = order[places[0] if step < 0 else places[-1]]
    at = places[0] - 1 if step < 0 else places[-1] + 1
    if not 0 <= at < len(order):
        return Move(refusal="it is first already" if step < 0 else "it is last already")
    return _past(order, here, order[at], step, settings.policy.class_weight / NORMAL_PRIORITY)


def _past(order: list[Standing], here: Standing, other: Standing, step: int, per_point: float) -> Move:
    if other.topped and step < 0:
        return Move(refusal=f"job {other.job.id} was put at the head of the queue: only that puts another before it")
    if here.topped and other.topped:
        return Move(refusal=f"job {other.job.id} is at the head of the queue too, and was put there earlier")
    if not per_point:
        return Move(refusal="priorities weigh nothing here: policy.class_weight is 0")
    gap = abs(other.score - here.score) if not here.topped else max(0.0, here.score - other.score)
    delta = (math.floor(gap / per_point) + 1) * -step
    priority = here.job.priority + delta
    if not 0 <= priority <= MAX_PRIORITY:
        return Move(past=other.job.id, refusal=_too_far(here, other, step))
    score = here.score + delta * per_point
    return Move(delta, other.job.id, _passed(order, here, score, step))


def _passed(order: list[Standing], here: Standing, score: float, step: int) -> int:
    if step < 0:
        return sum(score > each.score >= here.score and not each.topped for each in order if each is not here)
    return sum(each.score > score for each in order[order.index(here) + 1 :])


def _too_far(here: Standing, other: Standing, step: int) -> str:
    gap = abs(other.score - here.score)
    most, word = (MAX_PRIORITY, "before") if step < 0 else (0, "behind")
    why = "by what it waited, its tenant's share and its length"
    hint = "; put it at the head of the queue instead" if step < 0 else "; hold it instead"
    return f"not even priority {most} puts it {word} job {other.job.id}, which is {gap:.0f} points off {why}{hint}"
