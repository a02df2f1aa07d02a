"""The simulated GPUs themselves: names, places and links."""

from __future__ import annotations

from gputui.domain.gpu import Gpu, Link
from gputui.gpus.load import chance
from gputui.gpus.models import Model

_BOARD = 8
"""GPUs that one board joins by NVLink, as in HGX machines."""
_MOST_PATHS = 16
"""With more GPUs than this, only links within a board are told of: all pairs would be tens of thousands."""


def make_gpus(count: int, model: Model, seed: int) -> tuple[Gpu, ...]:
    """GPUs of that model on two sockets, the same for the same seed."""
    uuids = tuple(_uuid(seed, index) for index in range(count))
    return tuple(
        Gpu(
            uuid=uuid,
            index=index,
            model=model.name,
            memory_total=model.memory,
            pci_bus_id=f"{index // 32:08X}:{0x10 + index % 32 * 4:02X}:00.0",
            numa_node=_numa(index, count),
            minor=index,
            links=tuple(_links(index, uuids, model)),
            power_limit=model.power_limit,
            persistence=True,
        )
        for index, uuid in enumerate(uuids)
    )


def _uuid(seed: int, index: int) -> str:
    a, b, c, d = (int(chance(seed, index, part) * 0xFFFFFFFF) for part in range(4))
    return f"GPU-{a:08x}-{b >> 16:04x}-4{b & 0xFFF:03x}-8{c >> 20:03x}-{c & 0xFFFFF:05x}{d & 0xFFFFFFF:07x}"


def _numa(index: int, count: int) -> int:
    return int(index >= (count + 1) // 2)


def _links(index: int, uuids: tuple[str, ...], model: Model) -> list[Link]:
    near = [other for other in range(len(uuids)) if other != index]
    if len(uuids) > _MOST_PATHS:
        near = [other for other in near if other // _BOARD == index // _BOARD]
    return [_link(index, other, uuids, model) for other in near]


def _link(index: int, other: int, uuids: tuple[str, ...], model: Model) -> Link:
    joined = other == index ^ 1 if model.pairs else other // _BOARD == index // _BOARD
    if model.lanes and joined:
        return Link(uuids[other], "NVLINK", model.lanes)
    same = _numa(index, len(uuids)) == _numa(other, len(uuids))
    if same and index // 2 == other // 2:
        return Link(uuids[other], "PXB")
    return Link(uuids[other], "NODE" if same else "SYS")
