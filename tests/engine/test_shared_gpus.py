"""Shared GPUs in the scheduler: with growing memory, with foreign use, and through crashes."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.domain.action import DrainGpus
from gputui.domain.container import ContainerRecord, ContainerState, ForeignContainer
from gputui.domain.gpu import GpuProcess, GpuSample, Health, HealthCode, ProbeReading
from gputui.domain.job import Job
from gputui.domain.job_spec import GpuRequest, JobId, Submission
from gputui.domain.settings import PolicySettings, Settings
from gputui.domain.state import JobState
from gputui.domain.submit_action import SubmitJobs
from tests.engine.fakes import Crash, FakeProbe
from tests.engine.world import World
from tests.factories import GIB, spec, uuid
from tests.lane import examples

TOTAL, FLOOR, MOST = 80, 1, 3
SHARED = Settings(policy=PolicySettings(share=("all",), share_jobs=MOST))


def sharer(world: World, memory: int = 10, gpus: int = 1, **changes: Any) -> JobId:
    """Return a job that shares its GPUs with `memory` GiB promised on each."""
    request = GpuRequest(gpus, gpus, memory=memory * GIB, share=True)
    return submitted(world, request, **changes)


def submitted(world: World, request: GpuRequest, **changes: Any) -> JobId:
    [job_id] = world.actions.act(SubmitJobs((Submission(replace(spec(0, **changes), gpus=request)),))).ids
    return job_id


class GrowingProbe(FakeProbe):
    """Probe of GPUs whose jobs allocate one GiB per second, up to a given amount."""

    def __init__(self, world: World, gpus: int) -> None:
        super().__init__(gpus, world.clock)
        self.world = world
        self.takes: dict[JobId, int] = {}

    def used(self, record: ContainerRecord) -> int:
        """Return the GiB that the job has allocated by now."""
        ran = (self.clock.now() - record.started_at).total_seconds() if record.started_at else 0
        return int(min(self.takes.get(record.job_id, 0), ran))

    def latest(self) -> ProbeReading:
        reading = super().latest()
        return replace(reading, samples={name: self._grown(one) for name, one in reading.samples.items()})

    def _grown(self, sample: GpuSample) -> GpuSample:
        on_it = [record for record in self.world.docker.running() if sample.uuid in record.gpus]
        processes = tuple(GpuProcess(n, self.used(one) * GIB, container_id=one.id) for n, one in enumerate(on_it, 1))
        total = sum(process.memory or 0 for process in processes)
        return replace(sample, processes=(*processes, *(sample.processes or ())), memory_used=total)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return shared_world(tmp_path, gpus=1)


def shared_world(directory: Path, gpus: int) -> World:
    made = World(directory, gpus=gpus, settings=SHARED)
    made.probe = GrowingProbe(made, gpus)
    made.reborn()
    return made


def text(world: World, job_id: JobId) -> str:
    return world.snapshots[-1].reasons[job_id].text


def states(world: World, *job_ids: JobId) -> list[JobState]:
    return [world.job(job_id).state for job_id in job_ids]


R, PD = JobState.RUNNING, JobState.PENDING


def test_jobs_share_a_gpu_within_their_promises(world: World) -> None:
    ids = [sharer(world, 40), sharer(world, 30), sharer(world, 20)]
    world.tick(2)
    assert states(world, *ids) == [R, R, PD]
    assert {record.gpus for record in world.docker.running()} == {(uuid(0),)}
    assert text(world, ids[2]).startswith(
        "needs 1 GPU with 20G shared: 0 free, 1 held by jobs; GPU 0 has 9G left beside jobs 1 and 2"
    )
    [row] = world.snapshots[-1].gpus
    assert (row.job_ids, row.why, [holder.kind for holder in row.holders]) == ((1, 2), "jobs 1 and 2", ["job", "job"])
    assert [world.job(job_id).attempts[0].gpu_share for job_id in ids[:2]] == [0.5, 0.375]
    world.exit(ids[1])
    world.tick(3)
    assert states(world, *ids) == [R, JobState.COMPLETED, R]


def test_a_job_with_its_gpu_to_itself_waits_until_the_last_sharer_is_gone(world: World) -> None:
    first, second, alone = sharer(world), sharer(world), world.submit(1)
    world.tick(2)
    world.exit(first)
    world.tick(3)
    assert states(world, second, alone) == [R, PD]
    late = sharer(world)
    world.exit(second)
    world.tick(4)
    assert states(world, alone, late) == [R, PD]
    world.exit(alone)
    world.tick(3)
    assert states(world, late) == [R]


def test_the_promise_counts_while_memory_grows_and_more_than_that_when_it_has_grown(world: World) -> None:
    probe = world.probe
    assert isinstance(probe, GrowingProbe)
    greedy = sharer(world, 30)
    probe.takes[greedy] = 65
    world.tick(2)
    early = sharer(world, 50)
    world.tick(2)
    assert "GPU 0 has 49G left beside job 1" in text(world, early)
    world.tick(45)
    small = sharer(world, 40)
    world.tick(2)
    left = TOTAL - FLOOR - probe.used(world.docker.running()[0])
    assert left < 40
    assert f"GPU 0 has {left}G left beside job 1" in text(world, small)
    fits = sharer(world, 10)
    world.tick(2)
    assert states(world, greedy, early, small, fits) == [R, PD, PD, R]


def test_a_foreign_process_or_container_keeps_others_from_joining(world: World) -> None:
    first = sharer(world)
    world.tick(2)
    world.probe.sick(0, processes=(GpuProcess(4711, GIB, "bob", "python"),))
    world.tick()
    second = sharer(world)
    world.tick(2)
    assert "GPU 0 may not be joined: process 4711 (python) of bob" in text(world, second)
    world.probe.sick(0)
    world.docker.others = (ForeignContainer("f" * 64, "vllm", "bob", ("all",)),)
    world.tick(2)
    assert "in use by container vllm" in text(world, second)
    world.docker.others = ()
    world.tick(2)
    assert states(world, first, second) == [R, R]


def test_a_drained_gpu_is_not_joined(world: World) -> None:
    first = sharer(world)
    world.tick(2)
    world.actions.act(DrainGpus((uuid(0),), "fan"))
    second = sharer(world)
    world.tick(2)
    assert states(world, first, second) == [R, PD]


def test_all_jobs_of_a_lost_shared_gpu_are_requeued(tmp_path: Path) -> None:
    world = shared_world(tmp_path, gpus=2)
    ids = [sharer(world), sharer(world)]
    world.tick(2)
    world.probe.sick(0, health=Health(HealthCode.LOST, "fell off the bus"))
    world.tick(12)
    assert states(world, *ids) == [R, R]
    assert {world.job(job_id).gpus for job_id in ids} == {(uuid(1),)}


def test_a_late_start_does_not_join_newer_sharers(world: World) -> None:
    """The job was requeued, its GPU's memory was given to others, and then it turns out to run: it may start again."""
    first = sharer(world, 60)
    world.tick(2)
    late = sharer(world, 60)
    world.scheduler.workers.note_given_back((late, 1))
    name = f"gputui-{world.store.store_id}-{late}-1"
    started = world.clock.now()
    world.docker.made[name] = ContainerRecord(name, late, 1, ContainerState.RUNNING, (uuid(0),), started)
    world.tick(3)
    assert (name, "kill") in world.docker.told
    assert states(world, first, late) == [R, PD]


