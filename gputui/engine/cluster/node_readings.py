"""Joins the snapshots of a cluster with readings of its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gputui.domain.gpu import Gpu, HealthCode, ProbeReading
from gputui.domain.node_readings import ReadingRules, engine_jobs, named_gpus, read_node
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Node, Snapshot

if TYPE_CHECKING:
    from datetime import datetime

    from gputui.ports import NodeProbes

_LATE_AFTER = 4
"""Intervals without a reading after which it is late."""


class NodeReader:
    """Has the nodes of each snapshot read, and adds their latest readings."""

    def __init__(self, probes: NodeProbes, settings: Settings, *, has_gpu_ids: bool = True) -> None:
        """`has_gpu_ids` is False if the engine does not tell which GPUs a job has."""
        self._probes = probes
        self._has_gpu_ids = has_gpu_ids
        self._scheduler = settings.scheduler
        self._named: dict[str, tuple[tuple[Gpu, ...], int, Mapping[str, Gpu]]] = {}
        self._drivers: dict[str, tuple[str, str]] = {}
        """Node and the driver's UUID of each GPU, by its name."""

    def joined(self, snapshot: Snapshot, now: datetime) -> Snapshot:
        """Return the snapshot with the readings; nodes that are new in it are read from now on."""
        self._probes.follow(node.name for node in snapshot.nodes if is_readable(node))
        found = self._probes.readings()
        jobs, rules = engine_jobs(snapshot.jobs, now), self._rules
        nodes = []
        for node in snapshot.nodes:
            reading = found.get(node.name)
            if reading is None:
                nodes.append(node)
                continue
            nodes.append(read_node(node, reading, self._names_of(node, reading), jobs, rules, now))
        return replace(snapshot, nodes=tuple(nodes))

    def readings(self) -> Mapping[str, ProbeReading]:
        """Return the latest reading of each node."""
        return self._probes.readings()

    def want_pcie(self, uuid: str | None) -> None:
        """Read the details of this GPU; None: of no GPU."""
        node, drivers = self._drivers.get(uuid or "", (None, None))
        self._probes.want_pcie(node, drivers)

    def close(self) -> None:
        """End the probes."""
        self._probes.close()

    @property
    def _rules(self) -> ReadingRules:
        late = max(self._scheduler.stale_after, _LATE_AFTER * self._probes.interval)
        floor, ignored = self._scheduler.memory_floor, self._scheduler.ignore_processes
        return ReadingRules(late, floor, ignored, self._has_gpu_ids)

    def _names_of(self, node: Node, reading: ProbeReading) -> Mapping[str, Gpu]:
        """Return the driver's GPUs by name; made again only if they have changed."""
        known = self._named.get(node.name)
        if known is None or known[0] != reading.gpus or known[1] != len(node.gpus):
            named = named_gpus(node.gpus, reading.gpus)
            self._named[node.name] = known = reading.gpus, len(node.gpus), named
            self._drivers |= {name: (node.name, gpu.drivers_uuid or "") for name, gpu in named.items()}
        return known[2]


def is_readable(node: Node) -> bool:
    """Return whether a node has GPUs and is up, as far as the engine knows."""
    return not node.down and any(view.health.code is not HealthCode.UNKNOWN for view in node.gpus)
