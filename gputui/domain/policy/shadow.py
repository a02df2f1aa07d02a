"""When and where a job that does not fit yet will: its shadow, from the ends of those that run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gputui.domain.job import JobId
from gputui.domain.policy.board import Board, Keep, leave
from gputui.domain.policy.lanes import LaneKey, Waiting
from gputui.domain.policy.machine import Grant
from gputui.domain.policy.sharing import Room, Shares, chosen, usable


@dataclass(eq=False, slots=True)
class Hold:
    """The one reservation: what must be left for the head of the queue, and from when."""

    id: JobId
    at: float
    because: JobId | None
    """The running job whose end makes it possible."""
    available: dict[int, int]
    """By node: GPUs that the head could take then."""
    spare: dict[int, int]
    """By node: how many of them it does not need."""
    grant: Grant
    """Those it would take, as it looks now."""
    room: Room | None = None
    """If it shares: what there will be beside it."""
    preempts: tuple[JobId, ...] = ()
    """Running jobs that are to make way for it."""

    def leaves(self, node: int, mask: int, share: int = 0) -> int:
        """Of these GPUs, those that a job may have which runs on past the reservation, and shares if `share` is set."""
        available = self.available.get(node)
        if available is None:
            return mask
        beside = self.room.beside(node, mask & available, share) if self.room and share else 0
        wanted, spare = mask & available & ~beside, self.spare[node]
        if wanted.bit_count() <= spare:
            return mask
        taken = mask & ~available | beside
        for _ in range(spare):
            bit = wanted & -wanted
            taken |= bit
            wanted ^= bit
        return taken

    def gave(self, node: int, mask: int, share: int = 0) -> None:
        """Such GPUs went to a job that runs on past the reservation."""
        if node in self.available:
            if self.room and share:
                mask &= ~self.room.gave(node, mask & self.available[node], share)
            self.spare[node] -= (mask & self.available[node]).bit_count()
            self.available[node] &= ~mask


def kept(board: Board, key: LaneKey, priority: int, start: float, end: float) -> list[int] | None:
    """Of each node, the GPUs kept for others at some time between start and end; None when there are none."""
    return _united(
        board,
        [
            keep
            for keep in board.keeps
            if keep.start < end and start < keep.end and not keep.admits(key.tenant, priority)
        ],
    )


def kept_for(board: Board, key: LaneKey, priority: int, now: float) -> list[int] | None:
    """Of each node, the GPUs kept for such jobs now; None when there are none."""
    own = [keep for keep in board.keeps if keep.start <= now < keep.end and keep.admits(key.tenant, priority)]
    return _united(board, own)


def _united(board: Board, keeps: Sequence[Keep]) -> list[int] | None:
    masks: list[int] | None = None
    for keep in keeps:
        masks = [have | more for have, more in zip(masks or [0] * len(board.free), keep.masks, strict=True)]
    return masks


def shadow(board: Board, key: LaneKey, item: Waiting, need: int, now: float) -> Hold | None:
    """The first moment at which so many GPUs are free by everybody's planned end; None when that never comes."""
    ask = key.ask
    coming = sorted((run.ends(now), run.id) for run in board.runs.values() if run.grant)
    moments = [
        *coming,
        *((keep.end, -1) for keep in board.keeps if keep.end > now and not keep.admits(key.tenant, item.priority)),
    ]
    if len(moments) > len(coming):
        moments.sort()
    free, shares = list(board.free), board.shares.copy()
    for number, (at, run_id) in enumerate(moments):
        if run_id >= 0:
            leave(board.runs[run_id], free, shares)
        if number + 1 < len(moments) and moments[number + 1][0] == at:
            continue
        grant = _fits(board, key, item, free, shares, need, at)
        if grant is not None:
            hold = _hold(item.id, at, run_id if run_id >= 0 else None, usable(free, shares, ask), grant, need)
            hold.room = Room(ask.share, shares) if ask.share else None
            return hold
    return None


def _fits(
    board: Board, key: LaneKey, item: Waiting, free: list[int], shares: Shares, need: int, at: float
) -> Grant | None:
    masks = usable(free, shares, key.ask)
    if board.keeps and (others := kept(board, key, item.priority, at, at + item.duration)):
        masks = [mask & ~other for mask, other in zip(masks, others, strict=True)]
    return chosen(masks, shares, key.ask, need, need, board.layouts)


def _hold(job_id: JobId, at: float, because: JobId | None, masks: list[int], grant: Grant, need: int) -> Hold:
    available = {node: masks[node] for node, _ in grant}
    whole = len(grant) > 1
    spare = {node: 0 if whole else mask.bit_count() - need for node, mask in available.items()}
    return Hold(job_id, at, because, available, spare, grant)
