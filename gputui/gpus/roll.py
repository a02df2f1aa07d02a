"""Which GPUs there are: a roll on which each keeps its place, whatever the driver makes of it later."""

from __future__ import annotations

from collections.abc import Iterable

from gputui.domain.gpu import Gpu
from gputui.gpus import wire


class Roll:
    """GPUs by UUID. One that is lost keeps its index and its facts, and the others are not renumbered."""

    def __init__(self) -> None:
        self._gpus: dict[str, Gpu] = {}
        self._names: dict[str, str] = {}
        self._absent: set[str] = set()
        self.vanished: frozenset[str] = frozenset()
        """UUIDs that the driver listed before and does not list now, even as lost."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """In the order of their index, instances after their parents."""
        return tuple(sorted(self._gpus.values(), key=lambda gpu: (gpu.index, gpu.mig_parent is not None)))

    def name_of(self, uuid: str) -> str:
        """The UUID a GPU is known by, for the placeholder that stands for it."""
        return self._names.get(uuid, uuid)

    def take(self, cards: Iterable[wire.Card]) -> frozenset[str]:
        """Bring the roll up to date; returns the UUIDs of those that had been lost and are back."""
        listed = tuple(cards)
        named = {card.uuid for card in listed if not card.error}
        self._names = {card.uuid: known for card in listed if card.error and (known := self._known(card, named))}
        present = {self.name_of(card.uuid) for card in listed}
        before = self._gpus
        self._gpus = {uuid: gpu for uuid, gpu in before.items() if uuid in present or self._stays(gpu, present, named)}
        for card in listed:
            uuid = self.name_of(card.uuid)
            if uuid not in before or not card.error:
                self._gpus[uuid] = _gpu(card, uuid, self._index(card, uuid))
        self.vanished = frozenset(self._gpus) - present
        back = named & self._absent
        self._absent = {uuid for uuid in self._gpus if uuid not in named}
        return frozenset(back)

    def _known(self, card: wire.Card, named: set[str]) -> str | None:
        """Who a GPU without a name must be: the one of that index that is not listed under its name."""
        same = (gpu for gpu in self._gpus.values() if gpu.index == card.index and gpu.mig_parent is None)
        return next((gpu.uuid for gpu in same if gpu.uuid not in named), None)

    def _stays(self, gpu: Gpu, present: set[str], named: set[str]) -> bool:
        """Whether one that is not listed is lost, rather than named at last or cut up differently."""
        if gpu.uuid.startswith("GPU-unknown-"):
            return False
        return gpu.mig_parent is None or gpu.mig_parent not in named

    def _index(self, card: wire.Card, uuid: str) -> int:
        if card.mig_parent is not None and (parent := self._gpus.get(card.mig_parent)):
            return parent.index
        if (known := self._gpus.get(uuid)) is not None:
            return known.index
        taken = {gpu.index for gpu in self._gpus.values()}
        return card.index if card.index not in taken else max(taken) + 1


def _gpu(card: wire.Card, uuid: str, index: int) -> Gpu:
    return Gpu(
        uuid=uuid,
        index=index,
        model=card.model,
        memory_total=card.memory_total,
        pci_bus_id=card.pci_bus_id,
        numa_node=card.numa_node,
        minor=card.minor,
        links=card.links,
        mig_parent=card.mig_parent,
        mig_profile=card.mig_profile,
        mig_index=card.mig_index,
        mig_enabled=card.mig_enabled,
        power_limit=card.power_limit,
        persistence=card.persistence,
    )
