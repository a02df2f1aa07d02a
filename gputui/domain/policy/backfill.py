"""Backfill reservation: when and where the first job that does not fit will start, computed from the planned ends of
running jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from gputui.domain.job_spec import JobId
from gputui.domain.policy.cluster_state import ClusterState, ReservedWindow, release_gpus
from gputui.domain.policy.gpus.placement import (
    SOON,
    Grant,
    NodeLayout,
    PromisedRoom,
    choose_shared,
    pick,
    size,
    usable_gpus,
)
from gputui.domain.policy.lanes import LaneKey, Waiting


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


class EarlierPromise(Protocol):
    """Finds GPUs for the head of the queue before the planned ends of running jobs, as by preemption."""

    def promise(
        self,
        planned: BackfillReservation | None,
        cluster: ClusterState,
        head: QueueHead,
        now: float,
    ) -> BackfillReservation | None:
        """Return the reservation for the head: `planned`, or an earlier one."""
        ...


def gpus_kept_for_others(cluster: ClusterState, key: LaneKey, start: float, end: float) -> list[int] | None:
    """Return the GPUs reserved for others between start and end, by node; None if there are none."""
    return _united(
        cluster,
        [
            keep
            for keep in cluster.keeps
            if keep.start < end and start < keep.end and not keep.admits(key.tenant, key.priority)
        ],
    )


def gpus_kept_for(cluster: ClusterState, key: LaneKey, now: float) -> list[int] | None:
    """Return the GPUs reserved for such jobs now, by node; None if there are none."""
    own = [keep for keep in cluster.keeps if keep.start <= now < keep.end and keep.admits(key.tenant, key.priority)]
    return _united(cluster, own)


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
            hold = _hold(item.id, at, run_id if run_id >= 0 else None, masks, grant, need)
            hold.room = PromisedRoom(key.ask.share, shares) if key.ask.share else None
            return hold
    return None


def _moments(cluster: ClusterState, key: LaneKey, item: Waiting, now: float) -> list[tuple[float, JobId]]:
    """Return the times at which it may fit.

    Ends of jobs and reservations, new readings of freed GPUs, and the end of its patience.
    """
    moments = [(run.ends(now), run.id) for run in cluster.runs.values() if run.width]
    moments += [
        (keep.end, -1) for keep in cluster.keeps if keep.end > now and not keep.admits(key.tenant, key.priority)
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


def _hold(
    job_id: JobId, at: float, because: JobId | None, masks: list[int], grant: Grant, need: int
) -> BackfillReservation:
    available = {node: masks[node] for node, _ in grant}
    whole = len(grant) > 1
    spare = {node: 0 if whole else mask.bit_count() - need for node, mask in available.items()}
    return BackfillReservation(job_id, at, because, available, spare, grant)
