"""GPUs that several jobs share: how many jobs may be on one, and how much of its memory is still unpromised.

Every job on such a GPU asked to share. Each counts with its promised memory, or with its actual use if that is more: so
a job that has not allocated memory yet takes none from others, and none is taken from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from gputui.domain.job_spec import JobId
from gputui.domain.policy.gpus.placement import Ask, Grant, NodeLayout, choose, pick

GpuBit: TypeAlias = tuple[int, int]
"""GPU as a node's number and the bit of the GPU there."""
Uses: TypeAlias = tuple[tuple[JobId, int], ...]
"""Bytes that each job on a GPU counts with."""


class SharedSlots(NamedTuple):
    """Capacity of a GPU for jobs that share it."""

    total: int
    """Total memory in bytes."""
    floor: int
    """Bytes that are never promised to a second job."""
    most: int
    """Maximum number of jobs; 1 if the site does not allow sharing it."""
    closed: str = ""
    """Reason why no further job may join now, even if there is room; empty when one may."""


class SharedGpus:
    """The GPUs that jobs share now, and their remaining room."""

    def __init__(self, bays: Sequence[Sequence[SharedSlots]] = ()) -> None:
        self.bays = bays
        self.uses: dict[GpuBit, Uses] = {}

    def copy(self) -> SharedGpus:
        """Return an independent copy."""
        other = SharedGpus(self.bays)
        other.uses = self.uses.copy()
        return other

    def bay(self, place: GpuBit) -> SharedSlots:
        """Return the capacity of that GPU."""
        return self.bays[place[0]][place[1].bit_length() - 1]

    def left(self, place: GpuBit) -> int:
        """Return the bytes that a further job may ask for on the shared GPU; 0 if none may join."""
        bay, uses = self.bay(place), self.uses.get(place, ())
        if bay.closed or len(uses) >= bay.most:
            return 0
        return max(0, bay.total - bay.floor - sum(size for _, size in uses))

    @property
    def is_open(self) -> bool:
        """Return whether any of them has room for a further job."""
        return any(self.left(place) for place in self.uses)

    def take(self, job_id: JobId, place: GpuBit, size: int) -> None:
        """Record that a job counts with `size` bytes there."""
        self.uses[place] = (*self.uses.get(place, ()), (job_id, size))

    def give(self, job_id: JobId, grant: Grant) -> Iterator[GpuBit]:
        """Remove a job; yield those of its GPUs that no other job holds."""
        for place in gpu_bits(grant):
            rest = tuple(use for use in self.uses.pop(place, ()) if use[0] != job_id)
            if rest:
                self.uses[place] = rest
            else:
                yield place

    def part(self, ask: Ask, grant: Grant) -> float:
        """Return the share of each GPU that such a job is charged for.

        Its part of the memory or of the slots, whichever is larger.
        """
        if not ask.share or not grant:
            return 1.0
        bays = [self.bay(place) for place in gpu_bits(grant)]
        return sum(min(1.0, max(1 / bay.most, ask.share / max(1, bay.total))) for bay in bays) / len(bays)


class PromisedRoom:
    """Room on GPUs beside a job to which memory on one of them is promised."""

    def __init__(self, promised: int, shares: SharedGpus) -> None:
        self._promised = promised
        self._shares = shares
        """Sharing as it will be once the promise is fulfilled, without that job."""

    def fitting(self, node: int, mask: int, share: int) -> int:
        """Return those of these GPUs that have room for both that job and one that asks for `share` bytes."""
        return sum(place[1] for place in gpu_bits(((node, mask),)) if self._fits((node, place[1]), share))

    def take(self, node: int, mask: int, share: int) -> int:
        """Record that a job with `share` bytes got these GPUs; return those with room left for the promised job."""
        beside = self.fitting(node, mask, share)
        for place in gpu_bits(((node, beside),)):
            self._shares.take(_ANYBODY, place, share)
        return beside

    def _fits(self, place: GpuBit, share: int) -> bool:
        shares = self._shares
        has_place = len(shares.uses.get(place, ())) + 2 <= shares.bay(place).most
        return has_place and shares.left(place) >= self._promised + share


_ANYBODY: JobId = -1


def gpu_bits(grant: Grant) -> Iterator[GpuBit]:
    """Yield each GPU of a grant."""
    for node, mask in grant:
        while mask:
            bit = mask & -mask
            yield node, bit
            mask ^= bit


def usable_gpus(free: Sequence[int], shares: SharedGpus, ask: Ask) -> list[int]:
    """Return the GPUs that such a job could use now, by node: free ones, and those with room if it shares."""
    masks = list(free)
    if ask.share:
        for place in shares.uses:
            if shares.left(place) >= ask.share:
                masks[place[0]] |= place[1]
    return [mask & able for mask, able in zip(masks, ask.eligible, strict=True)]


def choose_shared(
    masks: Sequence[int], shares: SharedGpus, ask: Ask, need: int, most: int, layouts: Sequence[NodeLayout]
) -> Grant | None:
    """Choose GPUs as `choose` does; for a job that shares, prefer the GPUs that it fills most."""
    if not ask.share or ask.whole_nodes:
        return choose(masks, ask, need, most, layouts)
    fits = [_packed(node, mask, shares, min(mask.bit_count(), most), layouts) for node, mask in enumerate(masks)]
    fitting = [fit for node, fit in enumerate(fits) if masks[node].bit_count() >= need]
    return min(fitting).grant if fitting else None


class _Fit(NamedTuple):
    """Choice on one node; sorts the best first."""

    fewer: int
    tier: tuple[int, int]
    node: int
    grant: Grant


def _packed(node: int, mask: int, shares: SharedGpus, width: int, layouts: Sequence[NodeLayout]) -> _Fit:
    tiers: dict[tuple[int, int], int] = {}
    for place in gpu_bits(((node, mask),)):
        key = _tier(shares, place)
        tiers[key] = tiers.get(key, 0) | place[1]
    taken, worst = 0, (0, 0)
    for worst in sorted(tiers):
        left = width - taken.bit_count()
        taken |= tiers[worst] if tiers[worst].bit_count() <= left else pick(tiers[worst], left, layouts[node].levels)
        if taken.bit_count() == width:
            break
    return _Fit(-width, worst, node, ((node, taken),))


def _tier(shares: SharedGpus, place: GpuBit) -> tuple[int, int]:
    """Rank a GPU for sharing: shared ones with the least memory left first, then free shareable ones, then the rest."""
    if place in shares.uses:
        return (0, shares.left(place))
    return (1 if shares.bay(place).most > 1 else 2, 0)
