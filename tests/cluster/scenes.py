"""Clusters with jobs, for pictures and measurements."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from gputui.cluster.slurm.site import SlurmSite, caps_of
from gputui.domain.action import DrainGpus
from gputui.domain.gpu import GpuSample, GpuState, GpuView, Health, HealthCode, Holder, ProbeCode, ProbeStatus
from gputui.domain.job_spec import Submission
from gputui.domain.snapshot import Node, Snapshot
from tests.cluster.fake import THREE_NODES, FakeCluster
from tests.factories import GIB, FakeClock, spec

NAMES = ("llama-7b-sft", "vit-large", "speech-distill", "bert-eval", "diffusion")
USERS = ("alice", "bob", "carol")


def cluster_of(nodes: Mapping[str, int]) -> FakeCluster:
    """Return a cluster with jobs on most of its nodes, a drained node, waiting jobs and an array."""
    clock = FakeClock()
    cluster = FakeCluster(clock, nodes, caps=caps_of(SlurmSite(user="root")))
    for number, gpus in enumerate(nodes.values()):
        wanted = (gpus, gpus // 2, gpus // 2, 1)[number % 4]
        job = spec(gpus=max(1, wanted), name=NAMES[number % 5], tenant=USERS[number % 3], time_limit=timedelta(hours=8))
        cluster.submit_as(USERS[number % 3], Submission(job))
    last = list(nodes)[-1]
    cluster.act(DrainGpus((last,), "fan noise, ticket 812"))
    most = max(nodes.values())
    cluster.submit(
        [Submission(spec(gpus=most, name="llama-70b", time_limit=timedelta(days=1), priority=70))] * 2, "wide"
    )
    cluster.submit([Submission(spec(gpus=1, name="sweep"), array=tuple(range(20)), array_limit=2)], "array")
    cluster.submit([Submission(spec(gpus=1, name="held"), held=True)], "held")
    cluster.write(1, *(f"epoch {epoch}  loss {3 - epoch * 0.03:.3f}" for epoch in range(40)))
    clock.advance(4000)
    return cluster


def three_nodes() -> FakeCluster:
    """Return a cluster of three nodes with two GPUs each."""
    return cluster_of(THREE_NODES)


def many_nodes() -> FakeCluster:
    """Return a cluster of 64 nodes with eight GPUs each."""
    return cluster_of({f"gpu{number:02}": 8 for number in range(1, 65)})


def with_readings(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with readings of all nodes but every seventh, which has no probe."""
    nodes = [node if place % 7 == 6 else _read(node, snapshot, place) for place, node in enumerate(snapshot.nodes)]
    return replace(snapshot, nodes=tuple(nodes))


def with_troubles(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with readings, of which some are late or missing, and with GPUs in trouble."""
    nodes = list(with_readings(snapshot).nodes)
    refused = "no readings: ssh: connect to host {} port 22: Connection refused"
    nodes[1] = replace(nodes[1], gpus=tuple(map(_late, nodes[1].gpus)), probe=_unreachable(refused.format("gpu02")))
    nodes[3] = replace(snapshot.nodes[3], probe=_unreachable("no readings: gputui is not installed there"))
    nodes[4] = _with_gpu(nodes[4], 2, health=Health(HealthCode.XID, "Xid 79: the GPU has fallen off the bus"))
    miner = Holder("process", "xmrig", "eve", pid=4711)
    nodes[5] = _with_gpu(nodes[5], 6, state=GpuState.FOREIGN, why="process 4711 (xmrig) of eve", holders=(miner,))
    return replace(snapshot, nodes=tuple(nodes))


def _late(view: GpuView) -> GpuView:
    return replace(view, age=timedelta(seconds=95), stale=True)


def _unreachable(text: str) -> ProbeStatus:
    return ProbeStatus(ProbeCode.UNREACHABLE, text)


def _with_gpu(node: Node, index: int, **changes: Any) -> Node:
    gpus = list(node.gpus)
    gpus[index] = replace(gpus[index], **changes)
    return replace(node, gpus=tuple(gpus))


def _read(node: Node, snapshot: Snapshot, place: int) -> Node:
    gpus = tuple(_sampled(view, snapshot, (place * 37 + view.gpu.index * 11) % 100) for view in node.gpus)
    return replace(node, gpus=gpus, probe=ProbeStatus(ProbeCode.OK, ""))


def _sampled(view: GpuView, snapshot: Snapshot, load: int) -> GpuView:
    is_busy = view.state is GpuState.ALLOCATED
    sample = GpuSample(
        view.gpu.uuid,
        snapshot.taken_at,
        utilization=load / 100 if is_busy else 0.0,
        memory_used=(load * 141 // 100 if is_busy else 0) * GIB,
        memory_total=141 * GIB,
        temperature=30.0 + load / 3 if is_busy else 31.0,
        power=90.0 + load * 5 if is_busy else 75.0,
        power_limit=700.0,
        sm_clock=1980,
    )
    return replace(view, sample=sample, age=timedelta())
