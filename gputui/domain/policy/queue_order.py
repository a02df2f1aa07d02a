"""Queue order: the waiting jobs of a snapshot, first to start first; and the use of each tenant, which counts for it.

Every plan processes all of them, so speed matters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import pairwise, takewhile
from typing import NamedTuple, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.job import Job, Placed, Placing
from gputui.domain.job_spec import JobId
from gputui.domain.policy.cluster_state import fair_share_factor, usage_ratios
from gputui.domain.policy.lanes import FIRST, LaneKey, Waiting, credit, level, score, scores
from gputui.domain.policy.placement import is_plain
from gputui.domain.policy.planning_context import PlanningContext
from gputui.domain.runs import Spans, spans_of
from gputui.domain.settings import Settings, TenantSettings
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState


class QueuedJob(NamedTuple):
    """Waiting job, or elements of an array that wait with consecutive ids."""

    job: Job
    key: LaneKey
    item: Waiting


class OrderedQueue(Struct, eq=False):
    """Waiting jobs with their lanes and lane items: three parallel lists, to avoid an object per job.

    An entry of several runs of elements occurs once for each run.
    """

    jobs: list[Job]
    keys: list[LaneKey]
    items: list[Waiting]

    def __iter__(self) -> Iterator[QueuedJob]:
        return map(QueuedJob, self.jobs, self.keys, self.items)

    def entry(self, place: int) -> QueuedJob:
        return QueuedJob(self.jobs[place], self.keys[place], self.items[place])

    def ids(self) -> tuple[JobId, ...]:
        """Return the ids of the jobs and entries, each once."""
        return tuple(dict.fromkeys([job.id for job in self.jobs]))

    def at(self, places: Iterable[int]) -> OrderedQueue:
        jobs, keys, items = self.jobs, self.keys, self.items
        chosen = list(places)
        return OrderedQueue([jobs[n] for n in chosen], [keys[n] for n in chosen], [items[n] for n in chosen])


_Kind: TypeAlias = tuple[str, int, int, int, float, int]
"""Tenant, fewest and most GPUs, priority, planned seconds, nice; jobs that differ in nothing else share a lane."""


class _Seen(NamedTuple):
    job: Job
    kind: _Kind | None
    """Kind of the request; None if it has requirements beyond these numbers."""
    planned: float
    items: tuple[Waiting, ...]
    """Empty unless its eligible wait simply grows with the clock."""


class OrderCache(Struct, eq=False):
    """Cache of jobs' lane items, kept between plans: it saves work and does not change results.

    A cached item is valid for the identical job object only.
    """

    _basis: object = None
    _seen: dict[JobId, _Seen] = field(default_factory=dict)

    def at(self, context: PlanningContext) -> dict[JobId, _Seen]:
        """Return the part that is still valid for this plan, to be extended."""
        basis = context.durations.basis
        if len(self._seen) > 2 * len(context.waiting) + _FEW:
            self._seen = {}
        elif basis != self._basis:  # a job has ended, so that jobs of its kind have another planned runtime
            for job_id, seen in self._seen.items():
                planned = context.durations.seconds(seen.job)
                if planned != seen.planned:
                    self._seen[job_id] = _Seen(seen.job, _kind(seen.job, planned), planned, seen.items)
        self._basis = basis
        return self._seen


_FEW = 1000


def order_queue(context: PlanningContext, known: OrderCache | None = None) -> OrderedQueue:
    """Return all waiting jobs by rank, first to start first."""
    line = queue_lanes(context, context.waiting, known.at(context) if known else None)
    items = line.items
    # one sort per key, the least important first, is several times faster than one sort by all keys
    places = sorted(range(len(items)), key=[item.id for item in items].__getitem__)
    if any(key.placed for key in line.keys):
        ties = [
            (placed.beside, placed.tie) if (placed := key.placed) else (item.id, 0.0)
            for key, item in zip(line.keys, line.items, strict=True)
        ]
        places.sort(key=ties.__getitem__)
    since = [item.since for item in items]
    places.sort(key=since.__getitem__)
    levels, found = _ranks(context, line)
    places.sort(key=found.__getitem__)
    places.sort(key=levels.__getitem__)
    if any(key.topped for key in line.keys):
        places.sort(key=[-key.topped for key in line.keys].__getitem__)
    return line.at(places)


def _ranks(context: PlanningContext, line: OrderedQueue) -> tuple[list[float], list[float]]:
    """Return level and score of each; the highest are the least."""
    credited, now, after = credit_by_tenant(context, line), context.second, context.cluster.rules.promote_after
    waits = [
        (item.since, key.duration, credited[key.tenant])
        if (placed := key.placed) is None
        else (item.since, placed.planned, credited[placed.tenant])
        for key, item in zip(line.keys, line.items, strict=True)
    ]
    found = scores(waits, now, context.cluster.rules.age_unit)
    if min((item.since for item in line.items), default=now) + after > now:  # no job is promoted
        return [-level(key[2], key[4]) if key[4] else -key[2] for key in line.keys], found
    promoted = [item.since + after <= now for item in line.items]
    return (
        [-level(key.priority, key.nice, promoted=is_up) for key, is_up in zip(line.keys, promoted, strict=True)],
        [FIRST if is_up else score for is_up, score in zip(promoted, found, strict=True)],
    )


def queue_lanes(context: PlanningContext, jobs: Iterable[Job], seen: dict[JobId, _Seen] | None = None) -> OrderedQueue:
    """Return the jobs as items of their lanes, unsorted; adds new ones to `seen`."""
    seen = {} if seen is None else seen
    lanes: dict[_Kind, LaneKey] = {}
    seconds, asks = context.durations.seconds, context.gpus.asks
    found: list[Job] = []
    keys: list[LaneKey] = []
    items: list[Waiting] = []
    for job in jobs:
        had = seen.get(job.id)
        if had is None or had.job is not job:
            spec, began, planned = job.spec, job.waiting_since or job.submitted_at, seconds(job)
            moves = (
                job.waited or job.held or job.not_before or job.placed or spec.begin_at or spec.after or spec.after_any
            )
            is_fixed = not moves and began <= context.now and job.state is JobState.PENDING
            fixed = _waiting(job, began.timestamp()) if is_fixed else ()  # the result of `since`, much faster
            had = seen[job.id] = _Seen(job, _kind(job, planned), planned, fixed)
        _, kind, planned, waiting = had
        key = lanes.get(kind) if kind is not None else None
        if key is None and kind is not None:
            tenant, fewest, most, priority, _, nice = kind
            ask = asks.get((fewest, most)) or context.gpus.ask(job)
            key = lanes[kind] = LaneKey(tenant, ask, priority, planned, nice)
        elif key is None:
            key = context.key(job, planned)
        for item in waiting or _waiting(job, context.since(job)):
            found.append(job)
            keys.append(key)
            items.append(item)
    return OrderedQueue(found, keys, items)


def _waiting(job: Job, since: float) -> tuple[Waiting, ...]:
    if not job.runs:
        return (Waiting(since, job.id),)
    return tuple(Waiting(since, run.id, run.count) for run in job.runs)


def _kind(job: Job, planned: float) -> _Kind | None:
    """Return the numbers that identify its lane; None if it has requirements beyond these numbers."""
    request = job.spec.gpus
    if job.topped_at or job.placed or not is_plain(job) or (job.array is not None and job.array.limit is not None):
        return None
    return (job.spec.tenant, request.minimum, request.maximum, job.priority, planned, max(0, job.spec.nice))


def credit_by_tenant(context: PlanningContext, line: OrderedQueue) -> dict[str, float]:
    """Return the credited seconds for the jobs of every tenant in line, or beside whose jobs others are placed."""
    placed = {key.placed.tenant: 0.0 for key in line.keys if key.placed}
    used = placed | usage_by_tenant(context, context.waiting)
    return {tenant: credit(ratio, context.settings.policy) for tenant, ratio in used.items()}


def usage_by_tenant(context: PlanningContext, waiting: Iterable[Job]) -> dict[str, float]:
    """Return U/S of every tenant with jobs waiting, running or past."""
    names = {job.spec.tenant for job in waiting}
    return usage_ratios(context.cluster.ledger.used(context.second), context.cluster.rules.weights, names)


class TenantUsage(Struct, frozen=True):
    """A tenant's weight and caps, and its use of them."""

    tenant: TenantSettings
    source: str | None
    """`file` or `command`; None: nothing is set for it, but it has or had jobs."""
    gpus: int
    """Number of GPUs that it holds."""
    running: int
    pending: int
    fair_share: float
    """F: 1 used nothing, 0.5 exactly its share."""
    gpu_seconds: float
    """GPU-seconds used, older use decayed."""


