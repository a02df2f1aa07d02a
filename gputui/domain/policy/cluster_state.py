"""State of the cluster in numbers, the basis of decisions; with fair share, the GPU-seconds used by each tenant.

Slurm's classic fair share (priority_multifactor, classic_fair_share): F = 2^(-U/S), where U is a tenant's part of all
use and S its part of all weights. F is 1 for a tenant that used nothing and 0.5 for one that used exactly its share.
Use is decayed with age.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct, field

from gputui.domain.job_spec import JobId
from gputui.domain.policy.lanes import Bands, Lane, LaneKey, Waiting, credit, lane_of, with_item, without_item
from gputui.domain.policy.placement import (
    Ask,
    Grant,
    NodeLayout,
    SharedGpus,
    choose_shared,
    gpu_bits,
    size,
    usable_gpus,
)
from gputui.domain.settings import PolicySettings, TenantSettings, Window

_FAR = 500.0
"""Number of half-lives after which the origin is moved, long before a float would overflow."""


class UsageLedger(Struct, eq=False):
    """GPU-seconds by tenant, decayed exactly, including running jobs up to the time of the query.

    A GPU held from a to b is worth, as seen from the origin, K (2^(b/H) - 2^(a/H)) with K = H / ln 2: the integral of
    2^(t/H). So a start subtracts, an end adds, and sums are never recomputed.
    """

    half_life: float
    origin: float
    worth: dict[str, float] = field(default_factory=dict)
    held: dict[str, float] = field(default_factory=dict)

    def copy(self) -> UsageLedger:
        return UsageLedger(self.half_life, self.origin, dict(self.worth), dict(self.held))

    def credit(self, tenant: str, gpu_seconds: float, at: float) -> None:
        """Add earlier use, already decayed to `at`."""
        grown = self._grown(at)  # first, since it may move the origin
        self.worth[tenant] = self.worth.get(tenant, 0.0) + gpu_seconds * grown

    def begin(self, tenant: str, gpus: float, at: float) -> None:
        self._add(tenant, -gpus, at)
        self.held[tenant] = self.held.get(tenant, 0) + gpus

    def end(self, tenant: str, gpus: float, at: float) -> None:
        self._add(tenant, gpus, at)
        self.held[tenant] -= gpus

    def used(self, now: float) -> dict[str, float]:
        """GPU-seconds of each tenant, decayed to `now`."""
        grown = self._grown(now)
        whole = self.half_life / math.log(2)
        return {
            tenant: max(0.0, worth / grown + self.held.get(tenant, 0) * whole) for tenant, worth in self.worth.items()
        }

    def _add(self, tenant: str, gpus: float, at: float) -> None:
        self.credit(tenant, gpus * self.half_life / math.log(2), at)

    def _grown(self, at: float) -> float:
        """Return the weight of a second at `at` relative to one at the origin."""
        lives = (at - self.origin) / self.half_life
        if lives > _FAR:
            shrink = 2.0**-lives
            self.worth = {tenant: worth * shrink for tenant, worth in self.worth.items()}
            self.origin, lives = at, 0.0
        return float(2.0**lives)


def usage_ratios(used: Mapping[str, float], weights: Mapping[str, float], tenants: Iterable[str]) -> dict[str, float]:
    """Return U/S of each tenant: its part of all use, over its share, which is its part of all weights.

    Counts the named tenants and all that used anything; the default weight is 1.
    """
    everyone = {*used, *tenants}
    total = math.fsum(used.values())
    shares = math.fsum(weights.get(tenant, 1.0) for tenant in everyone) or 1.0
    return {
        # rounded, so that equal values compare equal whatever the order of summation
        tenant: round(
            usage_ratio(used.get(tenant, 0.0) / total if total else 0.0, weights.get(tenant, 1.0) / shares), 9
        )
        for tenant in everyone
    }


def usage_ratio(part: float, share: float) -> float:
    """Return U/S; a tenant without a share has exceeded it, whatever it used."""
    return min(part / share, _MOST) if share > 0 else _MOST


def fair_share_factor(used: float) -> float:
    """Return F = 2^(-U/S) of U/S."""
    return float(2.0**-used) if used < _MOST else 0.0


_MOST = 1000.0


_FOREVER = float("inf")
OVERRUN = 60.0
"""Minimum seconds that a job is expected to keep running once it has exceeded its planned duration."""


class RunningJob(Struct, eq=False):
    """A job that holds GPUs."""

    id: JobId
    key: LaneKey
    grant: Grant
    started: float
    gpu_share: float = 1.0
    """Share of each GPU that it is charged for."""
    leaving: float | None = None
    """End of the grace period of a job that was told to stop; None: it was not."""
    expected: float | None = None
    """Seconds it is expected to run; None: as planned."""
    width: int = 0
    """Number of GPUs it holds; more than its grant if some are drained, sick or lost, so not available afterwards."""

    @property
    def priority(self) -> int:
        return self.key.priority

    @property
    def duration(self) -> float:
        """Seconds it is expected to run."""
        return self.key.duration if self.expected is None else self.expected

    @property
    def charge(self) -> float:
        return self.width * self.gpu_share

    def ends(self, now: float) -> float:
        """Return its expected end, always in the future: its runtime is doubled each time the job exceeds it."""
        if self.leaving is not None:
            return max(self.leaving, now + 1.0)
        duration = self.duration
        if self.started + duration > now:
            return self.started + duration
        duration = max(duration, OVERRUN)
        while self.started + duration <= now:
            duration *= 2
        return self.started + duration


def release_gpus(run: RunningJob, free: list[int], shares: SharedGpus) -> None:
    """Release the GPUs that no other job holds once the job has ended."""
    if run.key.ask.share:
        for node, bit in shares.give(run.id, run.grant):
            free[node] |= bit
    else:
        for node, mask in run.grant:
            free[node] |= mask


class ReservedWindow(Struct, frozen=True):
    """GPUs reserved for a time, in seconds since the epoch."""

    window: Window
    start: float
    end: float
    masks: tuple[int, ...]


class PolicyRules(Struct, frozen=True):
    """Policy settings as numbers for decisions."""

    policy: PolicySettings = PolicySettings()
    age_unit: float = 1.0
    """Seconds of eligible wait that are worth one point."""
    promote_after: float = _FOREVER
    """Seconds of eligible wait after which a job goes first in its class."""
    patience: float = 0.0
    standing_priority: int | None = None
    cpu_jobs: int = 8
    weights: Mapping[str, float] = field(default_factory=dict)
    caps: Mapping[str, TenantSettings] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: PolicySettings, cpu_jobs: int = 8) -> PolicyRules:
        return cls(
            settings,
            settings.age_unit.total_seconds(),
            settings.promote_after.total_seconds() or _FOREVER,
            settings.patience.total_seconds(),
            settings.standing_priority,
            cpu_jobs,
            {tenant.name: tenant.weight for tenant in settings.tenants},
            {tenant.name: tenant for tenant in settings.tenants},
        )


class ClusterState:
    """State of GPUs, running and waiting jobs, for the scheduler, the forecast and the replay."""

    def __init__(
        self, rules: PolicyRules, layouts: Sequence[NodeLayout], free: Sequence[int], ledger: UsageLedger
    ) -> None:
        self.rules = rules
        self.layouts = tuple(layouts)
        self.free = list(free)
        self.freed = (0,) * len(self.layouts)
        """GPUs by node that were just released and have not been read as free yet."""
        self.ledger = ledger
        self.lanes: dict[LaneKey, Lane] = {}
        """Lanes in which jobs wait."""
        self._bands: Bands | None = None
        self._lanes_of: Counter[str] = Counter()
        """Lanes of each tenant."""
        self._payers: set[str] = set()
        """Tenants whose rank other jobs were placed at by hand."""
        self.runs: dict[JobId, RunningJob] = {}
        self.expects: Callable[[JobId], float | None] = lambda job_id: None
        """Seconds that a starting job is expected to run; None: as planned."""
        self.keeps: tuple[ReservedWindow, ...] = ()
        self.shares = SharedGpus()
        self.gpus_held: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self.by_array: Counter[JobId] = Counter()
        self.cpu_running = 0
        self.tenants: frozenset[str] = frozenset()
        """Tenants with waiting jobs, eligible or not: all of them have a share."""

    def copy(self) -> ClusterState:
        other = ClusterState(self.rules, self.layouts, self.free, self.ledger.copy())
        other.lanes, other._lanes_of = dict(self.lanes), self._lanes_of.copy()
        other._payers = set(self._payers)
        other.runs = dict(self.runs)
        other.expects = self.expects
        other.freed = self.freed
        other.keeps, other.shares = self.keeps, self.shares.copy()
        other.gpus_held, other.running = self.gpus_held.copy(), self.running.copy()
        other.by_array, other.cpu_running, other.tenants = self.by_array.copy(), self.cpu_running, self.tenants
        return other

    def add(self, key: LaneKey, item: Waiting, now: float) -> None:
        lane = self.lanes.get(key)
        self._put(lane_of(key, [item]) if lane is None else with_item(lane, item), now)

    def fill(self, key: LaneKey, items: list[Waiting], now: float) -> None:
        self._put(lane_of(key, items), now)

    def withdraw(self, key: LaneKey, item: Waiting, now: float) -> None:
        rest = without_item(self.lanes[key], item)
        if rest is not None:
            self._put(rest, now)
            return
        del self.lanes[key]
        self._lanes_of[key.tenant] -= 1
        if self._bands is not None:
            self._bands.drop(key)

    def bands(self, now: float) -> Bands:
        """Return the lanes by level; from now on they are kept in that order as well."""
        if self._bands is None:
            self._bands = Bands(self.rules.promote_after, self.lanes.values(), now)
        return self._bands

    def _put(self, lane: Lane, now: float) -> None:
        if lane.key not in self.lanes:
            self._lanes_of[lane.key.tenant] += 1
            if lane.key.placed is not None:
                self._payers.add(lane.payer)
        self.lanes[lane.key] = lane
        if self._bands is not None:
            self._bands.put(lane, now)

    def occupy(self, run: RunningJob) -> None:
        """Record a running job: its GPUs are not free, even if an older reading says so."""
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

    def start(self, key: LaneKey, item: Waiting, grant: Grant, now: float) -> RunningJob:
        ask = key.ask
        self.withdraw(key, item, now)
        expected = self.expects(item.id)
        run = RunningJob(item.id, key, grant, now, self.shares.part(ask, grant), expected=expected, width=size(grant))
        for place in gpu_bits(grant) if ask.share else ():
            self.shares.take(run.id, place, ask.share)
        self.occupy(run)
        return run

    def end(self, job_id: JobId, now: float) -> RunningJob:
        run = self.runs.pop(job_id)
        key, gpus = run.key, run.width
        release_gpus(run, self.free, self.shares)
        self.running[key.tenant] -= 1
        self.gpus_held[key.tenant] -= gpus
        self.cpu_running -= not key.ask.maximum
        self.ledger.end(key.tenant, run.charge, now)
        if key.array is not None:
            self.by_array[key.array] -= 1
        return run

    def usable(self, ask: Ask) -> list[int]:
        """Return the GPUs that such a job could use now, by node."""
        return usable_gpus(self.free, self.shares, ask)

    def choose(self, masks: Sequence[int], ask: Ask, need: int, most: int) -> Grant | None:
        """Return the GPUs that it gets, at least `need` of the given ones; None when there are too few."""
        return choose_shared(masks, self.shares, ask, need, most, self.layouts)

    def credited(self, now: float) -> dict[str, float]:
        """Return the credited seconds of each tenant that has jobs waiting, running or past."""
        waiting = (tenant for tenant, lanes in self._lanes_of.items() if lanes)
        found = usage_ratios(self.ledger.used(now), self.rules.weights, self.tenants.union(waiting))
        unused = dict.fromkeys(self._payers, 0.0)
        return {tenant: credit(used, self.rules.policy) for tenant, used in (unused | found).items()}
