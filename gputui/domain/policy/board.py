"""Everything a decision is made from, in numbers: what the scheduler, the forecast and the replay all keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gputui.domain.job import NORMAL_PRIORITY, JobId
from gputui.domain.policy.fairshare import Ledger, factors
from gputui.domain.policy.lanes import Ageing, Lane, LaneKey, Waiting
from gputui.domain.policy.machine import Ask, Grant, Layout, size
from gputui.domain.policy.sharing import Shares, chosen, places, usable
from gputui.domain.settings import PolicySettings, TenantSettings

if TYPE_CHECKING:
    from gputui.domain.policy.preempt import Victims

OVERRUN = 60.0
"""Seconds a job is given at least when it has outrun what was planned."""


@dataclass(eq=False, slots=True)
class Run:
    """A job that holds GPUs."""

    id: JobId
    key: LaneKey
    priority: int
    grant: Grant
    started: float
    duration: float
    """Seconds it is planned to run."""
    gpu_share: float = 1.0
    """What of each GPU it is charged with."""
    leaving: float | None = None
    """When the grace of one that was told to end is over."""
    width: int = 0
    """How many GPUs it holds: more than its grant where some of them are drained, which nobody gets after it."""

    @property
    def charge(self) -> float:
        """GPUs it is charged with."""
        return self.width * self.gpu_share

    def ends(self, now: float) -> float:
        """When it is expected to end: doubled each time it outruns that, so that it lies ahead always."""
        if self.leaving is not None:
            return max(self.leaving, now + 1.0)
        duration = self.duration
        if self.started + duration > now:
            return self.started + duration
        duration = max(duration, OVERRUN)
        while self.started + duration <= now:
            duration *= 2
        return self.started + duration


def leave(run: Run, free: list[int], shares: Shares) -> None:
    """Make free what nobody holds any more once the job has left."""
    if run.key.ask.share:
        for node, bit in shares.give(run.id, run.grant):
            free[node] |= bit
    else:
        for node, mask in run.grant:
            free[node] |= mask


@dataclass(frozen=True)
class Keep:
    """GPUs kept for somebody for a time."""

    name: str
    start: float
    end: float
    masks: tuple[int, ...]
    tenant: str | None
    priority: int | None

    def admits(self, tenant: str, priority: int) -> bool:
        """Whether it is kept for such jobs."""
        return (self.tenant is not None and tenant == self.tenant) or (
            self.priority is not None and priority >= self.priority
        )


@dataclass(frozen=True)
class Rules:
    """The settings, in the numbers a decision needs."""

    class_weight: float = 1000.0
    ageing: Ageing = Ageing(1000.0 / 86400)
    fair_weight: float = 500.0
    patience: float = 300.0
    standing_priority: int | None = None
    cpu_jobs: int = 8
    weights: Mapping[str, float] = field(default_factory=dict)
    caps: Mapping[str, TenantSettings] = field(default_factory=dict)
    per_second: float = 0.0
    """Points taken off for each second a job is planned to run, at most `most_off`."""
    most_off: float = 0.0

    @classmethod
    def of(cls, settings: PolicySettings, cpu_jobs: int = 8) -> Rules:
        """The rules that the settings state."""
        return cls(
            settings.class_weight,
            Ageing(
                settings.age_weight / settings.age_unit.total_seconds(),
                float("inf") if settings.age_cap is None else settings.age_weight * settings.age_cap,
            ),
            settings.fair_weight,
            settings.patience.total_seconds(),
            settings.standing_priority,
            cpu_jobs,
            {tenant.name: tenant.weight for tenant in settings.tenants},
            {tenant.name: tenant for tenant in settings.tenants},
            settings.duration_weight / settings.age_unit.total_seconds(),
            settings.duration_weight * settings.duration_cap,
        )

    def base(self, priority: int, nice: int, planned: float) -> float:
        """Points of a job that do not change; `planned` are the seconds it is planned to run."""
        off = min(self.most_off, self.per_second * planned)
        return self.class_weight * priority / NORMAL_PRIORITY - nice - off


class Board:
    """The state of play. `start`, `end` and `add` are its only moves."""

    def __init__(self, rules: Rules, layouts: Sequence[Layout], free: Sequence[int], ledger: Ledger) -> None:
        self.rules = rules
        self.layouts = tuple(layouts)
        self.free = list(free)
        self.settling = (0,) * len(self.layouts)
        """Of each node, GPUs given back a moment ago that have not been read as free yet."""
        self.ledger = ledger
        self.lanes: dict[LaneKey, Lane] = {}
        self.runs: dict[JobId, Run] = {}
        self.keeps: tuple[Keep, ...] = ()
        self.shares = Shares()
        self.gpus_held: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self.by_array: Counter[JobId] = Counter()
        self.cpu_running = 0
        self.victims: Victims | None = None
        """Who may be preempted at this look; a copy of the board, which is played on into the future, has none."""
        self.tenants: frozenset[str] = frozenset()
        """Those who wait, for whatever: all of them share what there is."""

    def copy(self) -> Board:
        """A board to play on without changing this one."""
        other = Board(self.rules, self.layouts, self.free, self.ledger.copy())
        other.lanes = {key: lane.copy() for key, lane in self.lanes.items()}
        other.runs = dict(self.runs)
        other.settling = self.settling
        other.keeps, other.shares = self.keeps, self.shares.copy()
        other.gpus_held, other.running = self.gpus_held.copy(), self.running.copy()
        other.by_array, other.cpu_running, other.tenants = self.by_array.copy(), self.cpu_running, self.tenants
        return other

    def lane(self, key: LaneKey) -> Lane:
        """The lane of such jobs."""
        found = self.lanes.get(key)
        if found is None:
            found = self.lanes[key] = Lane(key, self.rules.ageing)
        return found

    def add(self, key: LaneKey, item: Waiting) -> None:
        """A job begins to wait."""
        self.lane(key).add(item)

    def hold(self, run: Run) -> None:
        """A job runs: its GPUs are not free, whatever was read of them before it began."""
        key, gpus = run.key, run.width
        for node, mask in run.grant:
            self.free[node] &= ~mask
        self.runs[run.id] = run
        self.running[key.tenant] += 1
        self.gpus_held[key.tenant] += gpus
        self.cpu_running += not key.ask.maximum
        self.ledger.begin(key.tenant, run.charge, run.started)
        if key.array is not None:
            self.by_array[key.array] += 1

    def start(self, lane: Lane, item: Waiting, grant: Grant, now: float) -> Run:
        """A waiting job, taken out of its lane already, takes GPUs that are free."""
        ask, width = lane.key.ask, size(grant)
        run = Run(
            item.id, lane.key, item.priority, grant, now, item.duration, self.shares.part(ask, grant), width=width
        )
        for place in places(grant) if ask.share else ():
            self.shares.take(run.id, place, ask.share)
        self.hold(run)
        return run

    def end(self, job_id: JobId, now: float) -> Run:
        """A job gives its GPUs back."""
        run = self.runs.pop(job_id)
        key, gpus = run.key, run.width
        leave(run, self.free, self.shares)
        self.running[key.tenant] -= 1
        self.gpus_held[key.tenant] -= gpus
        self.cpu_running -= not key.ask.maximum
        self.ledger.end(key.tenant, run.charge, now)
        if key.array is not None:
            self.by_array[key.array] -= 1
        return run

    def usable(self, ask: Ask) -> list[int]:
        """Of each node, the GPUs that such a job could have now."""
        return usable(self.free, self.shares, ask)

    def choose(self, masks: Sequence[int], ask: Ask, need: int, most: int) -> Grant | None:
        """Which of these it takes, at least `need` of them; None when they are too few."""
        return chosen(masks, self.shares, ask, need, most, self.layouts)

    def fair(self, now: float) -> dict[str, float]:
        """F of each tenant that waits, runs or has run."""
        waiting = (key.tenant for key, lane in self.lanes.items() if lane.items)
        return factors(self.ledger.used(now), self.rules.weights, self.tenants.union(waiting))
