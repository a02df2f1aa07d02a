"""How a node's GPUs are connected: groups that a job should not straddle, nor break up without need."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gputui.domain.gpu import Gpu
from gputui.domain.policy.machine import Layout, Level

NVLINK = "NVLINK"
_SWITCH = frozenset({NVLINK, "PIX", "PXB"})
"""Reached without passing the host bridge."""


def layout(gpus: Sequence[Gpu]) -> Layout:
    """The node's GPUs, and those of its groupings that tell some of them apart."""
    everything = (1 << len(gpus)) - 1
    levels = (
        cliques(gpus, lambda kind: kind == NVLINK),
        _by_numa(gpus),
        cliques(gpus, lambda kind: kind in _SWITCH),
    )
    return Layout(everything, tuple(level for level in levels if 1 < len(level) < len(gpus)))


def cliques(gpus: Sequence[Gpu], joins: Callable[[str], bool]) -> Level:
    """Groups in which every GPU reaches every other one by such a link, grown in the GPUs' order."""
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


def _by_numa(gpus: Sequence[Gpu]) -> Level:
    groups: dict[int | None, int] = {}
    for number, gpu in enumerate(gpus):
        groups[gpu.numa_node] = groups.get(gpu.numa_node, 0) | 1 << number
    return tuple(groups.values())
