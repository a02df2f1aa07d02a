"""Telemetry of running attempts, recounted; across schedulers, with gaps, and without a line of the journal for it."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from gputui.domain.job_spec import JobId
from gputui.domain.settings import StoreSettings
from gputui.domain.telemetry import AttemptTelemetry, Consumption
from gputui.domain.telemetry_series import MOST_BYTES
from gputui.engine.telemetry_files import measured, telemetry_path
from gputui.store import TinyJobStore
from tests.engine.fakes import LaterExecutor
from tests.engine.world import World
from tests.factories import GIB


class Load:
    """A job whose GPUs and control group behave as the test sets them."""

    def __init__(self, world: World, gpus: int = 2) -> None:
        self.world = world
        self.job_id: JobId = world.submit(gpus)
        world.tick(2)
        self.cpu = 0.0
        self.energy = 0.0

    @property
    def attempt_gpus(self) -> tuple[str, ...]:
        return self.world.job(self.job_id).attempts[0].gpus

    def run(self, seconds: int, utilization: float, power: float, cpus: float = 0.0) -> None:
        """Advance by that time in steps of two seconds."""
        for gpu in self.attempt_gpus:
            self.world.probe.changed[gpu] = {"utilization": utilization, "power": power, "memory_used": 7 * GIB}
        for _ in range(seconds // 2):
            self.cpu += 2 * cpus
            self.energy += 2 * power * len(self.attempt_gpus)
            self.consume(self.cpu)
            self.world.tick(seconds=2)

    def consume(self, cpu: float) -> None:
        container_id = self.world.job(self.job_id).attempts[0].container_id
        assert container_id is not None
        self.world.docker.consumed[container_id] = Consumption(cpu, GIB, 2 * GIB, int(1000 * cpu), 0)

    def end(self) -> AttemptTelemetry:
        self.world.exit(self.job_id)
        self.world.tick(2)
        found = self.world.job(self.job_id).attempts[0].telemetry
        assert found is not None
        return found


def test_a_restart_leaves_a_gap_instead_of_zeros(world: World) -> None:
    load = Load(world)
    load.run(60, 0.9, 500.0, cpus=3.0)
    world.scheduler.stop()
    world.clock.advance(600)
    load.cpu += 600 * 3
    world.reborn()
    load.run(60, 0.3, 200.0, cpus=1.0)
    found = load.end()
    assert found.utilization is not None
    assert found.seconds == pytest.approx(60 + 30 + 60, abs=4)  # the first reading after a gap counts for 30 s
    mean = (60 * 0.9 + 90 * 0.3) / 150
    assert found.utilization.mean == pytest.approx(mean, abs=0.02)
    assert found.energy == pytest.approx(2 * (60 * 500 + 88 * 200), rel=0.03)
    assert found.allocated == pytest.approx(2 * 720, abs=10)
    assert found.known == pytest.approx(2 * 150, abs=10)
    assert found.cpu == pytest.approx(load.cpu, abs=10)  # the kernel counts on
    assert found.cpus is not None
    assert found.cpus.p95 == pytest.approx(3, rel=0.02)
    assert found.cpus.peak == pytest.approx(3)
    job = world.job(load.job_id)
    series = measured(world.directory, job, job.attempts[0]).series
    assert series is not None
    means = series.means["utilization"]
    known = [mean for mean in means if mean is not None]
    assert None in means
    assert min(known) >= 0.29
    path = world.directory / telemetry_path(load.job_id, 1)
    assert path.stat().st_size <= MOST_BYTES


def test_a_killed_scheduler_costs_a_minute_at_most(world: World) -> None:
    load = Load(world)
    load.run(300, 0.5, 300.0)
    world.reborn()  # without having been stopped
    load.run(20, 0.5, 300.0)
    found = load.end()
    assert found.seconds is not None
    assert 320 - 60 <= found.seconds <= 324
    assert found.utilization is not None
    assert found.utilization.mean == pytest.approx(0.5, abs=0.01)


def test_it_is_saved_after_ten_seconds_and_then_once_a_minute(world: World) -> None:
    """A short job leaves something behind a killed scheduler too, and a long one costs little."""
    load = Load(world)
    path = world.directory / telemetry_path(load.job_id, 1)
    saved_at, before = [], b""
    for second in range(2, 142, 2):
        load.run(2, 0.5, 300.0)
        now = path.read_bytes() if path.exists() else b""
        if now != before:
            saved_at.append(second)
        before = now
    assert len(saved_at) == 3
    assert 8 <= saved_at[0] <= 14
    assert all(58 <= after - one <= 62 for one, after in pairwise(saved_at))


def test_the_running_attempt_is_shown_from_its_file(world: World) -> None:
    load = Load(world)
    load.run(80, 0.5, 300.0, cpus=2.0)
    job = world.job(load.job_id)
    now = measured(world.directory, job, job.attempts[0])
    assert job.attempts[0].telemetry is None
    assert now.summary is not None
    assert now.summary.energy is not None
    assert now.series is not None
    assert {"utilization", "power", "cpus", "memory"} <= now.series.means.keys()
    assert now.summary.memory is not None
    assert now.summary.memory.peak == 2 * GIB


def test_the_record_of_a_host_job_has_its_total_use(world: World) -> None:
    job_id = world.submit(0, image=None)
    world.tick(2)
    [record] = world.host.running()
    world.host.spend(record.id, Consumption(1.25, None, 5 * GIB, 10, 20))
    world.exit(job_id)
    world.tick(2)
    found = world.job(job_id).attempts[0].telemetry
    assert found is not None
    assert (found.cpu, found.io_read, found.io_written) == (1.25, 10, 20)
    assert (found.seconds, found.allocated, found.energy) == (None, None, None)


def test_the_journal_does_not_grow_by_readings(tmp_path: Path) -> None:
    world = World(tmp_path)
    store = TinyJobStore(tmp_path, StoreSettings())
    world.use(store)
    load = Load(world)
    load.run(20, 0.5, 300.0)
    before = store.version()
    load.run(200, 0.5, 300.0)
    assert store.version() == before
    assert load.end().seconds == pytest.approx(222, abs=4)
    store.close()


def test_control_groups_and_files_are_left_to_workers(tmp_path: Path) -> None:
    world = World(tmp_path)
    load = Load(world)
    later = LaterExecutor()
    world.workers = later
    world.reborn()
    load.run(90, 0.5, 300.0, cpus=1.0)
    path = tmp_path / telemetry_path(load.job_id, 1)
    job = world.job(load.job_id)
    assert not path.exists()
    assert measured(tmp_path, job, job.attempts[0]).summary is None
    later.work()
    assert path.exists()
    world.tick()
    assert len(later.waiting) <= 2  # groups are read one after the other


def test_a_clock_that_is_set_moves_the_series(world: World) -> None:
    load = Load(world)
    load.run(20, 0.5, 300.0)
    world.clock.advance(2, shown=3602)
    world.tick()
    load.run(20, 0.5, 300.0)
    found = load.end()
    assert found.allocated == pytest.approx(2 * 46, abs=10)
    assert found.seconds == pytest.approx(46, abs=30)
    job = world.job(load.job_id)
    series = measured(world.directory, job, job.attempts[0]).series
    assert series is not None
    assert series.end - series.begin == pytest.approx(46, abs=6)
    assert timedelta(seconds=series.width) <= timedelta(seconds=1)
