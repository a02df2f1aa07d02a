"""When and where a job that does not fit yet will: its shadow, from the ends of those that run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gputui.domain.job import JobId
from gputui.domain.policy.board import Board, Keep, leave
from gputui.domain.policy.lanes import LaneKey, Waiting
from gputui.domain.policy.machine import Grant, Layout, pick, size
from gputui.domain.policy.settling import SOON
from gputui.domain.policy.sharing import Room, chosen, usable


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
    is_firm: bool = False
    """Others make way for it, and may be gone sooner: nobody takes these GPUs meanwhile, however short."""

    def binds(self, end: float) -> bool:
        """Whether a job that is planned to end then must leave those GPUs alone."""
        return self.is_firm or end > self.at

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

    def gave(self, node: int, mask: int, layouts: Sequence[Layout], share: int = 0) -> None:
        """Such GPUs went to a job that runs on past the reservation."""
        if node in self.available:
            if self.room and share:
                mask &= ~self.room.gave(node, mask & self.available[node], share)
            self.spare[node] -= (mask & self.available[node]).bit_count()
            self.available[node] &= ~mask
            if any(mask & mine for home, mine in self.grant if home == node):
                self.grant = ((node, pick(self.available[node], size(self.grant), layouts[node].levels)),)


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


def shadow(board: Board, key: LaneKey, item: Waiting, now: float) -> Hold | None:
    """The first moment at which it fits by everybody's planned end; None when that never comes."""
    moments = _moments(board, key, item, now)
    free = [free | settling for free, settling in zip(board.free, board.settling, strict=True)]
    shares = board.shares.copy()
    given_back = 0
    for number, (at, run_id) in enumerate(moments):
        if run_id >= 0:
            run = board.runs[run_id]
            given_back += run.width if run.key.tenant == key.tenant else 0
            leave(run, free, shares)
        if number + 1 < len(moments) and moments[number + 1][0] == at:
            continue
        masks = usable(free, shares, key.ask)
        if board.keeps and (others := kept(board, key, item.priority, at, at + item.duration)):
            masks = [mask & ~other for mask, other in zip(masks, others, strict=True)]
        need = needed(board, key, item, at, -given_back)
        grant = chosen(masks, shares, key.ask, need, need, board.layouts)
        if grant is not None:
            hold = _hold(item.id, at, run_id if run_id >= 0 else None, masks, grant, need)
            hold.room = Room(key.ask.share, shares) if key.ask.share else None
            return hold
    return None


def _moments(board: Board, key: LaneKey, item: Waiting, now: float) -> list[tuple[float, JobId]]:
    """When it may fit: as jobs end, GPUs given back are read again, windows for others end, patience ends."""
    moments = [(run.ends(now), run.id) for run in board.runs.values() if run.width]
    moments += [(keep.end, -1) for keep in board.keeps if keep.end > now and not keep.admits(key.tenant, item.priority)]
    settles = item.submitted + board.rules.patience
    if any(board.settling):
        moments.append((now + SOON, -1))
    if key.ask.minimum != key.ask.maximum and settles > now:
        moments.append((settles, -1))
    moments.sort()
    return moments


def needed(board: Board, key: LaneKey, item: Waiting, at: float, owed: int = 0) -> int:
    """The fewest GPUs it takes by then: the most it may have beside `owed` others, until its patience is over."""
    ask = key.ask
    if ask.minimum == ask.maximum or at >= item.submitted + board.rules.patience:
        return ask.minimum
    return most(board, key, owed)


def most(board: Board, key: LaneKey, owed: int = 0) -> int:
    """The most GPUs such a job may have: what it asks for, as far as its tenant's cap allows beside `owed` others."""
    caps = board.rules.caps.get(key.tenant)
    if caps is None or caps.gpus is None:
        return key.ask.maximum
    return max(key.ask.minimum, min(key.ask.maximum, caps.gpus - owed - board.gpus_held[key.tenant]))


def _hold(job_id: JobId, at: float, because: JobId | None, masks: list[int], grant: Grant, need: int) -> Hold:
    available = {node: masks[node] for node, _ in grant}
    whole = len(grant) > 1
    spare = {node: 0 if whole else mask.bit_count() - need for node, mask in available.items()}
    return Hold(job_id, at, because, available, spare, grant)
