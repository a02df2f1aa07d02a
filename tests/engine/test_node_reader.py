"""Reader of a cluster's nodes over probes that the test holds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import timedelta

from msgspec.structs import replace

from gputui.domain.gpu import Gpu, GpuSample, Health, HealthCode, ProbeCode, ProbeReading, ProbeStatus
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot
from gputui.engine.cluster.poll import ClusterPoll, NodeReader
from gputui.engine.cluster.queue import EngineQueue
from gputui.engine.feed import Feed
from tests.cluster.fake import FakeCluster
from tests.factories import NOW, FakeClock


class HeldProbes:
    """Probes of nodes whose readings are those that the test sets."""

    interval = timedelta(seconds=2)

    def __init__(self) -> None:
        self.followed: list[str] = []
        self.found: dict[str, ProbeReading] = {}
        self.focus: tuple[str | None, str | None] = (None, None)
        self.is_closed = False

    def follow(self, nodes: Iterable[str]) -> None:
        self.followed = list(nodes)

    def readings(self) -> Mapping[str, ProbeReading]:
        return self.found

    def want_pcie(self, node: str | None, uuid: str | None) -> None:
        self.focus = node, uuid

    def close(self) -> None:
        self.is_closed = True


def reading(*minors: int) -> ProbeReading:
    """Return a reading of GPUs with these minors, as loaded as their minor tells."""
    gpus = tuple(Gpu(f"GPU-{minor}", index, "NVIDIA H200", minor=minor) for index, minor in enumerate(minors))
    samples = {gpu.uuid: GpuSample(gpu.uuid, NOW, utilization=(gpu.minor or 0) / 10, processes=()) for gpu in gpus}
    return ProbeReading(ProbeStatus(ProbeCode.OK, ""), gpus, samples, NOW)


def loads(snapshot: Snapshot) -> list[float | None]:
    return [view.current.utilization if view.current else None for view in snapshot.gpus]


def test_nodes_that_are_up_are_followed_and_read() -> None:
    probes, cluster = HeldProbes(), FakeCluster(FakeClock(), {"gpu1": 2, "gpu2": 2, "cpu1": 0})
    reader = NodeReader(probes, Settings())
    snapshot = cluster.snapshot()
    down = Health(HealthCode.UNKNOWN, "node gpu2 is down")
    views = tuple(replace(view, health=down) for view in snapshot.nodes[1].gpus)
    snapshot = replace(snapshot, nodes=(snapshot.nodes[0], replace(snapshot.nodes[1], gpus=views), snapshot.nodes[2]))
    assert reader.joined(snapshot, NOW).nodes == snapshot.nodes
    assert probes.followed == ["gpu1"]
    probes.found["gpu1"] = reading(1, 0)
    assert loads(reader.joined(snapshot, NOW)) == [0.0, 0.1, None, None]
    probes.found["gpu1"] = reading(3, 4)
    shown = reader.joined(snapshot, NOW).nodes[0].gpus
    assert [(view.gpu.uuid, view.gpu.shown_uuid) for view in shown] == [("gpu1:0", "GPU-3"), ("gpu1:1", "GPU-4")]


def test_readings_are_late_after_four_intervals() -> None:
    probes, cluster = HeldProbes(), FakeCluster(FakeClock(), {"gpu1": 2})
    probes.found["gpu1"] = reading(0, 1)
    reader = NodeReader(probes, Settings())
    for seconds, is_late in ((8, False), (9, True)):
        joined = reader.joined(cluster.snapshot(), NOW + timedelta(seconds=seconds))
        assert {view.stale for view in joined.gpus} == {is_late}


def test_details_are_asked_of_the_node_by_the_drivers_uuid() -> None:
    probes, cluster = HeldProbes(), FakeCluster(FakeClock(), {"gpu1": 2})
    probes.found["gpu1"] = reading(1, 0)
    reader = NodeReader(probes, Settings())
    reader.joined(cluster.snapshot(), NOW)
    reader.want_pcie("gpu1:0")
    focus = [probes.focus]
    reader.want_pcie(None)
    focus.append(probes.focus)
    assert focus == [("gpu1", "GPU-0"), (None, None)]


def test_a_poll_publishes_readings_and_ends_the_probes() -> None:
    probes, clock = HeldProbes(), FakeClock()
    probes.found["gpu1"] = reading(1, 2)
    feed, store = Feed(), EngineQueue(FakeCluster(clock, {"gpu1": 2}))
    poll = ClusterPoll(store, feed, clock, timedelta(seconds=2), NodeReader(probes, Settings()))
    feed.subscribe(lambda snapshot: poll.stop())
    asyncio.run(poll.run())
    assert loads(feed.latest) == [0.1, 0.2]
    assert probes.is_closed
