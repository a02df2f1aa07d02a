"""Decision which jobs start now, shared by the scheduler, the forecast and the replay.

EASY backfill (Lifka 1995): jobs start in order; the first that does not fit is promised the earliest time at which it
will fit, and a later one starts only if it is planned to end by then or does not need the promised GPUs. When and where
the first will start is computed from the planned ends of running jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import NamedTuple, TypeAlias

from msgspec import Struct, field

from gputui.domain.job_spec import JobId
from gputui.domain.policy.cluster_state import ClusterState, ReservedWindow, RunningJob, release_gpus
from gputui.domain.policy.lanes import Band, BandLevel, Lane, LaneKey, ScoreScale, Turns, Waiting, is_top, without_item
from gputui.domain.policy.placement import (
    SOON,
    Ask,
    Grant,
    NodeLayout,
    PromisedRoom,
    choose_shared,
    pick,
    size,
    usable_gpus,
)


class BackfillReservation(Struct, eq=False):
    """The GPUs that must be left for the head of the queue, and from when."""

    id: JobId
    at: float
    because: JobId | None
    """Running job whose end makes it possible; None: not a single one."""
    available: dict[int, int]
    """GPUs by node that the head could use at that time."""
    spare: dict[int, int]
    """Number of these GPUs by node that the head does not need."""
    grant: Grant
    """GPUs that the head would get, as of now."""
    room: PromisedRoom | None = None
    """Room beside the head on the GPUs that it shares; None unless it shares."""
    preempts: tuple[JobId, ...] = ()
    """Running jobs that are to be preempted for it."""
    is_firm: bool = False
    """True if others are preempted for it and may end sooner; these GPUs then go to no other job, however short."""

    def binds(self, end: float) -> bool:
        """Return whether a job that is planned to end at `end` must not use those GPUs."""
        return self.is_firm or end > self.at

    def leaves(self, node: int, mask: int, share: int = 0) -> int:
        """Return those of these GPUs that a job may use if it outlasts the reservation.

        It shares them if `share` is set.
        """
        available = self.available.get(node)
        if available is None:
            return mask
        beside = self.room.fitting(node, mask & available, share) if self.room and share else 0
        wanted, spare = mask & available & ~beside, self.spare[node]
        if wanted.bit_count() <= spare:
            return mask
        taken = mask & ~available | beside
        for _ in range(spare):
            bit = wanted & -wanted
            taken |= bit
            wanted ^= bit
        return taken

    def count_taken(self, node: int, mask: int, layouts: Sequence[NodeLayout], share: int = 0) -> None:
        """Record that a job which outlasts the reservation got these GPUs."""
        if node in self.available:
            if self.room and share:
                mask &= ~self.room.take(node, mask & self.available[node], share)
            self.spare[node] -= (mask & self.available[node]).bit_count()
            self.available[node] &= ~mask
            if any(mask & mine for home, mine in self.grant if home == node):
                self.grant = ((node, pick(self.available[node], size(self.grant), layouts[node].levels)),)


class QueueHead(NamedTuple):
    """First job in order that does not fit: its lane, the job, and the number of GPUs that it waits for."""

    key: LaneKey
    item: Waiting
    need: int


EarlierPromise: TypeAlias = Callable[
    [BackfillReservation | None, ClusterState, QueueHead, float], BackfillReservation | None
]
"""Returns the head's reservation at that time: the planned one, or an earlier one, as by preemption."""


def gpus_kept_for_others(cluster: ClusterState, key: LaneKey, start: float, end: float) -> list[int] | None:
    """Return the GPUs reserved for others between start and end, by node; None if there are none."""
    tenant, priority = key.tenant, key.priority
    bound = [each for each in cluster.keeps if each.start < end and start < each.end]
    return _united(cluster, [keep for keep in bound if not keep.window.admits(tenant, priority)])


def _united(cluster: ClusterState, keeps: Sequence[ReservedWindow]) -> list[int] | None:
    masks: list[int] | None = None
    for keep in keeps:
        masks = [have | more for have, more in zip(masks or [0] * len(cluster.free), keep.masks, strict=True)]
    return masks


