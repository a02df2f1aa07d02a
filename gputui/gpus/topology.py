"""How GPUs reach each other: NVLink lanes, else the PCIe path. Part of the probe process."""

from __future__ import annotations

import pynvml

from gputui.gpus.nvml import LostError, call, read
from gputui.gpus.roster import Card, bus_id

_PATHS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t, in the words of `nvidia-smi topo -m`; two GPUs of one board count as PIX."""
_MOST_LANES = getattr(pynvml, "NVML_NVLINK_MAX_LINKS", 18)


def links_of(cards: list[Card]) -> dict[str, list[dict[str, object]]]:
    """For each GPU's UUID, its ways to every other one. MIG instances have none."""
    whole = [card for card in cards if card.parent is None and card.handle is not None]
    places = {bus_id(_quietly("nvmlDeviceGetPciInfo", card.handle)): card.uuid for card in whole}
    lanes = {card.uuid: _lanes(card, places) for card in whole}
    return {one.uuid: [link for other in whole if (link := _link(one, other, lanes))] for one in whole}


def _lanes(card: Card, places: dict[str | None, str]) -> dict[str, int]:
    """Active lanes by the UUID of the GPU at their other end; `switch` for those that end in an NVSwitch."""
    counted: dict[str, int] = {}
    for lane in range(_MOST_LANES):
        try:
            if not call("nvmlDeviceGetNvLinkState", card.handle, lane):
                continue
        except (pynvml.NVMLError, LostError):
            break  # no such lane, or no NVLink at all
        end = places.get(bus_id(_quietly("nvmlDeviceGetNvLinkRemotePciInfo", card.handle, lane)))
        if end is None:
            kind = _quietly("nvmlDeviceGetNvLinkRemoteDeviceType", card.handle, lane)
            end = "switch" if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH else "elsewhere"
        counted[end] = counted.get(end, 0) + 1
    return counted


def _link(one: Card, other: Card, lanes: dict[str, dict[str, int]]) -> dict[str, object] | None:
    if one is other:
        return None
    mine, theirs = lanes[one.uuid], lanes[other.uuid]
    direct = mine.get(other.uuid, 0)
    through = min(mine.get("switch", 0), theirs.get("switch", 0))
    if direct or through:
        return {"peer": other.uuid, "kind": "NVLINK", "lanes": direct or through}
    level = _quietly("nvmlDeviceGetTopologyCommonAncestor", one.handle, other.handle)
    path = _PATHS.get(level) if isinstance(level, int) else None
    return {"peer": other.uuid, "kind": path} if path else None


def _quietly(name: str, *arguments: object) -> object:
    try:
        return read(name, *arguments)
    except LostError:
        return None
