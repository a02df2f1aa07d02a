"""Registry of GPUs: each keeps its index and facts, even after the driver has lost it."""

from __future__ import annotations

from collections.abc import Iterable

from gputui.domain.gpu import Gpu
from gputui.gpus import wire


class GpuRegistry:
    """Registry of GPUs by UUID. A lost GPU keeps its index and facts, and the others are not renumbered."""

    def __init__(self) -> None:
        self._gpus: dict[str, Gpu] = {}
        self._names: dict[str, str] = {}
        self._absent: set[str] = set()
        self.vanished: frozenset[str] = frozenset()
        """UUIDs that the driver listed earlier and no longer lists, not even as lost."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """GPUs by index, MIG instances after their parents."""
        return tuple(sorted(self._gpus.values(), key=lambda gpu: (gpu.index, gpu.mig_parent is not None)))

    def known_uuid(self, uuid: str) -> str:
        """Return the known UUID of a GPU that the driver now lists under a placeholder."""
        return self._names.get(uuid, uuid)

    def update(self, listing: Iterable[wire.GpuFacts]) -> frozenset[str]:
        """Update the registry from a new list; return the UUIDs of GPUs that were lost and are back."""
        listed = tuple(listing)
        named = {facts.uuid for facts in listed if not facts.error}
        self._names = {facts.uuid: known for facts in listed if facts.error and (known := self._identify(facts, named))}
        present = {self.known_uuid(facts.uuid) for facts in listed}
        before = self._gpus
        self._gpus = {uuid: gpu for uuid, gpu in before.items() if uuid in present or self._stays(gpu, present, named)}
        for facts in listed:
            uuid = self.known_uuid(facts.uuid)
            if uuid not in before or not facts.error:
                self._gpus[uuid] = _gpu(facts, uuid, self._index(facts, uuid))
        self.vanished = frozenset(self._gpus) - present
        back = named & self._absent
        self._absent = {uuid for uuid in self._gpus if uuid not in named}
        return frozenset(back)

    def _identify(self, facts: wire.GpuFacts, named: set[str]) -> str | None:
        """Return the UUID of the GPU with this index that is not listed under its own UUID."""
        same = (gpu for gpu in self._gpus.values() if gpu.index == facts.index and gpu.mig_parent is None)
        return next((gpu.uuid for gpu in same if gpu.uuid not in named), None)

    def _stays(self, gpu: Gpu, present: set[str], named: set[str]) -> bool:
        """Return whether an unlisted GPU is lost, rather than identified by now or partitioned differently."""
        if gpu.uuid.startswith("GPU-unknown-"):
            return False
        return gpu.mig_parent is None or gpu.mig_parent not in named

    def _index(self, facts: wire.GpuFacts, uuid: str) -> int:
        if facts.mig_parent is not None and (parent := self._gpus.get(facts.mig_parent)):
            return parent.index
        if (known := self._gpus.get(uuid)) is not None:
            return known.index
        taken = {gpu.index for gpu in self._gpus.values()}
        return facts.index if facts.index not in taken else max(taken) + 1


def _gpu(facts: wire.GpuFacts, uuid: str, index: int) -> Gpu:
    return Gpu(
        uuid=uuid,
        index=index,
        model=facts.model,
        memory_total=facts.memory_total,
        pci_bus_id=facts.pci_bus_id,
        numa_node=facts.numa_node,
        minor=facts.minor,
        links=facts.links,
        mig_parent=facts.mig_parent,
        mig_profile=facts.mig_profile,
        mig_index=facts.mig_index,
        mig_enabled=facts.mig_enabled,
        power_limit=facts.power_limit,
        persistence=facts.persistence,
    )
