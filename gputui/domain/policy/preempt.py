"""Which running jobs make way for the head of the queue, if any.

The order of what is wanted of a set of victims: that it suffices; then that least work is lost, in GPU-seconds since
their attempts began; then that they are few; then that they are the youngest. So no victim is one too many. Nobody is
preempted for a job that would not start then all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from gputui.domain.job import JobId, whole_class
from gputui.domain.policy.board import Board, leave
from gputui.domain.policy.decide import decide
from gputui.domain.policy.lanes import LaneKey, Waiting
from gputui.domain.policy.machine import choose
from gputui.domain.policy.settling import SOON
from gputui.domain.policy.shadow import Hold, kept


class Candidate(NamedTuple):
    """A running job that may be preempted. Sorts the youngest first."""

    young: int
    """Minus its id."""
    grade: int
    """Its whole class."""
    lost: int
    """GPU-seconds that preempting it would lose."""

    @property
    def id(self) -> JobId:
        """The job's id."""
        return -self.young


Choice: TypeAlias = tuple[int, int, tuple[int, ...]]
"""Lost GPU-seconds, how many jobs, and which (by `Candidate.young`): the least is the best."""


@dataclass(frozen=True)
class Victims:
    """Who may be preempted at this look."""

    grace: float
    """Seconds from the polite signal to SIGKILL."""
    allowed: int
    """How many more may be preempted within this hour."""
    candidates: tuple[Candidate, ...]
    sound: tuple[int, ...]
    """Of each node, GPUs that will be free once the job that holds them has ended."""
    served: frozenset[JobId]
    """Jobs that others make way for now, or did a moment ago."""

    def promise(
        self, planned: Hold | None, board: Board, key: LaneKey, item: Waiting, need: int, now: float
    ) -> Hold | None:
        """What is left for the head: `planned`, unless GPUs come to it sooner, by themselves or by preemption."""
        hold = self._promise(planned, board, key, item, need, now)
        if hold is not None:
            hold.is_firm = bool(hold.preempts) or item.id in self.served
        return hold

    def _promise(
        self, planned: Hold | None, board: Board, key: LaneKey, item: Waiting, need: int, now: float
    ) -> Hold | None:
        soon = now + self.grace
        if need > key.ask.minimum or key.ask.whole_nodes or key.ask.share:
            return planned
        coming = self._coming(board)
        at = max((run.ends(now) for run in board.runs.values() if run.leaving is not None), default=now + SOON)
        hold = _hold(board, key, item, need, coming, at)
        if hold is not None and (planned is None or hold.at < planned.at or item.id in self.served):
            return hold  # one that others make way for waits for their GPUs, though others are foreseen to end sooner
        if hold is not None or (planned is not None and planned.at <= max(soon, now + SOON)):
            return planned
        at = max(at, soon)
        found = self._choose(board, key, item, need, coming, at)
        return planned if found is None or (planned is not None and planned.at <= at) else found

    def _coming(self, board: Board) -> list[int]:
        """Of each node, the GPUs that are free or will be without anybody else being told to end."""
        masks = [free | settling for free, settling in zip(board.free, board.settling, strict=True)]
        shares = board.shares.copy()
        for run in board.runs.values():
            if run.leaving is not None:
                leave(run, masks, shares)
        return masks

    def _choose(
        self, board: Board, key: LaneKey, item: Waiting, need: int, coming: list[int], at: float
    ) -> Hold | None:
        """The best victims, if there are any and the head would start once they have ended."""
        grade = whole_class(item.priority)
        below = [found for found in self.candidates if found.grade < grade and found.id in board.runs]
        if not below:
            return None
        others = kept(board, key, item.priority, at, at + item.duration) or [0] * len(coming)
        best: Choice | None = None
        for node, mask in enumerate(coming):
            able = key.ask.eligible[node] & ~others[node]
            gains = [(one, _part(board, one.id, node) & self.sound[node] & able & ~mask) for one in below]
            useful = [(one, gain.bit_count()) for one, gain in gains if gain]
            choice = cheapest(useful, need - (mask & able).bit_count(), self.allowed)
            if choice is not None and (best is None or choice < best):
                best = choice
        if best is None:
            return None
        ids = tuple(sorted(-young for young in best[2]))
        for job_id in ids:
            for node, mask in board.runs[job_id].grant:
                coming[node] |= mask & self.sound[node]
        hold = _hold(board, key, item, need, coming, at)
        if hold is None or not _would_start(board, item.id, ids, coming, at):
            return None
        hold.preempts = ids
        return hold


def cheapest(gains: Sequence[tuple[Candidate, int]], wanted: int, most: int) -> Choice | None:
    """The best of the sets of at most `most` candidates whose gains add up to `wanted`; None when there is none.

    Dynamic programming over how many were taken and how much they gain: a knapsack that is to be filled cheaply.
    """
    best: dict[tuple[int, int], Choice] = {(0, 0): (0, 0, ())}
    for one, gain in sorted(gains):
        for (count, covered), (lost, _, ids) in list(best.items()):
            if covered < wanted and count < most:
                state = (count + 1, min(wanted, covered + gain))
                choice = (lost + one.lost, count + 1, (*ids, one.young))
                if state not in best or choice < best[state]:
                    best[state] = choice
    return min((choice for (_, covered), choice in best.items() if covered >= wanted > 0), default=None)


def _part(board: Board, job_id: JobId, node: int) -> int:
    return next((mask for number, mask in board.runs[job_id].grant if number == node), 0)


def _hold(board: Board, key: LaneKey, item: Waiting, need: int, free: Sequence[int], at: float) -> Hold | None:
    """What would be left for a job if these GPUs were free then; None when they do not suffice."""
    usable = [mask & able for mask, able in zip(free, key.ask.eligible, strict=True)]
    if others := kept(board, key, item.priority, at, at + item.duration):
        usable = [mask & ~other for mask, other in zip(usable, others, strict=True)]
    grant = choose(usable, key.ask, need, need, board.layouts)
    if grant is None:
        return None
    available = {node: usable[node] for node, _ in grant}
    return Hold(
        item.id, at, None, available, {node: mask.bit_count() - need for node, mask in available.items()}, grant
    )


def _would_start(board: Board, job_id: JobId, victims: Sequence[JobId], free: Sequence[int], at: float) -> bool:
    """Whether the job is what starts once they have ended, and nobody ahead of it takes its GPUs."""
    then = board.copy()
    for run in board.runs.values():
        if run.leaving is not None or run.id in victims:
            then.end(run.id, at)
    then.free = list(free)
    return any(run.id == job_id for run in decide(then, at).starts)
