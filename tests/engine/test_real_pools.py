"""The scheduler on its real worker pools: nothing is submitted twice, and no pool waits for another."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.domain.action import Cancel
from gputui.domain.container import Created, Launch
from gputui.domain.state import JobState
from tests.engine.fakes import FakeRuntime
from tests.engine.real_pools import PATIENCE, RealPools
from tests.engine.world import World

STARTS = 8
"""Threads of the pool for starts."""


class Gate:
    """Runtime whose containers are created once the gate is open."""

    def __init__(self, world: World) -> None:
        self.opened = threading.Event()
        self.reached = threading.Semaphore(0)
        self.asked: Counter[str] = Counter()
        self._create = world.docker.create
        world.docker.create = self.create  # type: ignore[method-assign]

    def create(self, launch: Launch) -> Created:
        self.asked[launch.name] += 1
        self.reached.release()
        assert self.opened.wait(PATIENCE)
        return self._create(launch)

    def wait_for(self, calls: int) -> None:
        for _ in range(calls):
            assert self.reached.acquire(timeout=PATIENCE)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    pools = RealPools()
    yield World(tmp_path, gpus=16, pools=pools)
    pools.close()


def heard(runtime: FakeRuntime, call: str) -> threading.Event:
    """Return an event that is set once that call of the runtime has ended."""
    event, act = threading.Event(), getattr(runtime, call)

    def told(container_id: str) -> None:
        act(container_id)
        event.set()

    setattr(runtime, call, told)
    return event


def tick(world: World) -> None:
    """Make a pass without waiting for the workers."""
    world.clock.advance(1)
    world.observe()
    world.scheduler.tick(world.clock.now())


def test_ticks_while_starts_hang_submit_none_of_them_again(world: World) -> None:
    world.tick(2)
    warm = world.submit(1)
    world.tick(2)
    gate = Gate(world)
    ids = [world.submit(1) for _ in range(STARTS + 4)]
    for _ in range(5):
        tick(world)
    gate.wait_for(STARTS)
    assert sum(gate.asked.values()) == STARTS  # the others wait for a free thread
    assert {world.job(job_id).state for job_id in ids} == {JobState.CONFIGURING}
    gate.opened.set()
    world.settle()
    assert Counter(gate.asked.values()) == {1: len(ids)}
    assert {world.job(job_id).state for job_id in (warm, *ids)} == {JobState.RUNNING}
    assert max(Counter(world.docker.started).values()) == 1


def test_a_cancellation_and_a_host_job_wait_for_no_hanging_start(world: World) -> None:
    running = world.submit(1)
    world.tick(2)
    gate = Gate(world)
    for _ in range(STARTS + 1):
        world.submit(1)
    tick(world)
    gate.wait_for(STARTS)
    ended, started = heard(world.docker, "terminate"), heard(world.host, "start")
    world.submit(0, image=None)
    world.actions.act(Cancel((running,)))
    tick(world)
    assert ended.wait(PATIENCE)
    assert started.wait(PATIENCE)
    assert not gate.opened.is_set()
    gate.opened.set()
    world.settle()
    world.tick(2)
    assert world.job(running).state is JobState.CANCELLED


def test_a_signal_that_hangs_is_not_sent_again_meanwhile(world: World) -> None:
    job_id = world.submit(1)
    world.tick(2)
    reached, opened = threading.Event(), threading.Event()
    sent: list[str] = []

    def hang(container_id: str) -> None:
        sent.append(container_id)
        reached.set()
        assert opened.wait(PATIENCE)

    world.docker.terminate = world.docker.kill = hang  # type: ignore[method-assign]
    world.actions.act(Cancel((job_id,)))
    tick(world)
    assert reached.wait(PATIENCE)
    for _ in range(5):
        world.clock.advance(60)  # several grace periods
        tick(world)
    assert len(sent) == 1
    opened.set()
    world.settle()
