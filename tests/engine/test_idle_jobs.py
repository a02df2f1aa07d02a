"""Idle timeouts: output, input and use of GPUs count as activity; the wall clock does not matter."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from gputui.domain.errors import CauseCode
from gputui.domain.job_spec import JobId
from gputui.domain.state import JobState
from gputui.engine.telemetry_files import FOLDER, InputMark
from tests.cases import cases
from tests.engine.world import World

IDLE: dict[str, Any] = {"idle_timeout": timedelta(minutes=5)}


def begun(world: World, gpus: int = 1) -> JobId:
    job_id = world.submit(gpus, **IDLE)
    world.tick(2)
    assert world.job(job_id).state is JobState.RUNNING
    return job_id


def container(world: World, job_id: JobId) -> str:
    found = world.job(job_id).attempts[-1].container_id
    assert found is not None
    return found


@cases("gpus", [0, 1])
def test_an_idle_job_ends_with_its_cause(tmp_path: Path, gpus: int) -> None:
    world = World(tmp_path)
    job_id = begun(world, gpus)
    world.tick(28, seconds=10)
    assert world.job(job_id).state is JobState.RUNNING
    world.tick(8, seconds=10)
    job = world.job(job_id)
    assert job.state is JobState.TIMEOUT
    assert job.cause is not None
    assert job.cause.code is CauseCode.TIME_LIMIT
    use = " and no use of its GPUs" if gpus else ""
    assert job.cause.text == f"idle for 5m: no output, no input{use} (--idle-timeout)"


def test_output_is_a_sign_of_life(world: World) -> None:
    job_id = begun(world)
    for line in range(4):
        world.tick(20, seconds=10)
        world.docker.output.setdefault(container(world, job_id), []).append(b"%d" % line)
    world.tick(28, seconds=10)
    assert world.job(job_id).state is JobState.RUNNING
    world.tick(8, seconds=10)
    assert world.job(job_id).state is JobState.TIMEOUT


def test_known_and_unknown_use_of_a_gpu_are_activity(world: World) -> None:
    job_id = begun(world)
    for utilization in (0.01, None):
        world.probe.sick(0, utilization=utilization)
        world.tick(40, seconds=10)
        assert world.job(job_id).state is JobState.RUNNING
    world.probe.sick(0, utilization=0.0)
    world.tick(36, seconds=10)
    assert world.job(job_id).state is JobState.TIMEOUT


def test_input_is_a_sign_of_life(world: World) -> None:
    job_id = begun(world)
    world.tick(20, seconds=10)
    InputMark(world.directory, job_id).set()
    world.tick(20, seconds=10)
    assert world.job(job_id).state is JobState.RUNNING
    world.tick(20, seconds=10)
    assert world.job(job_id).state is JobState.TIMEOUT
    world.tick(2)
    assert not list((world.directory / FOLDER).iterdir()), "the mark goes with the job"


def test_a_clock_that_is_set_ends_nothing(world: World) -> None:
    job_id = begun(world)
    world.clock.advance(1, shown=7200)
    world.tick(10)
    assert world.job(job_id).state is JobState.RUNNING


def test_a_runtime_that_does_not_answer_ends_nothing(world: World) -> None:
    job_id = begun(world)
    world.docker.up = False
    world.tick(60, seconds=10)
    world.docker.up = True
    assert world.job(job_id).state is JobState.RUNNING


def test_a_job_without_an_idle_timeout_may_be_idle(world: World) -> None:
    job_id = world.submit(1)
    world.tick(2)
    world.tick(60, seconds=10)
    assert world.job(job_id).state is JobState.RUNNING