def find_reservation(cluster: ClusterState, key: LaneKey, item: Waiting, now: float) -> BackfillReservation | None:
    """Return the earliest reservation by the planned ends of running jobs; None if the job never fits."""
    moments = _moments(cluster, key, item, now)
    free = [free | settling for free, settling in zip(cluster.free, cluster.freed, strict=True)]
    shares = cluster.shares.copy()
    given_back = 0
    for number, (at, run_id) in enumerate(moments):
        if run_id >= 0:
            run = cluster.runs[run_id]
            given_back += run.width if run.key.tenant == key.tenant else 0
            release_gpus(run, free, shares)
        if number + 1 < len(moments) and moments[number + 1][0] == at:
            continue
        masks = usable_gpus(free, shares, key.ask)
        if cluster.keeps and (others := gpus_kept_for_others(cluster, key, at, at + key.duration)):
            masks = [mask & ~other for mask, other in zip(masks, others, strict=True)]
        need = gpus_needed(cluster, key, item, at, -given_back)
        grant = choose_shared(masks, shares, key.ask, need, need, cluster.layouts)
        if grant is not None:
            available = {node: masks[node] for node, _ in grant}
            spare = {node: 0 if len(grant) > 1 else mask.bit_count() - need for node, mask in available.items()}
            room = PromisedRoom(key.ask.share, shares) if key.ask.share else None
            return BackfillReservation(item.id, at, run_id if run_id >= 0 else None, available, spare, grant, room)
    return None


def _moments(cluster: ClusterState, key: LaneKey, item: Waiting, now: float) -> list[tuple[float, JobId]]:
    """Return the times at which it may fit.

    Ends of jobs and reservations, new readings of freed GPUs, and the end of its patience.
    """
    moments = [(run.ends(now), run.id) for run in cluster.runs.values() if run.width]
    moments += [
        (keep.end, -1) for keep in cluster.keeps if keep.end > now and not keep.window.admits(key.tenant, key.priority)
    ]
    settles = item.since + cluster.rules.patience
    if any(cluster.freed):
        moments.append((now + SOON, -1))
    if key.ask.minimum != key.ask.maximum and settles > now:
        moments.append((settles, -1))
    moments.sort()
    return moments


def gpus_needed(cluster: ClusterState, key: LaneKey, item: Waiting, at: float, owed: int = 0) -> int:
    """Return the fewest GPUs it accepts by then.

    Before its patience is over, the maximum it may have beside `owed` others.
    """
    ask = key.ask
    if ask.minimum == ask.maximum or at >= item.since + cluster.rules.patience:
        return ask.minimum
    return most_gpus(cluster, key, owed)


def most_gpus(cluster: ClusterState, key: LaneKey, owed: int = 0) -> int:
    """Return the maximum number of GPUs such a job may have under its tenant's cap, beside `owed` others."""
    caps = cluster.rules.caps.get(key.tenant)
    if caps is None or caps.gpus is None:
        return key.ask.maximum
    return max(key.ask.minimum, min(key.ask.maximum, caps.gpus - owed - cluster.gpus_held[key.tenant]))


_FOREVER = float("inf")
_ROUNDED = 0.001
"""Tolerance in seconds when comparing sums of times."""
_MANY = 1 << 60
_ASKED = 40
"""Cost of examining a job, in compared lanes."""


class Refusal(Enum):
    """Reason for refusing a job that is eligible to start."""

    RESOURCES = "too few GPUs are free"
    BACKFILL = "it would delay the head of the queue"
    WINDOW = "the GPUs are reserved for others"
    QUOTA = "the tenant has reached its cap of GPUs or jobs"
    ARRAY = "the array already runs its maximum of elements"
    CPU = "the maximum of jobs without GPUs is running"
    STANDING = "GPUs go to more important jobs first"


class Refused(NamedTuple):
    """Refusal of a job, with the number of GPUs that it asked for."""

    why: Refusal
    need: int
    """Minimum number of GPUs that it accepts now."""


class Outcome(Struct, eq=False):
    starts: list[RunningJob] = field(default_factory=list)
    hold: BackfillReservation | None = None
    """Reservation for the first job that did not fit; None: all fit, or that job never will."""
    head: LaneKey | None = None
    """Lane of that job."""
    refusals: dict[JobId, Refused] = field(default_factory=dict)
    """Refusals by job id; each also holds for the jobs behind it in its lane, up to the next one listed."""
    settles_at: float = _FOREVER
    """Time at which the job with the reservation accepts fewer GPUs."""
    first_refused: JobId | None = None
    """First job that has to wait for GPUs and can be satisfied here."""
    work: int = 0
    """Lanes compared and jobs examined, as a measure of cost."""


def decide(
    cluster: ClusterState,
    now: float,
    line: Iterable[tuple[LaneKey, Waiting]] | None = None,
    preemption: EarlierPromise | None = None,
) -> Outcome:
    """Start the jobs that may start, changing the cluster state, and return the decision.

    With `line`, all waiting jobs in order, every lane is examined even when no GPU is left, so that the reason of each
    refusal is known. Without it only those lanes are examined that may start or that others may have to wait for.
    `preemption` may promise GPUs to the head sooner by stopping running jobs; None: no preemption.
    """
    one = Pass(cluster, now, preemption)
    if line is None:
        one.ask_who_may_start()
    else:
        one.ask_all(line)
    return one.outcome


