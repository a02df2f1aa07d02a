"""Which GPUs and MIG instances there are, and what does not change about them. Part of the probe process."""

from __future__ import annotations

import pynvml

from gputui.gpus.nvml import LostError, call, memory_of, power_limit, read, words_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Card:
    """A GPU or a MIG instance, as the driver lists it."""

    __slots__ = ("error", "handle", "index", "mig", "parent", "place", "uuid")

    def __init__(self, index: int, uuid: str, handle: object, error: str = "", parent: Card | None = None) -> None:
        self.index = index
        self.uuid = uuid
        self.handle = handle
        """None: there is none, and nothing may be asked of it (the library crashes on a NULL handle)."""
        self.error = error
        """`lost`, or why it cannot be named; empty when all is well."""
        self.parent = parent
        self.place: int | None = None
        """Which of its parent's instances it is."""
        self.mig = False

    @property
    def identity(self) -> tuple[object, ...]:
        """What must be told anew when it changes."""
        return (self.index, self.uuid, self.error, self.mig, self.parent and self.parent.uuid)


def list_cards() -> list[Card]:
    """All of them, instances after their parents; raises NVMLError when they cannot even be counted."""
    cards: list[Card] = []
    for index in range(call("nvmlDeviceGetCount")):
        card = _card(index)
        cards.append(card)
        cards.extend(_instances(card))
    return cards


def _card(index: int) -> Card:
    """The GPU of that index: a placeholder that keeps its place when the driver cannot reach it."""
    unknown = f"GPU-unknown-{index}"
    try:
        handle = call("nvmlDeviceGetHandleByIndex", index)
        return Card(index, call("nvmlDeviceGetUUID", handle), handle)
    except LostError:
        return Card(index, unknown, None, "lost")
    except pynvml.NVMLError as error:
        return Card(index, unknown, None, words_of(error))


def _instances(parent: Card) -> list[Card]:
    if parent.handle is None:
        return []
    try:
        mode = read("nvmlDeviceGetMigMode", parent.handle)
        parent.mig = bool(mode and mode[0])
        most = read("nvmlDeviceGetMaxMigDeviceCount", parent.handle) if parent.mig else 0
        places = {
            place: read("nvmlDeviceGetMigDeviceHandleByIndex", parent.handle, place) for place in range(most or 0)
        }
        found = [(n, handle, read("nvmlDeviceGetUUID", handle)) for n, handle in places.items() if handle is not None]
    except LostError:
        return []  # the next sweep says so of the parent
    return [_instance(parent, place, handle, uuid) for place, handle, uuid in found if uuid]


def _instance(parent: Card, place: int, handle: object, uuid: str) -> Card:
    card = Card(parent.index, uuid, handle, parent=parent)
    card.place = place
    return card


def facts(card: Card, links: list[dict[str, object]]) -> dict[str, object]:
    """What does not change about it while the driver runs, as far as it can be read."""
    told: dict[str, object] = {"index": card.index, "uuid": card.uuid, "error": card.error, "links": links}
    if card.parent is not None:
        told |= {"mig_parent": card.parent.uuid, "mig_index": card.place}
    try:
        return told | (_of_instance(card) if card.parent else _of_gpu(card))
    except LostError:
        return told | {"error": "lost"}


def _of_gpu(card: Card) -> dict[str, object]:
    if (handle := card.handle) is None:
        return {}
    memory = memory_of(handle)
    persistence = read("nvmlDeviceGetPersistenceMode", handle)
    return {
        "model": read("nvmlDeviceGetName", handle),
        "memory_total": memory and memory.total,
        "pci_bus_id": bus_id(read("nvmlDeviceGetPciInfo", handle)),
        "numa_node": read("nvmlDeviceGetNumaNodeId", handle),
        "minor": read("nvmlDeviceGetMinorNumber", handle),
        "mig_enabled": card.mig,
        "power_limit": power_limit(handle),
        "persistence": None if persistence is None else bool(persistence),
    }


def _of_instance(card: Card) -> dict[str, object]:
    name = read("nvmlDeviceGetName", card.handle) or ""
    memory = memory_of(card.handle)
    model, _, profile = name.partition(" MIG ")
    return {
        "model": model or None,
        "memory_total": memory and memory.total,
        "mig_profile": profile or _profile(read("nvmlDeviceGetAttributes", card.handle)),
    }


def _profile(attributes: Any) -> str | None:
    """`1g.10gb`, made as the driver makes it: compute slices and memory in whole GB."""
    if attributes is None:
        return None
    return f"{attributes.gpuInstanceSliceCount}g.{round(attributes.memorySizeMB / 1024)}gb"


def bus_id(pci: Any) -> str | None:
    """`00000000:1A:00.0`."""
    if pci is None:
        return None
    text = pci.busId
    return text.decode() if isinstance(text, bytes) else str(text)
