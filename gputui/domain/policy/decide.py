"""What starts now: the one decision behind the scheduler, the forecast and the replay.

EASY backfill (Lifka 1995): jobs start in order; the first that does not fit is promised the earliest moment at which it
will, and a later one starts only if it is planned to end by then or leaves the promised GPUs alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from gputui.domain.job import JobId
from gputui.domain.policy.board import Board, Run
from gputui.domain.policy.lanes import Lane, LaneKey, Rank, Unlike, Waiting
from gputui.domain.policy.machine import Ask, Grant, size
from gputui.domain.policy.shadow import Hold, kept, kept_for, most, needed, shadow

_FOREVER = float("inf")
_ROUNDED = 0.001
"""Seconds by which sums of times may differ from each other."""
_NO_LIMITS = (_FOREVER, _FOREVER)


class Refusal(Enum):
    """Why a job that could start is not started."""

    RESOURCES = "too few GPUs are free"
    BACKFILL = "it would run into the reservation of the head"
    WINDOW = "the GPUs are kept for others"
    QUOTA = "the tenant may hold no more"
    ARRAY = "the array may run no more"
    CPU = "no more jobs without GPUs may run"
    STANDING = "GPUs go to more important jobs first"


class Refused(NamedTuple):
    """Why a job does not start."""

    why: Refusal
    need: int
    """The fewest GPUs that it takes at this moment."""


@dataclass(eq=False, slots=True)
class Outcome:
    """What one decision came to."""

    starts: list[Run] = field(default_factory=list)
    hold: Hold | None = None
    """What is left for the first job that did not fit."""
    refusals: dict[JobId, Refused] = field(default_factory=dict)
    """Why a job was refused, and with it those behind it in its lane up to the next one told of here."""
    settles_at: float = _FOREVER
    """When the job that was promised its turn takes fewer GPUs."""
    limits: dict[LaneKey, tuple[float, float]] = field(default_factory=dict)
    """Planned durations from which jobs of a lane are refused: those that settle for fewer GPUs, and the others."""
    first_refused: JobId | None = None
    """The first that had to wait for GPUs, of those that some number of GPUs here could ever do for."""


def decide(board: Board, now: float, fair: Mapping[str, float] | None = None, *, thorough: bool = False) -> Outcome:
    """Start what may start, on the board itself; if `thorough`, ask every lane although nothing is left to give."""
    return _Pass(board, now, board.fair(now) if fair is None else fair).run(thorough=thorough)


def can_decide(board: Board) -> bool:
    """Whether anything could start at all: else deciding is a waste of time."""
    return any(board.free) or board.cpu_running < board.rules.cpu_jobs or board.shares.is_open


class _Pass:
    """One walk along the lanes, always from the job that ranks first."""

    def __init__(self, board: Board, now: float, fair: Mapping[str, float]) -> None:
        self.board, self.now, self.fair = board, now, fair
        self.outcome = Outcome()
        self.standing = False
        self.known: dict[Ask, tuple[int, float, Refusal]] = {}
        """Of each ask the need and the duration that were refused: GPUs only get fewer in a pass."""
        self.limits = self.outcome.limits
        self.promised: tuple[str, int] | None = None
        """Tenant and GPUs of the job that was promised its turn."""

    def run(self, *, thorough: bool) -> Outcome:
        """Walk until no lane has a job left that could start."""
        heap: list[tuple[Rank, int, Lane, int]] = []
        for number, lane in enumerate(self.board.lanes.values()):
            if lane.items:
                lane.settle(self.now)
                heap.append((self._rank(lane, 0), number, lane, 0))
        heapify(heap)
        while heap and (thorough or can_decide(self.board)):
            _, number, lane, position = heap[0]
            position = self._consider(lane, position)
            if position < len(lane.items):
                heapreplace(heap, (self._rank(lane, position), number, lane, position))
            else:
                heappop(heap)
                if not lane.items:
                    del self.board.lanes[lane.key]
        return self.outcome

    def _rank(self, lane: Lane, position: int) -> Rank:
        rules = self.board.rules
        fair = rules.fair_weight * self.fair[lane.key.tenant]
        return rules.ageing.rank(lane.items[position], fair, self.now)

    def _consider(self, lane: Lane, position: int) -> int:
        """Start the job there or refuse it; the position of the next of its lane that might start."""
        item = lane.items[position]
        need = lane.key.ask.minimum
        refusal = self._forbidden(lane.key, item.priority)
        if refusal is None:
            need = needed(self.board, lane.key, item, self.now, self._owed(lane.key))
            refusal = self._known(lane.key.ask, need, item.duration)
            if refusal is None:
                grant = self._fit(lane.key, need, item)
                if grant is not None:
                    lane.take(position)
                    self._start(lane, item, grant)
                    return position
                refusal = self._refuse(lane.key, item, need)
            least = self.board.rules.standing_priority
            if least is not None and item.priority >= least and not is_hopeless(lane.key.ask):
                self.standing = True
        self.outcome.refusals[item.id] = Refused(refusal, need)
        return self._next(lane, position, refusal, need)

    def _next(self, lane: Lane, position: int, refusal: Refusal, need: int) -> int:
        """Return the place of the next job of the lane that need not be refused for the same reason."""
        rules, ask = self.board.rules, lane.key.ask
        if refusal in _LANE_WIDE:
            return len(lane.items)
        if rules.standing_priority is not None and not self.standing:
            return position + 1  # one further behind may be important enough to stop all below it
        if refusal is Refusal.STANDING and rules.standing_priority is not None:
            return lane.next_above(position + 1, rules.standing_priority)
        if ask.minimum != ask.maximum and not self._is_promised(ask):
            return position + 1  # one of another length or priority may be promised its turn
        if refusal is Refusal.RESOURCES and need == ask.minimum:
            return len(lane.items)
        above = lane.items[position].priority if self._admits_by_priority() else None
        limits = self._limits(lane, position, refusal, need)
        return lane.next_unlike(position + 1, Unlike(*limits, above, self.now, rules.patience))

    def _limits(self, lane: Lane, position: int, refusal: Refusal, need: int) -> tuple[float, float]:
        """Return the planned durations from which jobs of the lane are refused: of those that settle, of the others.

        What was refused to one that settles for the fewest GPUs is refused to all. Under a cap on GPUs the others
        may need fewer at their turn, so nothing is known of them.
        """
        key = lane.key
        below = self._refused_from(refusal, lane.items[position].duration)
        settled, unsettled = (_FOREVER, _FOREVER) if self._admits_by_priority() else self.limits.get(key, _NO_LIMITS)
        caps = self.board.rules.caps.get(key.tenant)
        if need == key.ask.minimum:
            settled = min(settled, below)
        elif caps is None or caps.gpus is None:
            unsettled = min(unsettled, below)
        self.limits[key] = (settled, unsettled)
        return settled, unsettled

    def _refused_from(self, refusal: Refusal, duration: float) -> float:
        """Return the planned duration from which jobs of a lane are refused as the one of that duration was."""
        if refusal is Refusal.RESOURCES:
            return 0.0
        hold = self.outcome.hold
        if refusal is Refusal.WINDOW or hold is None or self.board.keeps:
            return duration
        return 0.0 if hold.is_firm else min(duration, hold.at - self.now + _ROUNDED)  # it would run into the promise

    def _admits_by_priority(self) -> bool:
        """Whether GPUs are kept for jobs of a priority, so that one further behind may have them."""
        return any(keep.priority is not None for keep in self.board.keeps)

    def _is_promised(self, ask: Ask) -> bool:
        """Whether the promise is given, or no job of that request will get it where one of them did not."""
        is_alike = not self.board.keeps and self.board.victims is None
        return self.outcome.hold is not None or is_alike or is_hopeless(ask)

    def _known(self, ask: Ask, need: int, duration: float) -> Refusal | None:
        """What the same request was refused for before, if no less was asked then."""
        known = self.known.get(ask)
        return known[2] if known is not None and need >= known[0] and duration >= known[1] else None

    def _forbidden(self, key: LaneKey, priority: int) -> Refusal | None:
        board, rules = self.board, self.board.rules
        if key.array is not None and board.by_array[key.array] >= key.array_limit:
            return Refusal.ARRAY
        if not key.ask.maximum:
            return Refusal.CPU if board.cpu_running >= rules.cpu_jobs else over_cap(board, key, 0, self._owed(key))
        if refusal := over_cap(board, key, key.ask.minimum, self._owed(key)):
            return refusal
        behind = self.standing and rules.standing_priority is not None and priority < rules.standing_priority
        return Refusal.STANDING if behind else None

    def _owed(self, key: LaneKey) -> int:
        """GPUs promised to another job of that tenant: they count against its caps, or its own jobs would break it."""
        return self.promised[1] if self.promised is not None and self.promised[0] == key.tenant else 0

    def _fit(self, key: LaneKey, need: int, item: Waiting, *, beside_windows: bool = False) -> Grant | None:
        """What it gets, or would get if no window kept anything."""
        ask, board = key.ask, self.board
        if not ask.maximum:
            return ()
        usable = board.usable(ask)
        end = self.now + item.duration
        if board.keeps and not beside_windows and (others := kept(board, key, item.priority, self.now, end)):
            usable = [mask & ~other for mask, other in zip(usable, others, strict=True)]
        hold = self.outcome.hold
        if hold is not None and hold.binds(end):
            usable = [hold.leaves(node, mask, ask.share) for node, mask in enumerate(usable)]
        width = most(board, key, self._owed(key))
        grant = board.choose(usable, ask, need, width)
        if board.keeps and grant is not None and (own := kept_for(board, key, item.priority, self.now)):
            own_first = [mask & mine for mask, mine in zip(usable, own, strict=True)]
            grant = board.choose(own_first, ask, size(grant), width) or grant
        return grant

    def _start(self, lane: Lane, item: Waiting, grant: Grant) -> None:
        hold = self.outcome.hold
        if hold is not None and hold.binds(self.now + item.duration):
            for node, mask in grant:
                hold.gave(node, mask, self.board.layouts, lane.key.ask.share)
        self.outcome.starts.append(self.board.start(lane, item, grant, self.now))

    def _refuse(self, key: LaneKey, item: Waiting, need: int) -> Refusal:
        """Why it does not fit; the first such job is promised when it will."""
        outcome, board = self.outcome, self.board
        if outcome.first_refused is None and not is_hopeless(key.ask):
            outcome.first_refused = item.id
        if outcome.hold is None:
            outcome.hold = shadow(board, key, item, self.now)
            if board.victims is not None:
                outcome.hold = board.victims.promise(outcome.hold, board, key, item, need, self.now)
            if outcome.hold is not None:
                self.promised = (key.tenant, size(outcome.hold.grant))
                outcome.settles_at = item.submitted + board.rules.patience if need > key.ask.minimum else _FOREVER
        if board.choose(board.usable(key.ask), key.ask, need, need) is None:
            self._learn(key.ask, need, 0.0, Refusal.RESOURCES)
            return Refusal.RESOURCES
        held = outcome.hold is not None and outcome.hold.id != item.id
        if held and not board.keeps:
            self._learn(key.ask, need, item.duration, Refusal.BACKFILL)
        if not held or (board.keeps and self._fit(key, need, item, beside_windows=True) is not None):
            return Refusal.WINDOW
        return Refusal.BACKFILL

    def _learn(self, ask: Ask, need: int, duration: float, refusal: Refusal) -> None:
        """Know it from now on; only once there is a head, which must be looked for job by job."""
        if self.outcome.hold is not None:
            self.known[ask] = (need, duration, refusal)


_LANE_WIDE = frozenset({Refusal.QUOTA, Refusal.ARRAY, Refusal.CPU})
"""What holds for all jobs of a lane."""


def is_hopeless(ask: Ask) -> bool:
    """Whether no node here has as many GPUs that suit it, free or not."""
    return not ask.whole_nodes and ask.minimum > max((mask.bit_count() for mask in ask.eligible), default=0)


def over_cap(board: Board, key: LaneKey, need: int, owed: int = 0) -> Refusal | None:
    """Whether the tenant's caps forbid one more job of so many GPUs, beside one that is owed so many."""
    caps = board.rules.caps.get(key.tenant)
    if caps is None:
        return None
    if caps.running is not None and board.running[key.tenant] + (owed > 0) >= caps.running:
        return Refusal.QUOTA
    if caps.gpus is not None and board.gpus_held[key.tenant] + owed + need > caps.gpus:
        return Refusal.QUOTA
    return None


def next_settling(board: Board, outcome: Outcome, now: float) -> float:
    """Return when waiting on has made a job take fewer GPUs, of those that might start then or let others start."""
    patience, moments = board.rules.patience, [outcome.settles_at]
    for key, lane in board.lanes.items():
        ask = key.ask
        if ask.minimum == ask.maximum or not lane.items:
            continue
        if board.choose(board.usable(ask), ask, ask.minimum, ask.minimum) is not None:
            moments.append(lane.next_settling(now, patience, _ends_by(board, outcome, key)))
    return min(moments)


def _ends_by(board: Board, outcome: Outcome, key: LaneKey) -> float:
    """Return by when jobs of the lane that settle must be planned to end, or they run into the promise."""
    was_refused = outcome.limits.get(key, _NO_LIMITS)[0] < _FOREVER
    if outcome.hold is None or board.keeps or not was_refused:
        return _FOREVER
    return -_FOREVER if outcome.hold.is_firm else outcome.hold.at + _ROUNDED
