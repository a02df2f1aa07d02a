"""kill -9 between any two steps: never twice, never lost, no GPU in two jobs.

The scheduler dies at every single step of a load in turn (and at random steps, several times over); a new one that
knows nothing takes over in the same world.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from gputui.domain.job_spec import JobId
from gputui.domain.state import JobState
from tests.engine.fakes import Crash
from tests.engine.real_pools import RealPools
from tests.engine.world import World
from tests.lane import seeds

ON_REAL_POOLS = True


class Load:
    """Jobs that end with given exit codes, one attempt after the other."""

    def __init__(self, world: World, rng: random.Random, jobs: int) -> None:
        self.world = world
        self.rng = rng
        self.codes: dict[JobId, list[int]] = {}
        for _ in range(jobs):
            codes = [3] * rng.randint(0, 2) + [0]
            job_id = world.submit(rng.randint(0, 3), image="big", retries=len(codes) - 1)
            self.codes[job_id] = codes

    def live(self) -> None:
        """Run and end containers while the scheduler ticks, crashes and comes back."""
        for _ in range(400):
            if all(self.world.job(job_id).state.is_terminal for job_id in self.codes) and not self.world.docker.made:
                return
            try:
                self.world.tick(seconds=2)
            except Crash:
                self.world.reborn()
            self.no_gpu_is_in_two_containers()
            self.end_some()
        pytest.fail("the load never ended")

    def end_some(self) -> None:
        for record in self.world.docker.running():
            if self.rng.random() < 0.4:
                self.world.docker.exit(record.id, self.codes[record.job_id][record.attempt - 1])

    def no_gpu_is_in_two_containers(self) -> None:
        taken = Counter(uuid for record in self.world.docker.running() for uuid in record.gpus)
        assert all(count == 1 for count in taken.values()), taken

    def check(self) -> None:
        """Check that every attempt ran exactly once, and every job to its end."""
        assert max(Counter(self.world.docker.started).values()) == 1
        runs = Counter(self.world.docker.launches[name].job_id for name in self.world.docker.started)
        for job_id, codes in self.codes.items():
            job = self.world.job(job_id)
            assert job.state is JobState.COMPLETED, job
            assert [attempt.exit_code for attempt in job.attempts] == codes
            assert [attempt.number for attempt in job.attempts] == list(range(1, len(codes) + 1))
            assert runs[job_id] == len(codes)
            assert len([name for name in self.world.docker.saved if f"-{job_id}-" in name]) == len(codes)


def steps_of(directory: Path, seed: int, pools: RealPools | None) -> int:
    world = World(directory, pools=pools)
    load = Load(world, random.Random(seed), jobs=3)
    load.live()
    load.check()
    return world.tripwire.steps


def test_a_crash_at_each_single_step_of_a_load(tmp_path: Path, pools: RealPools | None) -> None:
    total = steps_of(tmp_path / "clean", seed=1, pools=pools)
    assert total > 50
    for step in range(1, total + 1):
        world = World(tmp_path / str(step), pools=pools)
        load = Load(world, random.Random(1), jobs=3)
        world.tripwire.left = step
        load.live()
        load.check()


@pytest.mark.parametrize("seed", seeds(25, at_once=10))
def test_crashes_at_random_steps_lose_nothing(tmp_path: Path, seed: int, pools: RealPools | None) -> None:
    rng = random.Random(seed)
    world = World(tmp_path, pools=pools)
    load = Load(world, rng, jobs=12)
    tick = world.tick

    def brittle(times: int = 1, seconds: float = 1.0) -> object:
        if world.tripwire.left is None and rng.random() < 0.5:
            world.tripwire.left = rng.randint(1, 40)
        return tick(times, seconds)

    world.tick = brittle  # type: ignore[method-assign,assignment]
    load.live()
    world.tripwire.left = None
    load.check()