def can_decide(cluster: ClusterState) -> bool:
    return any(cluster.free) or cluster.cpu_running < cluster.rules.cpu_jobs or cluster.shares.is_open


_LESSONS = frozenset({Refusal.RESOURCES, Refusal.BACKFILL, Refusal.WINDOW})
"""Refusals that also hold for a job that is planned to run longer."""


class Pass(Struct, eq=False):
    """Pass over the lanes that always continues with the job of the highest rank."""

    cluster: ClusterState
    now: float
    preemption: EarlierPromise | None
    outcome: Outcome = field(default_factory=Outcome)
    standing: bool = False
    known: dict[Ask, tuple[int, float, Refusal]] = field(default_factory=dict)
    """Need and duration that were refused, by ask; the number of free GPUs only shrinks during a pass."""
    capped: dict[str, int] = field(default_factory=dict)
    """Number of GPUs from which jobs of a tenant at its cap are refused."""
    refused: set[LaneKey] = field(default_factory=set)
    """Lanes that are finished."""
    kinds: dict[tuple[str, int], tuple[bool, ...]] = field(default_factory=dict)
    """Answers whether each window is reserved for jobs of a tenant and a priority."""
    same: dict[tuple[object, ...], Refusal] = field(default_factory=dict)
    """Refusals since the last start, reused for equal requests while reservations exist."""
    shut: dict[tuple[Ask, tuple[bool, ...]], float] = field(default_factory=dict)
    """Planned duration from which equal requests are refused, while reservations exist."""
    promised: tuple[str, int] | None = None
    """Tenant and GPUs of the job that was promised its turn."""

    def ask_all(self, line: Iterable[tuple[LaneKey, Waiting]]) -> None:
        """Examine every job, except those behind a refused one of their lane."""
        refused, refusals, known = self.refused, self.outcome.refusals, self.known
        is_simple = not self.cluster.rules.caps and self.cluster.rules.standing_priority is None
        for key, waiting in line:
            if key in refused:
                continue
            ask = key.ask
            before = known.get(ask) if is_simple and ask.minimum == ask.maximum and key.array is None else None
            if before is not None and key.duration >= before[1] and ask.minimum >= before[0]:
                refusals[waiting.id] = Refused(before[2], ask.minimum)  # the result of `give_turn`, much faster
                refused.add(key)
                continue
            item: Waiting | None = waiting
            while item is not None and key not in refused:
                self.give_turn(key, item)
                item = Waiting(item.since, item.id + 1, item.count - 1) if item.count > 1 else None

    def ask_who_may_start(self) -> None:
        """Examine the jobs that are not known to be refused, as long as GPUs are left."""
        cluster, now = self.cluster, self.now
        bands, credited = cluster.bands(now), None
        for at, band in bands.at(now):
            hold = self.outcome.hold
            if not can_decide(cluster) or (
                hold is not None and all(shortest >= self._bar(ask) for ask, shortest in bands.shortest.items())
            ):
                return  # no lane may start, judging by the requests seen so far
            lanes = self._open(at, band)
            while lanes:
                credited = cluster.credited(now) if credited is None else credited
                promoted_after = cluster.rules.promote_after if is_top(at[1]) else None
                scale = ScoreScale(credited, now, cluster.rules.age_unit)
                self.outcome.work += len(lanes)
                turns = Turns(lanes, scale, promoted_after)
                lanes = self._open(at, band) if self._ask(turns) else []

    def _ask(self, turns: Turns) -> bool:
        """Examine jobs until none is left; return True at the first promise, after which fewer may start."""
        while can_decide(self.cluster) and (lane := turns.pop()) is not None:
            if not self._is_open(lane):
                continue
            self.outcome.work += _ASKED
            had = self.outcome.hold
            self.give_turn(lane.key, lane.head)
            key = lane.key
            refused = self.outcome.refusals.get(lane.head.id) if self.cluster.keeps and key in self.refused else None
            if refused is not None and refused.why in _LESSONS and refused.need <= key.ask.minimum:
                # jobs planned to run longer are refused too, if the same windows bind them
                kind = (key.ask, self._windows(key))
                self.shut[kind] = min(key.duration, self.shut.get(kind, _FOREVER))
            if key not in self.refused and (rest := without_item(lane, lane.head)) is not None:
                turns.put(rest)
            if had is None and self.outcome.hold is not None:
                return True
        return False

    def _open(self, at: BandLevel, band: Band) -> list[Lane]:
        """Return the lanes of a band that are not known to be refused."""
        found: list[Lane] = []
        least = self.cluster.rules.standing_priority
        for ask, alike in band.items():
            bar = self._bar(ask)
            if least is not None and not self.standing and at[1] > least - 1:
                bar = _FOREVER  # a waiting one may stop all jobs of lower priority
            if bar > 0:
                found += alike.values() if bar == _FOREVER else [x for x in alike.values() if x.key.duration < bar]
        head, hold = self.outcome.head, self.outcome.hold
        if head is not None and hold is not None and head in band.get(head.ask, ()):  # that one holds the promise
            rests = (without_item(lane, lane.head) if lane.head.id == hold.id else lane for lane in found)
            found = [lane for lane in rests if lane is not None]
        if self.refused or self.capped or self.shut or self.cluster.by_array:
            return [lane for lane in found if self._is_open(lane)]
        return found

    def _windows(self, key: LaneKey) -> tuple[bool, ...]:
        who = (key.tenant, key.priority)
        found = self.kinds.get(who)
        if found is None:
            found = self.kinds[who] = tuple(keep.window.admits(*who) for keep in self.cluster.keeps)
        return found

    def _is_open(self, lane: Lane) -> bool:
        key = lane.key
        if self.shut and key.duration >= self.shut.get((key.ask, self._windows(key)), _FOREVER):
            return False
        if key in self.refused or key.ask.minimum >= self.capped.get(key.tenant, _MANY):
            return False
        return key.array is None or self.cluster.by_array[key.array] < key.array_limit

    def _bar(self, ask: Ask) -> float:
        """Return the planned duration from which all jobs with an ask are known to be refused."""
        known = self.known.get(ask)
        if known is not None:
            return known[1] if known[0] <= ask.minimum else _FOREVER
        cluster, hold = self.cluster, self.outcome.hold
        if hold is None or not ask.maximum:
            return _FOREVER
        need = ask.minimum
        usable = cluster.usable(ask)
        if cluster.choose(usable, ask, need, need) is None:
            self.known[ask] = (need, 0.0, Refusal.RESOURCES)
            return 0.0
        usable = [hold.leaves(node, mask, ask.share) for node, mask in enumerate(usable)]
        if cluster.choose(usable, ask, need, need) is None:
            bar = self._binds_from(hold)
            self.known[ask] = (need, bar, Refusal.BACKFILL)
            return bar
        return _FOREVER

    def _binds_from(self, hold: BackfillReservation) -> float:
        """Return the planned duration from which jobs run into the promise."""
        return 0.0 if hold.is_firm else hold.at - self.now + _ROUNDED

    def give_turn(self, key: LaneKey, item: Waiting) -> None:
        """Start the job, or refuse it and all jobs behind it in its lane; a promise leaves these their turn."""
        need = key.ask.minimum
        refusal = self._forbidden(key)
        if refusal is None:
            need = gpus_needed(self.cluster, key, item, self.now, self._owed(key))
            kind = (key.ask, key.duration, need, self._windows(key)) if self.cluster.keeps else ()
            known = self.known.get(key.ask)  # why the same request was refused before, if it asked for no less then
            is_known = known is not None and need >= known[0] and key.duration >= known[1]
            refusal = known[2] if known is not None and is_known else self.same.get(kind)
            if refusal is None:
                grant = self._fit(key, need)
                if grant is not None:
                    self.same.clear()
                    hold = self.outcome.hold
                    if hold is not None and hold.binds(self.now + key.duration):
                        for node, mask in grant:
                            hold.count_taken(node, mask, self.cluster.layouts, key.ask.share)
                    self.outcome.starts.append(self.cluster.start(key, item, grant, self.now))
                    return
                had = self.outcome.hold
                refusal = self._refuse(key, item, need)
                if kind and had is not None:
                    self.same[kind] = refusal
            least = self.cluster.rules.standing_priority
            if least is not None and key.priority >= least and not is_unsatisfiable(key.ask):
                self.standing = True
        self.outcome.refusals[item.id] = Refused(refusal, need)
        if self.outcome.hold is None or self.outcome.hold.id != item.id:
            self.refused.add(key)

    def _forbidden(self, key: LaneKey) -> Refusal | None:
        cluster, rules = self.cluster, self.cluster.rules
        if key.array is not None and cluster.by_array[key.array] >= key.array_limit:
            return Refusal.ARRAY
        if not key.ask.maximum and cluster.cpu_running >= rules.cpu_jobs:
            self.known[key.ask] = (0, 0.0, Refusal.CPU)
            return Refusal.CPU
        caps, owed = rules.caps.get(key.tenant), self._owed(key)
        if caps is not None and (
            (caps.running is not None and cluster.running[key.tenant] + (owed > 0) >= caps.running)
            or (caps.gpus is not None and cluster.gpus_held[key.tenant] + owed + key.ask.minimum > caps.gpus)
        ):
            self.capped[key.tenant] = min(key.ask.minimum, self.capped.get(key.tenant, _MANY))
            return Refusal.QUOTA
        behind = self.standing and rules.standing_priority is not None and key.priority < rules.standing_priority
        return Refusal.STANDING if behind and key.ask.maximum else None

    def _owed(self, key: LaneKey) -> int:
        """Return the GPUs promised to another job of that tenant.

        They count against its caps, which it would exceed otherwise.
        """
        return self.promised[1] if self.promised is not None and self.promised[0] == key.tenant else 0

    def _fit(self, key: LaneKey, need: int, *, beside_windows: bool = False) -> Grant | None:
        """Return the GPUs that it gets, or would get without reservations."""
        ask, cluster = key.ask, self.cluster
        if not ask.maximum:
            return ()
        usable = cluster.usable(ask)
        end = self.now + key.duration
        if cluster.keeps and not beside_windows and (others := gpus_kept_for_others(cluster, key, self.now, end)):
            usable = [mask & ~other for mask, other in zip(usable, others, strict=True)]
        hold = self.outcome.hold
        if hold is not None and hold.binds(end):
            usable = [hold.leaves(node, mask, ask.share) for node, mask in enumerate(usable)]
        width = most_gpus(cluster, key, self._owed(key))
        grant = cluster.choose(usable, ask, need, width)
        if not cluster.keeps or grant is None:
            return grant
        begun = [keep for keep in cluster.keeps if keep.start <= self.now < keep.end]
        own = _united(cluster, [keep for keep in begun if keep.window.admits(key.tenant, key.priority)])
        if own is None:
            return grant
        own_first = [mask & mine for mask, mine in zip(usable, own, strict=True)]
        return cluster.choose(own_first, ask, size(grant), width) or grant

    def _refuse(self, key: LaneKey, item: Waiting, need: int) -> Refusal:
        """Return the reason why it does not fit; the first such job gets the backfill reservation."""
        outcome, cluster = self.outcome, self.cluster
        if outcome.first_refused is None and not is_unsatisfiable(key.ask):
            outcome.first_refused = item.id
        if outcome.hold is None:
            outcome.hold = find_reservation(cluster, key, item, self.now)
            if self.preemption is not None:
                outcome.hold = self.preemption(outcome.hold, cluster, QueueHead(key, item, need), self.now)
            if outcome.hold is not None:
                outcome.head = key
                self.promised = (key.tenant, size(outcome.hold.grant))
                outcome.settles_at = item.since + cluster.rules.patience if need > key.ask.minimum else _FOREVER
        if cluster.choose(cluster.usable(key.ask), key.ask, need, need) is None:
            self._learn(key.ask, need, 0.0, Refusal.RESOURCES)
            return Refusal.RESOURCES
        hold = outcome.hold
        held = hold is not None and hold.id != item.id
        if hold is not None and held and not cluster.keeps:
            self._learn(key.ask, need, min(key.duration, self._binds_from(hold)), Refusal.BACKFILL)
        if not held or (cluster.keeps and self._fit(key, need, beside_windows=True) is not None):
            return Refusal.WINDOW
        return Refusal.BACKFILL

    def _learn(self, ask: Ask, need: int, duration: float, refusal: Refusal) -> None:
        """Record a refusal for equal requests; only once there is a head, which must be found job by job."""
        if self.outcome.hold is not None:
            self.known[ask] = (need, duration, refusal)


def is_unsatisfiable(ask: Ask) -> bool:
    return not ask.whole_nodes and ask.minimum > max((mask.bit_count() for mask in ask.eligible), default=0)


def next_settling(cluster: ClusterState, outcome: Outcome, now: float) -> float:
    """Return when waiting makes a job accept fewer GPUs; only jobs that may start then or let others start."""
    patience, moments = cluster.rules.patience, [outcome.settles_at]
    for key, lane in cluster.lanes.items() if patience else ():
        ask, at = key.ask, lane.head.since + patience
        is_unsettled = ask.minimum != ask.maximum and at > now
        if is_unsettled and cluster.choose(cluster.usable(ask), ask, ask.minimum, ask.minimum) is not None:
            moments.append(at)
    return min(moments)