def tenant_usage(snapshot: Snapshot, settings: Settings, now: datetime) -> tuple[TenantUsage, ...]:
    """Return the usage of every tenant that is configured, or has or had jobs, by name."""
    context = PlanningContext.at(snapshot, settings, now)
    waiting = [job for job in snapshot.jobs if job.state is JobState.PENDING]
    pending: Counter[str] = Counter()
    for job in waiting:
        pending[job.spec.tenant] += job.count
    active = [job for job in snapshot.jobs if job.state.is_active]
    running = Counter(job.spec.tenant for job in active)
    gpus: Counter[str] = Counter()
    for job in active:
        gpus[job.spec.tenant] += len(job.gpus)
    known = {tenant.name: tenant for tenant in context.settings.policy.tenants}
    ratios, used = usage_by_tenant(context, waiting), context.cluster.ledger.used(context.second)
    commanded = {tenant.name for tenant in snapshot.controls.tenants}

    def of(name: str) -> TenantUsage:
        source = "command" if name in commanded else "file" if name in known else None
        tenant = known.get(name) or TenantSettings(name)
        share, seconds = fair_share_factor(ratios.get(name, 0.0)), used.get(name, 0.0)
        return TenantUsage(tenant, source, gpus[name], running[name], pending[name], share, seconds)

    return tuple(map(of, sorted({*known, *ratios, *running})))


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
    credited, policy = credit_by_tenant(context, line), context.settings.policy
    found: dict[JobId, QueueStanding] = {}
    for job, key, item in line:
        if job.id not in found:
            payer, planned = key.stands
            points = score(max(0.0, context.second - item.since), planned, credited[payer], policy)
            found[job.id] = QueueStanding(job, key, item.since, points)
    return list(found.values())


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
    net, refusal = 0, ""
    for step in steps:
        refusal = ""
        if -up_at <= net + step <= len(resting) - down_at:
            net += step
        else:
            refusal = "already first" if step < 0 else "already last"
    if not net:
        return Move(refusal=refusal)
    target = (up_at if net < 0 else down_at) + net
    found = _rows_passed(before or order, [*resting[:target], *moving, *resting[target:]], moving)
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


