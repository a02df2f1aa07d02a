"""GPUs that several jobs share: how many may be on one, and how much of its memory is not promised yet.

Every job on such a GPU asked to share. Each counts with the memory it was promised, and with what it really uses where
that is more: so a job that has not allocated anything yet takes nobody's memory, and nobody takes its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from gputui.domain.job import JobId
from gputui.domain.policy.machine import Ask, Grant, Layout, choose, pick

Place: TypeAlias = tuple[int, int]
"""A node's number and the bit of one of its GPUs."""
Uses: TypeAlias = tuple[tuple[JobId, int], ...]
"""Bytes that each job on a GPU counts with."""


class Bay(NamedTuple):
    """What a GPU offers to jobs that share."""

    total: int
    """Bytes."""
    floor: int
    """Bytes that are never promised to a second job."""
    most: int
    """At most so many jobs: one, where the site does not let it be shared."""
    closed: str = ""
    """Why no job may join those on it now, whatever room it has."""


class Shares:
    """The GPUs that jobs share now, and what is left there."""

    def __init__(self, bays: Sequence[Sequence[Bay]] = ()) -> None:
        self.bays = bays
        self.uses: dict[Place, Uses] = {}

    def copy(self) -> Shares:
        """One that can go on without this one."""
        other = Shares(self.bays)
        other.uses = self.uses.copy()
        return other

    def bay(self, place: Place) -> Bay:
        """What that GPU offers."""
        return self.bays[place[0]][place[1].bit_length() - 1]

    def left(self, place: Place) -> int:
        """Bytes that a further job may ask for beside those that share the GPU; 0 where none may join."""
        bay, uses = self.bay(place), self.uses.get(place, ())
        if bay.closed or len(uses) >= bay.most:
            return 0
        return max(0, bay.total - bay.floor - sum(size for _, size in uses))

    @property
    def is_open(self) -> bool:
        """Whether any of them has room for a further job."""
        return any(self.left(place) for place in self.uses)

    def take(self, job_id: JobId, place: Place, size: int) -> None:
        """A job counts with so many bytes there."""
        self.uses[place] = (*self.uses.get(place, ()), (job_id, size))

    def give(self, job_id: JobId, grant: Grant) -> Iterator[Place]:
        """The job is gone; those of its GPUs on which nobody is left."""
        for place in places(grant):
            rest = tuple(use for use in self.uses.pop(place, ()) if use[0] != job_id)
            if rest:
                self.uses[place] = rest
            else:
                yield place

    def part(self, ask: Ask, grant: Grant) -> float:
        """What of each GPU such a job is charged with: its memory's part or its place's, whichever is more."""
        if not ask.share or not grant:
            return 1.0
        bays = [self.bay(place) for place in places(grant)]
        return sum(min(1.0, max(1 / bay.most, ask.share / max(1, bay.total))) for bay in bays) / len(bays)


class Room:
    """What there will be on GPUs beside a job that is promised so many bytes of one of them."""

    def __init__(self, promised: int, shares: Shares) -> None:
        self._promised = promised
        self._shares = shares
        """As they will be when the promise is kept, without that job."""

    def beside(self, node: int, mask: int, share: int) -> int:
        """Of these GPUs, those with room for both: that job, and one that asks for `share` bytes."""
        return sum(place[1] for place in places(((node, mask),)) if self._fits((node, place[1]), share))

    def gave(self, node: int, mask: int, share: int) -> int:
        """A job that asks for `share` bytes got these GPUs; those of them that still have room for the promised one."""
        beside = self.beside(node, mask, share)
        for place in places(((node, beside),)):
            self._shares.take(_ANYBODY, place, share)
        return beside

    def _fits(self, place: Place, share: int) -> bool:
        shares = self._shares
        has_place = len(shares.uses.get(place, ())) + 2 <= shares.bay(place).most
        return has_place and shares.left(place) >= self._promised + share


_ANYBODY: JobId = -1


def places(grant: Grant) -> Iterator[Place]:
    """Each of its GPUs."""
    for node, mask in grant:
        while mask:
            bit = mask & -mask
            yield node, bit
            mask ^= bit


def usable(free: Sequence[int], shares: Shares, ask: Ask) -> list[int]:
    """Of each node, the GPUs such a job could have now: free ones, and those with room if it shares."""
    masks = list(free)
    if ask.share:
        for place in shares.uses:
            if shares.left(place) >= ask.share:
                masks[place[0]] |= place[1]
    return [mask & able for mask, able in zip(masks, ask.eligible, strict=True)]


def chosen(
    masks: Sequence[int], shares: Shares, ask: Ask, need: int, most: int, layouts: Sequence[Layout]
) -> Grant | None:
    """What `choose` says; for a job that shares, first the GPUs which that fills up most."""
    if not ask.share or ask.whole_nodes:
        return choose(masks, ask, need, most, layouts)
    fits = [_packed(node, mask, shares, min(mask.bit_count(), most), layouts) for node, mask in enumerate(masks)]
    fitting = [fit for node, fit in enumerate(fits) if masks[node].bit_count() >= need]
    return min(fitting).grant if fitting else None


class _Fit(NamedTuple):
    """A choice on one node; the smallest is the best."""

    fewer: int
    tier: tuple[int, int]
    node: int
    grant: Grant


def _packed(node: int, mask: int, shares: Shares, width: int, layouts: Sequence[Layout]) -> _Fit:
    tiers: dict[tuple[int, int], int] = {}
    for place in places(((node, mask),)):
        key = _tier(shares, place)
        tiers[key] = tiers.get(key, 0) | place[1]
    taken, worst = 0, (0, 0)
    for worst in sorted(tiers):
        left = width - taken.bit_count()
        taken |= tiers[worst] if tiers[worst].bit_count() <= left else pick(tiers[worst], left, layouts[node].levels)
        if taken.bit_count() == width:
            break
    return _Fit(-width, worst, node, ((node, taken),))


def _tier(shares: Shares, place: Place) -> tuple[int, int]:
    """Which are taken first: shared ones with the least memory left, then free ones others may join, then the rest."""
    if place in shares.uses:
        return (0, shares.left(place))
    return (1 if shares.bay(place).most > 1 else 2, 0)
