"""A scheduler on a queue that was repaired without memory: what runs is neither killed nor started a second time."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.domain.job import Job
from gputui.domain.state import JobState
from tests.engine.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def forget(world: World, job: Job) -> None:
    """Restore the job as an older queue had it."""
    with world.store.transaction() as transaction:
        transaction.put(job)
    world.reborn()


def test_an_unknown_second_attempt_is_adopted(world: World) -> None:
    job_id = world.submit(1, retries=1)
    before = world.job(job_id)
    world.tick(2)
    world.exit(job_id, 1)
    world.tick(5, seconds=30)
    [second] = world.docker.running()
    assert second.attempt == 2
    forget(world, before)
    world.tick(3)
    assert world.docker.running() == [second]
    assert world.job(job_id).state is JobState.RUNNING
    assert [attempt.number for attempt in world.job(job_id).attempts] == [2]
    world.exit(job_id, 1)
    world.tick(5, seconds=30)
    assert [attempt.number for attempt in world.job(job_id).attempts] == [2, 3]
    assert max(world.docker.started.count(name) for name in world.docker.started) == 1


def test_a_lost_attempt_is_not_adopted_while_another_job_holds_its_gpus(world: World) -> None:
    job_id, other = world.submit(1), world.submit(1)
    before = world.job(job_id)
    world.tick(2)
    [mine] = [record for record in world.docker.running() if record.job_id == job_id]
    holder = world.job(other)
    forget(world, before)
    with world.store.transaction() as transaction:
        transaction.put(holder.with_attempt(gpus=mine.gpus))
    world.tick(3)
    assert mine in world.docker.running()
    assert world.job(job_id).state is JobState.PENDING
    shown = [one.name for gpu in world.snapshots[-1].gpus for one in gpu.holders if one.kind == "container"]
    assert shown in ([], [f"attempt 1 of job {job_id}, which the queue lost"])
    world.exit(other)
    world.tick(3)
    assert mine in world.docker.running()
    assert world.job(job_id).state is JobState.RUNNING


def test_a_job_that_ended_while_the_queue_was_damaged_does_not_run_twice(world: World) -> None:
    job_id = world.submit(1)
    before = world.job(job_id)
    world.tick(2)
    world.exit(job_id, 0)
    forget(world, replace(before))
    world.tick(3)
    assert world.job(job_id).state is JobState.COMPLETED
    assert len(world.docker.started) == 1