JOBS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 5, 20, 39, 40, 60, 79]),
        st.sampled_from([1, 1, 1, 2]),
        st.floats(0, 1),
        st.integers(1, 12),
    ),
    min_size=2,
    max_size=8,
)


@given(JOBS, st.lists(st.integers(1, 40), max_size=3))
@settings(max_examples=examples(40), deadline=None)
def test_crashes_never_overfill_or_mix_shared_gpus(jobs: list[tuple[int, int, float, int]], crashes: list[int]) -> None:
    with TemporaryDirectory() as directory:
        load = Load(shared_world(Path(directory), gpus=2), jobs)
        for step in [*crashes, None]:
            load.world.tripwire.left = step
            load.live(15 if step else 400)
        assert all(load.world.job(job_id).state is JobState.COMPLETED for job_id in load.lasts)


class Load:
    """Jobs that allocate up to a given part of their promise and end after a given number of ticks."""

    def __init__(self, world: World, jobs: list[tuple[int, int, float, int]]) -> None:
        self.world = world
        self.lasts: dict[JobId, int] = {}
        assert isinstance(world.probe, GrowingProbe)
        self.probe = world.probe
        for memory, gpus, part, ticks in jobs:
            job_id = sharer(world, memory, gpus) if memory else world.submit(gpus)
            self.lasts[job_id] = ticks
            self.probe.takes[job_id] = int((memory or TOTAL) * part)

    def live(self, ticks: int) -> None:
        for _ in range(ticks):
            if all(self.world.job(job_id).state.is_terminal for job_id in self.lasts):
                return
            try:
                self.world.tick(seconds=3)
            except Crash:
                self.world.reborn()
            self.check()
            for record in self.world.docker.running():
                self.lasts[record.job_id] -= 1
                if self.lasts[record.job_id] <= 0:
                    self.world.docker.exit(record.id, 0)

    def check(self) -> None:
        running = self.world.docker.running()
        for gpu in (uuid(0), uuid(1)):
            on_it = [record for record in running if gpu in record.gpus]
            promises = [self.job(record).spec.gpus.promised for record in on_it]
            if len(on_it) > 1:
                assert all(promises), "never mixed"
                assert len(on_it) <= MOST
                assert sum(promises) <= (TOTAL - FLOOR) * GIB
            assert sum(self.probe.used(record) for record in on_it) <= TOTAL

    def job(self, record: ContainerRecord) -> Job:
        return self.world.job(record.job_id)
