"""GPUs as bits: free GPUs of each node, requests, and the choice of GPUs that belong together.

Bit i of a node's mask is its i-th GPU in order of assignment. The same code decides for the scheduler, the forecast and
the replay, so it is optimised for speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct

from gputui.domain.gpu import Gpu

Grant: TypeAlias = tuple[tuple[int, int], ...]
"""GPUs that a job gets: pairs of a node's number and a mask of its GPUs."""
GpuGroups: TypeAlias = tuple[int, ...]
"""Masks that divide a node's GPUs into groups."""


class Ask(Struct, frozen=True, eq=False):
    """Request of a job as masks. Jobs with equal requests share one Ask."""

    minimum: int
    maximum: int
    eligible: tuple[int, ...]
    """GPUs by node that it could ever use."""
    whole_nodes: int = 0
    """Number of whole nodes, for a request wider than a node."""
    share: int = 0
    """Bytes of each GPU for a job that shares; 0: it gets the GPUs to itself."""


class NodeLayout(Struct, frozen=True):
    """Fixed properties of a node: its GPUs and their connections."""

    everything: int
    """Mask of all its GPUs."""
    levels: tuple[GpuGroups, ...] = ()
    """Groups by NVLink clique, NUMA node and PCIe switch, the most important first."""


def choose(usable: Sequence[int], ask: Ask, need: int, most: int, layouts: Sequence[NodeLayout]) -> Grant | None:
    """Choose `need` to `most` GPUs of one node, or whole nodes; None when they are not available.

    Prefers the node that gives the most, then the one with the fewest GPUs left over.
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


def _whole(usable: Sequence[int], ask: Ask, layouts: Sequence[NodeLayout]) -> Grant | None:
    whole = [(node, mask) for node, mask in enumerate(usable) if mask and mask == layouts[node].everything]
    return tuple(whole[: ask.whole_nodes]) if len(whole) >= ask.whole_nodes else None


def pick(free: int, width: int, levels: Sequence[GpuGroups]) -> int:
    """Return `width` of the free GPUs: the best connected ones, splitting as few connected groups as possible."""
    for number, level in enumerate(levels):
        if free.bit_count() == width:
            return free
        parts = [group & free for group in level if group & free]
        holding = [part for part in parts if part.bit_count() >= width]
        if not holding:
            return _spread(free, parts, width, levels[number:])
        free = min(holding, key=lambda part: (part.bit_count(), part & -part))
    return lowest(free, width)


def _spread(free: int, parts: Sequence[int], width: int, levels: Sequence[GpuGroups]) -> int:
    """Choose more GPUs than any group has: whole groups first, the largest first, the rest by best fit."""
    taken = 0
    for part in sorted(parts, key=lambda part: (-part.bit_count(), part & -part)):
        if taken.bit_count() + part.bit_count() <= width:
            taken |= part
    left = width - taken.bit_count()
    return taken | pick(free & ~taken, left, levels) if left else taken


def lowest(mask: int, width: int) -> int:
    """Return the lowest `width` bits of the mask."""
    taken = 0
    for _ in range(width):
        bit = mask & -mask
        taken |= bit
        mask ^= bit
    return taken


def size(grant: Grant) -> int:
    """Return the number of GPUs of a grant."""
    return sum(mask.bit_count() for _, mask in grant)


NVLINK = "NVLINK"
_SWITCH = frozenset({NVLINK, "PIX", "PXB"})
"""Link kinds that do not pass the host bridge."""


def node_layout(gpus: Sequence[Gpu]) -> NodeLayout:
    """Return the layout of the node's GPUs, with the groupings that distinguish some of them."""
    everything = (1 << len(gpus)) - 1
    levels = (
        cliques(gpus, lambda kind: kind == NVLINK),
        _by_numa(gpus),
        cliques(gpus, lambda kind: kind in _SWITCH),
    )
    return NodeLayout(everything, tuple(level for level in levels if 1 < len(level) < len(gpus)))


def cliques(gpus: Sequence[Gpu], joins: Callable[[str], bool]) -> GpuGroups:
    """Return groups in which every GPU reaches every other one by such a link, built in the GPUs' order."""
    bit = {gpu.uuid: 1 << number for number, gpu in enumerate(gpus)}
    reach = [sum({bit[link.peer] for link in gpu.links if joins(link.kind) and link.peer in bit}) for gpu in gpus]
    groups, left = [], (1 << len(gpus)) - 1
    while left:
        group, common = 0, left
        while common:
            first = common & -common
            group |= first
            common &= reach[first.bit_length() - 1] & ~group
        groups.append(group)
        left &= ~group
    return tuple(groups)


def _by_numa(gpus: Sequence[Gpu]) -> GpuGroups:
    groups: dict[int | None, int] = {}
    for number, gpu in enumerate(gpus):
        groups[gpu.numa_node] = groups.get(gpu.numa_node, 0) | 1 << number
    return tuple(groups.values())