def _before(resting: Sequence[QueueStanding], target: int, moving: Sequence[QueueStanding]) -> tuple[Placing, ...]:
    other = resting[target]
    root, high = other.first
    low = high - len(moving) - 1
    if target and (neighbour := resting[target - 1]).group == other.group and neighbour.last[0] == root:
        low = neighbour.last[1]
    return _between(other, root, low, high, moving)


def _behind(resting: Sequence[QueueStanding], target: int, moving: Sequence[QueueStanding]) -> tuple[Placing, ...]:
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


def _rows_passed(
    before: Sequence[QueueStanding], after: Sequence[QueueStanding], moving: Sequence[QueueStanding]
) -> Move:
    """Return the total number of rows passed, and the nearest of them."""
    mine = moving[0].job
    ups = _ahead(before, mine) - _ahead(after, mine)
    if ups:
        return Move(past=next(each.job.id for each in after if each.job.id in ups), passes=len(ups), step=-1)
    downs = _ahead(before[::-1], moving[-1].job) - _ahead(after[::-1], moving[-1].job)
    nearest = next((each.job.id for each in after[::-1] if each.job.id in downs), None)
    return Move(past=nearest, passes=len(downs), step=1)


def _ahead(order: Iterable[QueueStanding], job: Job) -> set[JobId]:
    return {each.job.id for each in takewhile(lambda each: not each.job.has(job.id), order)}
