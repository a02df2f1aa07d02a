"""What it takes to put a waiting job before or behind its neighbour: a priority, if any will do."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
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
    """Whom it comes to stand beside, and was on the other side of."""
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


def drag(
    order: list[Standing], job_ids: Collection[JobId], steps: Iterable[int], settings: Settings, delta: int = 0
) -> Move:
    """Places up (-1) and down (1), one after another, of jobs that are thought to have `delta` more priority already.

    What is found is in all, `delta` included; where a step cannot be made, its refusal is told, and how far it came.
    """
    here, found = _with(order, job_ids, delta, settings), Move(delta)
    for step in steps:
        one = move(here, job_ids, step, settings)
        if one.refusal:
            return replace(found, refusal=one.refusal)
        delta += one.delta
        here = _with(order, job_ids, delta, settings)
        found = _come_to(order, here, job_ids, delta)
    return found


def _with(order: list[Standing], job_ids: Collection[JobId], delta: int, settings: Settings) -> list[Standing]:
    """The order, were those jobs given so much more priority."""
    if not delta:
        return order
    per_point = settings.policy.class_weight / NORMAL_PRIORITY

    def given(standing: Standing) -> Standing:
        job = standing.job.prioritised(delta, relative=True)
        return Standing(job, 0.0, standing.score + (job.priority - standing.job.priority) * per_point)

    changed = [given(standing) if standing.job.id in job_ids else standing for standing in order]
    return sorted(changed, key=lambda each: (-each.topped, -each.score, each.job.submitted_at, each.job.id))


def _come_to(before: list[Standing], after: list[Standing], job_ids: Collection[JobId], delta: int) -> Move:
    """The move in all: past which it comes to stand, and how many it goes past; none where it is in its place again."""
    if ups := _before(before, job_ids) - _before(after, job_ids):
        nearest = next(each.job.id for each in after if each.job.id in ups)
        return Move(delta, nearest, len(ups))
    downs = _before(before[::-1], job_ids) - _before(after[::-1], job_ids)
    return Move(delta, next((each.job.id for each in after[::-1] if each.job.id in downs), None), len(downs))


def _before(order: Iterable[Standing], job_ids: Collection[JobId]) -> set[JobId]:
    """The jobs before the first of those."""
    return {each.job.id for each in takewhile(lambda each: each.job.id not in job_ids, order)}


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
