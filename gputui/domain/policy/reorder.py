"""Moving waiting jobs by hand: the place beside another job, which is kept as both age.

A job that is placed beside another gets that job's priority and score parameters, and a tie breaker for the side. So
both have the same rank at all times, and no other job changes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from itertools import pairwise, takewhile
from typing import NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.job import Job, Placed, Placing
from gputui.domain.job_spec import JobId
from gputui.domain.policy.lanes import LaneKey, Waiting, score
from gputui.domain.policy.planning_context import PlanningContext
from gputui.domain.policy.queue_order import OrderedQueue, credit_by_tenant, order_queue
from gputui.domain.runs import Spans, spans_of
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot

Root: TypeAlias = tuple[JobId, float]
"""Job whose rank a job has, and the side of it."""


class QueueStanding(NamedTuple):
    """Waiting job, or entry of an array, in its place in the order."""

    job: Job
    key: LaneKey
    since: float
    """Second since the epoch from which it counts as eligible."""
    score: float

    @property
    def group(self) -> tuple[object, ...]:
        """Parts of its rank except its root; jobs with the same group stay together at all times."""
        key = self.key
        return (key.topped, key.priority, key.nice, self.since, key.stands)

    @property
    def first(self) -> Root:
        """Root of its first job."""
        placed = self.key.placed
        return (placed.beside, placed.tie) if placed else (self.job.id, 0.0)

    @property
    def last(self) -> Root:
        placed, runs = self.key.placed, self.job.runs
        if placed:
            return (placed.beside, placed.tie)
        return (runs[-1].end - 1, 0.0) if runs else (self.job.id, 0.0)


class Move(Struct, frozen=True):
    """New places of jobs, or the reason why they have none."""

    places: tuple[Placing, ...] | None = None
    """New places; None: no change of places; empty: back to the original places."""
    past: JobId | None = None
    """Job that they move past and are then beside."""
    passes: int = 0
    """Number of rows that they move past, including the neighbour."""
    step: int = 0
    """-1 up, 1 down."""
    refusal: str = ""


def queue_standings(snapshot: Snapshot, settings: Settings, now: datetime) -> list[QueueStanding]:
    """Return the waiting jobs, first to start first, each with its score parameters."""
    context = PlanningContext.at(snapshot, settings, now)
    line = order_queue(context)
    scores = _scores(context, line)
    found: dict[JobId, QueueStanding] = {}
    for job, key, item in line:
        if job.id not in found:
            found[job.id] = QueueStanding(job, key, item.since, scores(key, item))
    return list(found.values())


def _scores(context: PlanningContext, line: OrderedQueue) -> Callable[[LaneKey, Waiting], float]:
    credited, policy = credit_by_tenant(context, line), context.settings.policy

    def points(key: LaneKey, item: Waiting) -> float:
        payer, planned = key.stands
        return score(max(0.0, context.second - item.since), planned, credited[payer], policy)

    return points


def move_by_steps(
    order: Sequence[QueueStanding],
    job_ids: Collection[JobId],
    steps: Iterable[int],
    before: Sequence[QueueStanding] | None = None,
) -> Move:
    """Return the move of jobs up (-1) or down (1) by these steps, one after another.

    Several jobs end up together, in their present order. `before` is the order against which the move is described, if
    that is another one. Impossible steps are skipped.
    """
    resting, moving, up_at, down_at = _parted(order, spans_of(job_ids))
    if not moving:
        return Move(refusal="only a waiting job has a place in the queue")
    net, refusal = _net(steps, -up_at, len(resting) - down_at)
    if not net:
        return Move(refusal=refusal)
    target = (up_at if net < 0 else down_at) + net
    found = _told(before or order, [*resting[:target], *moving, *resting[target:]], moving)
    if not found.passes:
        return replace(found, places=(), refusal=refusal)
    places = (_before if found.step < 0 else _behind)(resting, target, moving)
    if not places:
        return Move(refusal="jobs were moved past each other here too often: set its priority, or put it on top")
    return replace(found, places=places, refusal=refusal)


def _parted(order: Sequence[QueueStanding], wanted: Spans) -> tuple[list[QueueStanding], list[QueueStanding], int, int]:
    """Return the resting and the moving jobs, and how many rest before the first and before the last moving one."""
    resting: list[QueueStanding] = []
    moving: list[QueueStanding] = []
    up_at = down_at = 0
    for standing in order:
        taken, left = standing.job.divided(wanted)
        if taken is not None:
            moving.append(standing._replace(job=taken))
            up_at = up_at if len(moving) > 1 else len(resting)
        if left is not None:
            resting.append(standing._replace(job=left))
        if taken is not None:
            down_at = len(resting)  # the rest of its entry is not a neighbour
    return resting, moving, up_at, down_at


def _net(steps: Iterable[int], least: int, most: int) -> tuple[int, str]:
    """Return the sum of the steps, limited to the queue, and why the last step was impossible."""
    net, refusal = 0, ""
    for step in steps:
        refusal = ""
        if least <= net + step <= most:
            net += step
        else:
            refusal = "already first" if step < 0 else "already last"
    return net, refusal


def _before(resting: Sequence[QueueStanding], target: int, moving: Sequence[QueueStanding]) -> tuple[Placing, ...]:
    """Return the places just before a job."""
    other = resting[target]
    root, high = other.first
    low = high - len(moving) - 1
    if target and (neighbour := resting[target - 1]).group == other.group and neighbour.last[0] == root:
        low = neighbour.last[1]
    return _between(other, root, low, high, moving)


def _behind(resting: Sequence[QueueStanding], target: int, moving: Sequence[QueueStanding]) -> tuple[Placing, ...]:
    """Return the places just behind a job."""
    other = resting[target - 1]
    root, low = other.last
    high = low + len(moving) + 1
    if target < len(resting) and (neighbour := resting[target]).group == other.group and neighbour.first[0] == root:
        high = neighbour.first[1]
    return _between(other, root, low, high, moving)


def _between(
    other: QueueStanding, root: JobId, low: float, high: float, moving: Sequence[QueueStanding]
) -> tuple[Placing, ...]:
    """Return the places with ties between these two; None if floats are not fine enough."""
    count = len(moving)
    ties = [low + (high - low) * number / (count + 1) for number in range(count + 2)]
    if any(tie >= following for tie, following in pairwise(ties)):
        return ()
    job, key = other.job, other.key
    placed = Placed(
        past=job.id,
        beside=root,
        tie=0.0,
        since=other.since,
        tenant=key.stands.tenant,
        time_limit=job.placed.time_limit if job.placed else job.spec.time_limit,
        priority=key.priority,
        nice=key.nice,
        topped_at=job.topped_at,
    )
    return tuple(
        Placing(tuple(each.job.ids), replace(placed, tie=tie)) for each, tie in zip(moving, ties[1:-1], strict=True)
    )


def _told(before: Sequence[QueueStanding], after: Sequence[QueueStanding], moving: Sequence[QueueStanding]) -> Move:
    """Return the total number of rows passed, and the nearest of them."""
    mine = moving[0].job
    ups = _ahead(before, mine) - _ahead(after, mine)
    if ups:
        return Move(past=next(each.job.id for each in after if each.job.id in ups), passes=len(ups), step=-1)
    downs = _ahead(before[::-1], moving[-1].job) - _ahead(after[::-1], moving[-1].job)
    nearest = next((each.job.id for each in after[::-1] if each.job.id in downs), None)
    return Move(past=nearest, passes=len(downs), step=1)


def _ahead(order: Iterable[QueueStanding], job: Job) -> set[JobId]:
    """Return the rows before the row that contains this job."""
    return {each.job.id for each in takewhile(lambda each: not each.job.has(job.id), order)}
