"""Readings of nodes, joined with what a cluster's engine says."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from gputui.domain.gpu import (
    NO_PROBE,
    Gpu,
    GpuProcess,
    GpuSample,
    GpuState,
    GpuView,
    Health,
    HealthCode,
    Holder,
    Link,
    ProbeCode,
    ProbeReading,
    ProbeStatus,
)
from gputui.domain.job import Attempt, Job
from gputui.domain.node_readings import MIG, ReadingRules, by_engine_index, engine_jobs, named_gpus, read_node
from gputui.domain.snapshot import Node
from gputui.domain.state import JobState
from tests.factories import GIB, NOW, job

RULES = ReadingRules(timedelta(seconds=10), GIB, ("Xorg",))
XID = Health(HealthCode.XID, "Xid 79: the GPU has fallen off the bus")


def gpus_with_minors(*minors: int | None) -> list[Gpu]:
    return [Gpu(f"GPU-{index}", index, "H200", minor=minor) for index, minor in enumerate(minors)]


def mapped(gpus: Iterable[Gpu], count: int) -> dict[int, str]:
    return {index: gpu.uuid for index, gpu in by_engine_index(gpus, count).items()}


def test_indices_of_gpus() -> None:
    # an index is the place among device files
    assert mapped(gpus_with_minors(1, 0), 2) == {0: "GPU-1", 1: "GPU-0"}
    assert mapped(gpus_with_minors(4, 6), 2) == {0: "GPU-0", 1: "GPU-1"}
    assert mapped(gpus_with_minors(None, None), 2) == {0: "GPU-0", 1: "GPU-1"}
    # if the driver has other GPUs than the engine only the device counts
    assert mapped(gpus_with_minors(3, 1), 4) == {3: "GPU-0", 1: "GPU-1"}
    assert mapped(gpus_with_minors(0, 1, 2), 2) == {0: "GPU-0", 1: "GPU-1"}


def node(*states: GpuState, **more: Any) -> Node:
    views = [GpuView(Gpu(f"gpu1:{index}", index, "H200"), state, Health()) for index, state in enumerate(states)]
    return Node("gpu1", tuple(replace(view, **more) for view in views), NO_PROBE)


def reading(*samples: GpuSample, **more: Any) -> ProbeReading:
    status = ProbeStatus(ProbeCode.OK, "")
    gpus = gpus_with_minors(*range(len(samples)))
    return ProbeReading(status, tuple(gpus), {sample.uuid: sample for sample in samples}, NOW, "570.1", **more)


def sample(index: int = 0, **more: Any) -> GpuSample:
    figures: dict[str, Any] = {"utilization": 0.9, "memory_used": 2 * GIB, "processes": (), "processes_at": NOW} | more
    return GpuSample(f"GPU-{index}", NOW, **figures)


def read(node: Node, found: ProbeReading, *jobs: Job, after: float = 1.0) -> Node:
    now = NOW + timedelta(seconds=after)
    return read_node(node, found, named_gpus(node.gpus, found.gpus), engine_jobs(jobs, now), RULES, now)


def running() -> Job:
    return replace(job(7), state=JobState.RUNNING, attempts=(Attempt(1, ("gpu1:0",)),), submitted_by="alice")


HELD = {"job_id": 7, "job_ids": (7,), "holders": (Holder("job", "train", "alice"),)}


def test_a_gpu_keeps_its_name_and_gets_uuid_figures_and_links() -> None:
    links = {"links": (Link("GPU-1", "NVLINK", 18), Link("GPU-9", "SYS"))}
    found = reading(sample(0), sample(1))
    found = replace(found, gpus=(replace(found.gpus[0], **links), found.gpus[1]))
    made = read(node(GpuState.ALLOCATED, GpuState.FREE), found)
    first = made.gpus[0]
    assert (first.gpu.uuid, first.gpu.shown_uuid, first.gpu.index) == ("gpu1:0", "GPU-0", 0)
    assert first.gpu.links == (Link("gpu1:1", "NVLINK", 18),)
    assert first.current is not None
    assert (first.current.uuid, first.current.utilization) == ("gpu1:0", 0.9)
    assert (first.state, first.age, first.stale) == (GpuState.ALLOCATED, timedelta(seconds=1), False)
    assert (made.probe.code, made.driver_version) == (ProbeCode.OK, "570.1")


def test_late_readings_and_faults() -> None:
    # late readings stay with their age and change no state
    stranger = GpuProcess(9, user="eve", command="miner")
    (view,) = read(node(GpuState.FREE), reading(sample(processes=(stranger,))), after=11).gpus
    assert (view.state, view.stale, view.age, view.current) == (GpuState.FREE, True, timedelta(seconds=11), None)
    # faults of the driver are shown and the state stays the engines
    (view,) = read(node(GpuState.FREE), reading(sample(health=XID, memory_used=0))).gpus
    assert (view.health, view.state) == (XID, GpuState.FREE)
    down = Health(HealthCode.UNKNOWN, "node gpu1 is down")
    (view,) = read(node(GpuState.UNKNOWN, health=down), reading(sample())).gpus
    assert view.health == down


def test_foreign_use_of_a_gpu() -> None:
    # a free GPU with processes is in foreign use
    processes = (GpuProcess(8, command="Xorg"), GpuProcess(9, user="eve", command="miner", memory=GIB))
    (view,) = read(node(GpuState.FREE), reading(sample(processes=processes))).gpus
    assert (view.state, view.why) == (GpuState.FOREIGN, "process 9 (miner) of eve")
    assert [(each.name, each.user, each.memory) for each in view.holders] == [("miner", "eve", GIB)]
    (view,) = read(node(GpuState.FREE), reading(sample())).gpus
    assert (view.state, view.why) == (GpuState.FOREIGN, "2G of its memory is used by an unknown process")
    # use is not judged by an engine that does not tell which GPUs a job has
    found = reading(sample(processes=(GpuProcess(9, user="eve", command="miner"),)))
    shown = node(GpuState.FREE)
    rules = replace(RULES, has_gpu_ids=False)
    (view,) = read_node(shown, found, named_gpus(shown.gpus, found.gpus), engine_jobs((), NOW), rules, NOW).gpus
    assert (view.state, view.holders) == (GpuState.FREE, ())
    assert view.current is not None
    # what is left of a job that has just ended is not foreign
    ended = replace(running(), state=JobState.COMPLETED, ended_at=NOW - timedelta(seconds=2))
    found = reading(sample(processes=(GpuProcess(9, user="alice", command="train"),)))
    assert read(node(GpuState.FREE), found, ended).gpus[0].state is GpuState.FREE
    longer = replace(ended, ended_at=NOW - timedelta(seconds=20))
    assert read(node(GpuState.FREE), found, longer).gpus[0].state is GpuState.FOREIGN
    # processes of others beside a job are foreign
    three = (GpuProcess(9, user="alice"), GpuProcess(10, user="eve", command="miner"), GpuProcess(11, user="61001"))
    (view,) = read(node(GpuState.ALLOCATED, **HELD), reading(sample(processes=three)), running()).gpus
    assert [each.name for each in view.holders] == ["train", "miner"]
    assert view.process_jobs == {9: 7, 11: 7}
    assert view.state is GpuState.ALLOCATED


def test_a_job_has_the_memory_in_use_and_its_processes() -> None:
    processes = (GpuProcess(9, user="alice", command="train"), GpuProcess(10, user="0", container_id="a" * 64))
    (view,) = read(node(GpuState.ALLOCATED, **HELD), reading(sample(processes=processes)), running()).gpus
    assert [(each.name, each.memory) for each in view.holders] == [("train", 2 * GIB)]
    assert view.process_jobs == {9: 7, 10: 7}


def test_a_node_whose_gpus_are_divided_is_not_read() -> None:
    found = reading(sample())
    found = replace(found, gpus=(replace(found.gpus[0], mig_enabled=True),))
    made = read(node(GpuState.FREE), found)
    assert made.gpus == node(GpuState.FREE).gpus
    assert (made.probe.code, made.probe.text) == (ProbeCode.UNREACHABLE, f"no readings: {MIG}")
