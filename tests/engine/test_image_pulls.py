"""Pulls of images: one per image, ended when no job wants it, and delaying nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.bootstrap import SystemClock
from gputui.domain.action import Cancel
from gputui.domain.errors import Cause, CauseCode, RuntimeFault
from gputui.domain.job_spec import JobId
from gputui.domain.state import JobState
from gputui.engine.tick import attempt_workers
from gputui.engine.tick.attempt_workers import ImagePulls
from tests.engine.fakes import InlineExecutor, LaterExecutor
from tests.engine.test_host import Seat, real
from tests.engine.world import World

ON_REAL_POOLS = True


class Registry:
    """Runtime whose pulls hang until they are cancelled or completed by the test."""

    def __init__(self, world: World) -> None:
        self.asked: list[str] = []
        self.cancelled: list[str] = []
        self.fault: Cause | None = None
        self.may_end = threading.Event()
        self._images = world.docker.images
        world.docker.pull = self._pull  # type: ignore[method-assign]

    def _pull(self, image: str, progress: Callable[[str], None], cancelled: threading.Event) -> None:
        self.asked.append(image)
        progress(f"pulling {image}: 45 %")
        while not self.may_end.wait(0.01):
            if cancelled.is_set():
                self.cancelled.append(image)
                raise RuntimeFault(Cause(CauseCode.CANCELLED, "cancelled"))
        if self.fault is not None:
            raise RuntimeFault(self.fault)
        self._images.add(image)


def attentive(world: World) -> World:
    """World with a real clock and frequent listings, because these runtimes send no events."""
    often = replace(world.settings.scheduler, reconcile_interval=timedelta(seconds=0.1))
    world.settings = replace(world.settings, scheduler=often)
    return real(world)


def states(world: World, *ids: JobId) -> list[JobState]:
    return [world.job(job_id).state for job_id in ids]


def test_many_jobs_of_one_image_wait_for_one_pull(world: World, later: LaterExecutor) -> None:
    registry = Registry(world)
    registry.may_end.set()
    first = [world.submit(image="big") for _ in range(3)]
    world.tick(2)
    later.work()  # it is looked for, and is not here
    world.tick()
    assert states(world, *first) == [JobState.CONFIGURING] * 3
    late = world.submit(image="big")
    world.tick(2)
    assert world.snapshots[-1].progress == dict.fromkeys((*first, late), "waiting for other images to be pulled")
    for _ in range(4):
        later.work()
        world.tick()
    assert registry.asked == ["big"]
    assert states(world, *first, late) == [JobState.RUNNING] * 4


def test_a_pull_that_fails_fails_for_every_job_that_wants_it(world: World) -> None:
    registry = Registry(world)
    registry.fault = Cause(CauseCode.PULL_FAILED, "cannot pull big: no progress for 15m")
    registry.may_end.set()
    ids = [world.submit(image="big") for _ in range(3)]
    world.tick(2)
    assert states(world, *ids) == [JobState.PENDING] * 3
    assert [world.job(job_id).cause for job_id in ids] == [registry.fault] * 3
    assert all(len(world.job(job_id).attempts) == 1 for job_id in ids)
    assert registry.asked.count("big") < 4


def test_a_tick_that_has_not_seen_a_failure_costs_no_other_attempt(world: World) -> None:
    registry = Registry(world)
    registry.fault = Cause(CauseCode.PULL_FAILED, "cannot pull big")
    registry.may_end.set()
    job_id = world.submit(image="big", retries=3)
    pulls = ImagePulls(world.store, lambda *_: InlineExecutor(), world.clock, world.settings.scheduler, lambda _: None)
    for _ in range(2):
        assert not pulls.is_here(world.docker, job_id, "big")
    job = world.job(job_id)
    assert (job.state, len(job.attempts)) == (JobState.PENDING, 1)


def test_no_other_pull_begins_while_a_failure_is_recorded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(world)
    registry.fault = Cause(CauseCode.PULL_FAILED, "cannot pull big")
    registry.may_end.set()
    job_id = world.submit(image="big")
    record, found = attempt_workers.end_pull, []

    def ask_again(*arguments: Any) -> None:
        found.append(pulls.is_here(world.docker, job_id, "big"))
        record(*arguments)

    monkeypatch.setattr(attempt_workers, "end_pull", ask_again)
    pulls = ImagePulls(world.store, lambda *_: InlineExecutor(), world.clock, world.settings.scheduler, lambda _: None)
    assert not pulls.is_here(world.docker, job_id, "big")
    assert (found, registry.asked) == ([False], ["big"])
    assert len(world.job(job_id).attempts) == 1
    assert not pulls.is_wanted_by(job_id)


def test_an_unexpected_error_of_a_runtime_is_a_failed_pull(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(world.docker, "pull", broken)
    job_id = world.submit(image="big")
    world.tick(2)
    assert world.job(job_id).cause == Cause(CauseCode.PULL_FAILED, "cannot pull big: ZeroDivisionError: oh")


def test_an_engine_that_answers_no_request_for_an_image_is_asked_less_and_less(world: World) -> None:
    """The runtime itself counts as reachable all the while, as one does whose pull fails for a reason of its own."""
    registry = Registry(world)
    registry.fault = Cause(CauseCode.RUNTIME_UNAVAILABLE, "docker broke off")
    registry.may_end.set()
    job_id, other = world.submit(image="big"), world.submit()
    for _ in range(300):
        world.tick(seconds=0.2)
    assert 4 <= len(registry.asked) <= 14  # a tick that has not seen a failure yet asks once more
    assert world.snapshots[-1].reasons[job_id].text.endswith(": docker broke off")
    assert states(world, job_id, other) == [JobState.PENDING, JobState.RUNNING]
    assert not world.job(job_id).attempts
    registry.fault = None
    world.tick(times=4, seconds=33)
    assert states(world, job_id) == [JobState.RUNNING]


def test_an_unwanted_pull_is_never_begun(world: World, later: LaterExecutor) -> None:
    registry = Registry(world)
    job_id = world.submit(image="big")
    world.tick()
    later.work()
    world.tick()
    world.actions.act(Cancel((job_id,)))
    world.tick()
    later.work()
    assert registry.asked == []
    assert states(world, job_id) == [JobState.CANCELLED]
    assert world.snapshots[-1].progress == {}


def test_a_full_disk_lets_jobs_ask_again(world: World, later: LaterExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(world)
    registry.may_end.set()
    job_id = world.submit(image="big")
    world.tick()
    with monkeypatch.context() as broken:
        broken.setattr("gputui.engine.tick.attempt_workers.begin_pull", lambda *_: 1 // 0)
        later.work()
    assert not world.scheduler.workers.pulls.is_wanted_by(job_id)
    for _ in range(5):
        world.tick()
        later.work()
    assert states(world, job_id) == [JobState.RUNNING]


async def test_hanging_pulls_delay_nothing(world: World) -> None:
    """Eight images that hang, beside a job that ends, one that is cancelled, one that starts, and a pull that ends."""
    registry = Registry(attentive(world))
    seat = Seat(world, SystemClock(), "serve")
    ends, cancelled = world.submit(), world.submit()
    task = asyncio.create_task(seat.host.run())
    await seat.until(lambda: states(world, ends, cancelled) == [JobState.RUNNING] * 2)
    hanging = [world.submit(image=f"huge-{number}") for number in range(8)]
    same = [world.submit(image="huge-0") for _ in range(8)]
    await seat.until(lambda: len(registry.asked) == 8)
    world.exit(ends)
    world.actions.act(Cancel((cancelled,)))
    starts = world.submit(1)
    await seat.until(lambda: states(world, starts, cancelled) == [JobState.RUNNING, JobState.CANCELLED])
    await seat.until(lambda: states(world, ends) == [JobState.COMPLETED])
    await seat.until(lambda: set(states(world, *same)) <= {JobState.CONFIGURING, JobState.PENDING})
    assert sorted(registry.asked) == [f"huge-{number}" for number in range(8)]
    world.actions.act(Cancel((hanging[0],)))
    await seat.until(lambda: states(world, hanging[0]) == [JobState.CANCELLED])
    assert registry.cancelled == []
    world.actions.act(Cancel(tuple(same)))
    await seat.until(lambda: registry.cancelled == ["huge-0"])
    world.actions.act(Cancel(tuple(hanging[1:])))
    await seat.until(lambda: len(registry.cancelled) == 8)
    registry.may_end.set()
    pulled = world.submit(image="big")
    await seat.until(lambda: states(world, pulled) == [JobState.RUNNING])
    seat.host.stop()
    await asyncio.wait_for(task, 60)


async def test_a_scheduler_that_leaves_ends_its_pulls_and_waits_for_none(world: World) -> None:
    registry = Registry(real(world))
    seat = Seat(world, SystemClock(), "serve")
    job_id = world.submit(image="huge")
    task = asyncio.create_task(seat.host.run())
    await seat.until(lambda: registry.asked == ["huge"])
    seat.host.stop()
    await asyncio.wait_for(task, 60)
    world.docker.pull = lambda *_: world.docker.images.add("huge")  # type: ignore[method-assign]
    next_one = Seat(world, SystemClock(), "serve")
    task = asyncio.create_task(next_one.host.run())
    await next_one.until(lambda: states(world, job_id) == [JobState.RUNNING])
    next_one.host.stop()
    await asyncio.wait_for(task, 60)


async def test_kills_wait_neither_for_starts_nor_for_another_engine(world: World) -> None:
    """Starts of containers hang, as do kills of containers; a host job over its time is killed all the same."""
    attentive(world)
    let_go = threading.Event()
    for name in ("create", "kill", "terminate"):
        setattr(world.docker, name, lambda *_: let_go.wait(60))
    seat = Seat(world, SystemClock(), "serve")
    host_job = world.submit(image=None, command=("sleep", "60"), time_limit=timedelta(seconds=1))
    task = asyncio.create_task(seat.host.run())
    await seat.until(lambda: states(world, host_job) == [JobState.RUNNING])
    starting = [world.submit() for _ in range(10)]
    await seat.until(lambda: JobState.CONFIGURING in states(world, *starting))
    await seat.until(lambda: states(world, host_job) == [JobState.TIMEOUT])
    let_go.set()
    seat.host.stop()
    await asyncio.wait_for(task, 60)
