"""Simulated GPUs: the same for the same seed, and busy with the jobs allocated to them."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.domain.errors import InputError
from gputui.domain.gpu import ALL_SHARES, GpuProcess, HealthCode, ProbeReading
from gputui.domain.job import Job
from gputui.domain.job_spec import GpuRequest
from gputui.domain.state import JobState
from gputui.gpus.simulated import MODELS, SimulatedGpus, SimulatedProbe, parse_simulated
from tests.cases import cases
from tests.factories import GIB, NOW, FakeClock, running
from tests.gpus.watching import Watcher


def simulated(count: int = 8, model: str = "H100", **changes: object) -> SimulatedProbe:
    return SimulatedProbe(count, model, clock=FakeClock(), **changes)  # type: ignore[arg-type]


def on(probe: SimulatedProbe, *indices: int, job_id: int = 1, **changes: object) -> Job:
    """Return a job that started a minute before NOW on those GPUs."""
    return running(job_id, on=[probe.gpus[index].uuid for index in indices], **changes)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def busy(probe: SimulatedProbe, reading: ProbeReading) -> list[int]:
    return [gpu.index for gpu in probe.gpus if (reading.samples[gpu.uuid].utilization or 0) > 0]


@cases(
    ("text", "expected"),
    [
        ("nvml", None),
        ("sim:8", SimulatedGpus(8, "H100")),
        ("sim:1:h200", SimulatedGpus(1, "H200")),
        ("SIM:256:RTX4090", SimulatedGpus(256, "RTX4090")),
    ],
)
def test_parse_probe(text: str, expected: SimulatedGpus | None) -> None:
    assert parse_simulated(text) == expected


@cases("text", ["", "sim", "sim:", "sim:0", "sim:257", "sim:-1", "sim:8:B9", "sim:8:H100:x", "nvml:1", "amd", "sim:²"])
def test_unknown_probes_are_refused_by_name(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_simulated(text)
    assert caught.value.where == "--probe"
    assert caught.value.hint


@given(st.text(max_size=60) | st.builds("sim:{}:{}".format, st.text(max_size=8), st.text(max_size=8)))
def test_parse_probe_takes_any_text(text: str) -> None:
    try:
        found = parse_simulated(text)
    except InputError as error:
        assert str(error).isprintable()  # noqa: PT017
    else:
        assert found is None or 1 <= found.count <= 256


def test_seeds_and_idle_gpus() -> None:
    # the same seed gives the same readings
    one, two, other = simulated(seed=1), simulated(seed=1), simulated(seed=2)
    for probe in (one, two, other):
        probe.follow([on(probe, 0, 1)])
    assert one.reading_at(NOW) == two.reading_at(NOW)
    assert {gpu.uuid for gpu in one.gpus}.isdisjoint(gpu.uuid for gpu in other.gpus)
    # a simulated GPU without jobs is idle
    probe = simulated()
    for sample in probe.reading_at(NOW).samples.values():
        assert (sample.utilization, sample.memory_used, sample.processes) == (0.0, 0, ())
        assert sample.health.code is HealthCode.OK


def test_gpus_are_busy_with_their_own_jobs() -> None:
    # a simulated GPU is busy with its own job only
    probe = simulated()
    probe.follow([on(probe, 2, 3, submitted_by="bob", command=("python", "train.py"))])
    reading = probe.reading_at(NOW)
    assert busy(probe, reading) == [2, 3]
    sample = reading.samples[probe.gpus[2].uuid]
    (process,) = sample.processes or ()
    assert (process.user, process.command, process.container_id) == ("bob", "python train.py", "c1")
    assert sample.memory_used == process.memory
    assert sample.memory_used
    assert sample.memory_used > 20 * GIB
    assert sample.power
    assert sample.power > 300
    # a simulated process carries the tag of its job
    by_name, by_store = simulated(), simulated(store_id="xyz")
    job = on(by_name, 0, image=None).with_attempt(container_id="gputui-abc-1-1")
    by_name.follow([job])
    by_store.follow([job])
    (named,) = by_name.reading_at(NOW).samples[by_name.gpus[0].uuid].processes or ()
    (stored,) = by_store.reading_at(NOW).samples[by_store.gpus[0].uuid].processes or ()
    assert (named.attempt, stored.attempt) == ("abc:1:1", "xyz:1:1")
    assert named.container_id is None
    # a simulated GPU is idle until its container runs
    job = on(probe, 0).evolve(state=JobState.CONFIGURING).with_attempt(started_at=None)
    probe.follow([job])
    assert busy(probe, probe.reading_at(NOW)) == []


def test_the_life_of_a_job() -> None:
    # readings follow the life of a job
    probe = simulated()
    job = on(probe, 0)
    probe.follow([job])
    start = job.attempts[0].started_at
    assert start is not None
    uuid = probe.gpus[0].uuid
    samples = [probe.reading_at(start + timedelta(seconds=s)).samples[uuid] for s in range(300)]
    loads = [sample.utilization or 0 for sample in samples]
    memory = [sample.memory_used or 0 for sample in samples]
    assert loads[1] < loads[4] < loads[8]  # gets up to speed
    assert max(loads) <= 1
    assert min(loads[10:]) < 0.5 < sorted(loads[10:])[len(loads) // 10]  # dips at the end of epochs, and not often
    assert len(set(loads)) > 5  # wobbles
    assert memory == sorted(memory)
    assert len(set(memory[20:])) == 1  # a plateau
    assert (samples[2].temperature or 0) + 15 < (samples[60].temperature or 0)
    assert all((sample.power or 0) <= 700 for sample in samples)
    # a simulated GPU is idle at once after its job
    probe = simulated(interval=3600)
    watcher = Watcher(probe)
    probe.follow([on(probe, 0)])
    probe.start()
    try:
        watcher.until(lambda reading: busy(probe, reading))
        probe.follow([])
        assert busy(probe, probe.latest()) == []
        watcher.until(lambda reading: not busy(probe, reading))
    finally:
        probe.close()


@cases("model", MODELS)
def test_every_model_can_be_simulated(model: str) -> None:
    probe = simulated(4, model)
    probe.follow([on(probe, 0, 1, 2, 3)])
    for gpu in probe.gpus:
        sample = probe.reading_at(NOW).samples[gpu.uuid]
        assert gpu.model == MODELS[model].name
        assert (sample.memory_used or 0) <= (gpu.memory_total or 0)
        assert (sample.fan is not None) == MODELS[model].has_fan


def test_simulated_gpus_have_links_and_sockets() -> None:
    def kinds(model: str, count: int = 8) -> list[str]:
        return [link.kind for link in simulated(count, model).gpus[0].links]

    assert kinds("H100") == ["NVLINK"] * 7
    assert kinds("A6000") == ["NVLINK", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"]
    assert kinds("L40S", 4) == ["PXB", "SYS", "SYS"]
    assert [gpu.numa_node for gpu in simulated().gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert kinds("H200", 64) == ["NVLINK"] * 7
    assert len({gpu.uuid for gpu in simulated(256).gpus}) == 256


def test_faults_can_be_simulated() -> None:
    probe = simulated()
    probe.follow([on(probe, 0)])
    probe.lose(0)
    probe.xid(1, 48)
    probe.xid(2, 31)
    probe.foreign(3, GpuProcess(4711, memory=9 * GIB, user="eve", command="python"))
    reading = probe.reading_at(at(60))
    lost, fatal, harmless, foreign = (reading.samples[gpu.uuid] for gpu in probe.gpus[:4])
    assert (lost.health.code, lost.sampled_at) == (HealthCode.LOST, NOW)
    assert (fatal.health.code, fatal.xid) == (HealthCode.XID, 48)
    assert (harmless.health.code, harmless.xid) == (HealthCode.OK, 31)
    assert [process.user for process in foreign.processes or ()] == ["eve"]
    assert foreign.memory_used == 9 * GIB
    for index in range(4):
        probe.heal(index)
        probe.foreign(index)
    assert {sample.health.code for sample in probe.reading_at(NOW).samples.values()} == {HealthCode.OK}
    assert busy(probe, probe.reading_at(NOW)) == [0]


def test_a_suspended_job_keeps_its_memory_and_uses_its_gpu_no_more() -> None:
    probe = simulated()
    job = running(1, on=[probe.gpus[0].uuid])
    probe.follow([job])
    before = probe.reading_at(at(60)).samples[probe.gpus[0].uuid]
    probe.follow([job.with_attempt(suspended_at=at(60)).evolve(suspended=True)])
    after = probe.reading_at(at(60)).samples[probe.gpus[0].uuid]
    assert before.utilization
    assert (after.utilization, after.memory_used) == (0, before.memory_used)


def test_simulated_readings_obey_the_port() -> None:
    probe = simulated()
    reading = probe.reading_at(NOW)
    assert reading.taken_at == NOW
    with pytest.raises(TypeError):
        reading.samples["x"] = next(iter(reading.samples.values()))  # type: ignore[index]
    with pytest.raises(AttributeError):
        reading.notes = ("x",)  # type: ignore[misc]


def test_jobs_that_share_a_gpu_grow_up_to_their_promises() -> None:
    probe = simulated(1)
    request = GpuRequest(1, 1, memory=10 * GIB, share=True)
    jobs = [on(probe, 0, job_id=number) for number in (1, 2)]
    probe.follow([replace(one, spec=replace(one.spec, gpus=request)) for one in jobs])
    used = []
    for second in (-59, -56, -52, 0):
        sample = probe.reading_at(at(second)).samples[probe.gpus[0].uuid]
        sizes = [process.memory or 0 for process in sample.processes or ()]
        assert len(sizes) == 2
        assert all(0 < size <= 10 * GIB for size in sizes)
        assert sample.memory_used == sum(sizes)
        used.append(sum(sizes))
    assert used == sorted(used)
    assert used[0] < used[-1]


def test_details_of_a_gpu() -> None:
    # a GPU in detail has more readings
    probe = simulated()
    probe.follow([on(probe, 0, 1, job_id=1), on(probe, 2, job_id=2)])
    before = probe.reading_at(NOW).samples[probe.gpus[0].uuid]
    assert [process.sm for process in before.processes or ()] == [None]
    assert (before.nvlink_tx, before.pcie_tx) == (None, None)
    probe.want_pcie(probe.gpus[0].uuid)
    sample = probe.reading_at(NOW).samples[probe.gpus[0].uuid]
    assert [process.sm for process in sample.processes or ()] == [sample.utilization]
    for moved in (sample.nvlink_tx, sample.nvlink_rx):
        assert moved
        assert 10e9 < moved < 18 * 25e9  # no more than the lanes of an H100 carry
    probe.want_pcie(probe.gpus[2].uuid)
    alone = probe.reading_at(NOW).samples[probe.gpus[2].uuid]
    assert (alone.nvlink_tx, alone.nvlink_rx) == (0, 0)  # it has nobody to talk to
    assert alone.pcie_tx
    # shares of processes add up and a GPU without NVLink has none
    probe = simulated(2, "L40S")
    probe.foreign(0, GpuProcess(1, 3 * GIB), GpuProcess(2, GIB), GpuProcess(3))
    probe.want_pcie(probe.gpus[0].uuid)
    sample = probe.reading_at(NOW).samples[probe.gpus[0].uuid]
    assert [process.sm for process in sample.processes or ()] == [0.26, 0.09, 0.0]
    assert (sample.nvlink_tx, sample.nvlink_rx) == (None, None)
    probe.want_pcie(ALL_SHARES)
    sample = probe.reading_at(NOW).samples[probe.gpus[0].uuid]
    assert [process.sm for process in sample.processes or ()] == [0.26, 0.09, 0.0]
    assert sample.pcie_tx is None
