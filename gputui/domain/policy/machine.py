"""GPUs as bits: what is free on each node, what a job asks of them, and which of them are taken together.

Bit i of a node's mask is its i-th GPU in the order in which they are given out. The same few lines decide for the
scheduler, the forecast and the replay, so they are made to be fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Grant: TypeAlias = tuple[tuple[int, int], ...]
"""What a job gets: pairs of a node's number and a mask of its GPUs."""
Level: TypeAlias = tuple[int, ...]
"""Masks that part a node's GPUs into groups."""


@dataclass(frozen=True, eq=False)
class Ask:
    """What a job asks for. Jobs that ask for the same share one Ask."""

    minimum: int
    maximum: int
    eligible: tuple[int, ...]
    """Of each node, the GPUs that it could ever use."""
    whole_nodes: int = 0
    """Wider than a node: so many whole nodes."""
    share: int = 0
    """Bytes of each GPU, which others may share that ask so; 0: the GPUs to itself."""


@dataclass(frozen=True)
class Layout:
    """What does not change about a node: its GPUs, and how they are connected."""

    everything: int
    """The mask of all its GPUs."""
    levels: tuple[Level, ...] = ()
    """NVLink cliques, NUMA nodes, PCIe switches: in the order in which they matter."""


def choose(usable: Sequence[int], ask: Ask, need: int, most: int, layouts: Sequence[Layout]) -> Grant | None:
    """At least `need` and up to `most` GPUs of one node, or whole nodes; None when they are not to be had.

    Of several nodes the one that gives most of what is asked, then the one with the fewest GPUs left over.
    """
    if ask.whole_nodes:
        return _whole(usable, ask, layouts)
    best, best_key = -1, (0, 0)
    for node, mask in enumerate(usable):
        count = mask.bit_count()
        if count >= need:
            key = (-count if count < most else -most, count)
            if best < 0 or key < best_key:
                best, best_key = node, key
    if best < 0:
        return None
    width = -best_key[0]
    return ((best, pick(usable[best], width, layouts[best].levels)),)


def _whole(usable: Sequence[int], ask: Ask, layouts: Sequence[Layout]) -> Grant | None:
    whole = [(node, mask) for node, mask in enumerate(usable) if mask and mask == layouts[node].everything]
    return tuple(whole[: ask.whole_nodes]) if len(whole) >= ask.whole_nodes else None


def pick(free: int, width: int, levels: Sequence[Level]) -> int:
    """So many of the free GPUs, the best connected ones, breaking up as little as possible that is connected."""
    for number, level in enumerate(levels):
        if free.bit_count() == width:
            return free
        parts = [group & free for group in level if group & free]
        holding = [part for part in parts if part.bit_count() >= width]
        if not holding:
            return _spread(free, parts, width, levels[number:])
        free = min(holding, key=lambda part: (part.bit_count(), part & -part))
    return lowest(free, width)


def _spread(free: int, parts: Sequence[int], width: int, levels: Sequence[Level]) -> int:
    """More than any group has: whole groups first, the largest first, then the rest from one that fits it best."""
    taken = 0
    for part in sorted(parts, key=lambda part: (-part.bit_count(), part & -part)):
        if taken.bit_count() + part.bit_count() <= width:
            taken |= part
    left = width - taken.bit_count()
    return taken | pick(free & ~taken, left, levels) if left else taken


def lowest(mask: int, width: int) -> int:
    """Its first so many GPUs."""
    taken = 0
    for _ in range(width):
        bit = mask & -mask
        taken |= bit
        mask ^= bit
    return taken


def size(grant: Grant) -> int:
    """How many GPUs it is."""
    return sum(mask.bit_count() for _, mask in grant)
