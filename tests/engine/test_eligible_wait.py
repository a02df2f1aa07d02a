"""Eligible wait of jobs, as the scheduler and actions maintain it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.domain.action import Edit, EditJobs, Hold, Release, Requeue
from gputui.domain.errors import Cause, CauseCode
from gputui.domain.job_spec import JobId
from gputui.domain.policy.waits import Dependencies, eligible_wait
from gputui.domain.settings import PolicySettings, SchedulerSettings, Settings
from gputui.domain.state import JobState
from tests.engine.world import World

LONG = SchedulerSettings(fast_failing_jobs=0, stale_after=timedelta(days=1))


@pytest.fixture
def world(tmp_path: Path) -> World:
    policy = PolicySettings(preemption=True, preemption_min_run=timedelta(0))
    return World(tmp_path, settings=Settings(scheduler=LONG, policy=policy))


def waited(world: World, job_id: JobId) -> float:
    job, now = world.job(job_id), world.clock.now()
    return eligible_wait(job, Dependencies.of(world.store.jobs().values()).ended_at(job, now), now).total_seconds()


def blocked(world: World, seconds: float = 100, **changes: object) -> tuple[JobId, JobId]:
    """Return a job on all GPUs, and one that has waited behind it for that long."""
    first = world.submit(4)
    world.tick(2)
    second = world.submit(4, **changes)
    world.clock.advance(seconds)
    return first, second


def started(world: World, first: JobId, second: JobId) -> None:
    world.exit(first)
    world.tick(3)
    assert world.job(second).state is JobState.RUNNING


def test_time_on_hold_does_not_count(world: World) -> None:
    _, job_id = blocked(world)
    world.actions.act(Hold((job_id,)))
    world.clock.advance(1000)
    assert waited(world, job_id) == 100
    world.actions.act(Release((job_id,)))
    world.clock.advance(10)
    assert waited(world, job_id) == 110


def test_a_hold_taken_back_counts_no_more_than_a_hold_released(world: World) -> None:
    _, job_id = blocked(world)
    done = world.actions.act(Hold((job_id,)))
    world.clock.advance(1000)
    world.actions.undo(done.changes)
    world.clock.advance(10)
    assert waited(world, job_id) == 110


def banked(world: World, job_id: JobId) -> float:
    return sum(each.time.total_seconds() for each in world.job(job_id).waited)


def test_a_requeue_keeps_the_wait_and_the_run_does_not_count(world: World) -> None:
    first, job_id = blocked(world)
    started(world, first, job_id)
    kept = banked(world, job_id)
    assert 100 <= kept <= 104
    world.clock.advance(5000)
    world.actions.act(Hold((world.submit(4),)))
    world.actions.act(Requeue((job_id,)))
    world.tick(3)
    assert len(world.job(job_id).attempts) == 2
    assert kept <= banked(world, job_id) <= kept + 3


def test_a_preempted_job_keeps_the_wait(world: World) -> None:
    first, job_id = blocked(world, preemptible=True)
    started(world, first, job_id)
    kept = banked(world, job_id)
    world.clock.advance(5000)
    world.submit(4, priority=100)
    world.tick(3)
    assert world.job(job_id).state is JobState.PENDING
    assert banked(world, job_id) == kept
    assert waited(world, job_id) <= kept + 3


def test_a_lost_container_keeps_the_wait(world: World) -> None:
    first, job_id = blocked(world)
    started(world, first, job_id)
    total = world.job(job_id).waited
    world.clock.advance(5000)
    [running] = world.docker.running()
    world.docker.exit(running.id, 143, Cause(CauseCode.CONTAINER_LOST, "ended by a restart of the Docker engine"))
    world.tick()
    back = world.job(job_id)
    assert (back.state, back.waited) == (JobState.PENDING, total)
    assert waited(world, job_id) == total[0].time.total_seconds(), "a back-off does not count"


@pytest.mark.parametrize("code", [1, 3])
def test_a_retry_after_its_own_failure_starts_at_zero(world: World, code: int) -> None:
    first, job_id = blocked(world, retries=5)
    started(world, first, job_id)
    world.clock.advance(5000)
    world.exit(job_id, code)
    world.tick()
    assert world.job(job_id).state is JobState.PENDING
    assert waited(world, job_id) == 0


def test_a_retry_after_a_timeout_keeps_nothing(world: World) -> None:
    first, job_id = blocked(world, retries=5, retry_on=("TIMEOUT",), time_limit=timedelta(hours=1))
    started(world, first, job_id)
    world.clock.advance(3601)
    world.tick(3)
    assert (len(world.job(job_id).attempts), world.job(job_id).state) == (1, JobState.PENDING)
    assert waited(world, job_id) == 0


def test_a_requeue_after_a_timeout_keeps_nothing(world: World) -> None:
    first, job_id = blocked(world, time_limit=timedelta(hours=1))
    started(world, first, job_id)
    world.clock.advance(3601)
    world.tick(3)
    assert world.job(job_id).state is JobState.TIMEOUT
    world.actions.act(Requeue((job_id,)))
    world.tick(2)
    assert banked(world, job_id) <= 2


def test_a_clock_that_is_set_changes_no_wait_that_is_over(world: World) -> None:
    first, job_id = blocked(world)
    started(world, first, job_id)
    kept = world.job(job_id).waited
    world.clock.advance(10, shown=86_400)
    world.tick(2)
    assert world.job(job_id).waited == kept


def test_the_wait_for_another_job_does_not_count(world: World) -> None:
    first = world.submit(1)
    world.tick(2)
    job_id = world.submit(1, after=(first,))
    world.clock.advance(500)
    assert waited(world, job_id) == 0
    world.exit(first)
    world.tick(3)
    assert world.job(job_id).state is JobState.RUNNING
    assert sum(each.time.total_seconds() for each in world.job(job_id).waited) <= 3


def test_edits_that_ask_for_more_restart_the_wait(world: World) -> None:
    _, job_id = blocked(world, time_limit=timedelta(hours=2))
    world.actions.act(EditJobs((job_id,), Edit(spec={"command": ("other",)})))
    assert waited(world, job_id) == 100
    world.actions.act(EditJobs((job_id,), Edit(spec={"time_limit": timedelta(hours=1)})))
    assert waited(world, job_id) == 100
    world.actions.act(EditJobs((job_id,), Edit(spec={"time_limit": timedelta(hours=2)})))
    assert waited(world, job_id) == 0


def test_an_interrupted_start_does_not_change_the_wait(world: World) -> None:
    from gputui.domain.job import Placement
    from gputui.engine.tick.start_protocol import claimed, given_back

    _, job_id = blocked(world)
    job = world.job(job_id)
    now = world.clock.now()
    back = given_back(claimed(job, Placement(job_id, ()), now))
    later = now + timedelta(seconds=7)
    assert eligible_wait(back, None, later).total_seconds() == 107
    assert replace(back, waited=(), waiting_since=None) == job
