"""Two schedulers on one engine: a GPU goes to one of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from gputui.domain.container import ContainerRecord, ContainerState, Created, Launch
from gputui.domain.errors import CauseCode
from gputui.domain.state import JobState
from gputui.engine.tick.start_protocol import CONFLICT_CHECKS, conflicting_container
from tests.cases import cases
from tests.engine.fakes import FakeRuntime
from tests.engine.world import World
from tests.factories import FakeClock, uuid

RUNNING, CREATED = ContainerState.RUNNING, ContainerState.CREATED


def rival(name: str, state: ContainerState) -> ContainerRecord:
    return ContainerRecord(name, 1, 1, state, (uuid(0),))


def with_mine(looks: list[tuple[ContainerRecord, ...]], state: ContainerState = CREATED) -> FakeRuntime:
    """A runtime with our container `m`, that shows these rivals one look after the other, the last for ever."""
    runtime = FakeRuntime("docker", FakeClock())
    runtime.made["m"] = ContainerRecord("m", 1, 1, state, (uuid(0),))
    shown = itertools.chain(looks, itertools.repeat(looks[-1]))
    runtime.rivalry = lambda _: next(shown)
    return runtime


def pauses(into: list[float]) -> Callable[[float], None]:
    return into.append


@cases(
    ("looks", "loses", "waits"),
    [
        ([()], False, 0),
        ([(rival("z", RUNNING),)], True, 0),
        ([(rival("a", CREATED),)], True, 0),
        ([(rival("z", CREATED),), ()], False, 1),
        ([(rival("z", CREATED),), (rival("z", RUNNING),)], True, 1),
        ([(rival("z", CREATED), rival("y", RUNNING))], True, 0),
        ([(rival("z", CREATED),)], True, CONFLICT_CHECKS),
    ],
)
def test_the_later_scheduler_yields(looks: list[tuple[ContainerRecord, ...]], loses: bool, waits: int) -> None:
    waited: list[float] = []
    assert (conflicting_container(with_mine(looks), "m", pauses(waited)) is not None) is loses
    assert len(waited) == waits


def test_running_attempts_stay() -> None:
    assert conflicting_container(with_mine([(rival("a", RUNNING),)], RUNNING), "m", pauses([])) is None


def test_an_unexpected_error_before_the_start_is_a_failure_with_pauses_and_a_reason(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unrecorded it would be repeated for ever, with the GPUs held."""
    tries: list[Launch] = []

    def fail(launch: Launch) -> Created:
        tries.append(launch)
        raise PermissionError(13, "Permission denied", "/proc/1/root")

    monkeypatch.setattr(world.docker, "create", fail)
    job_id = world.submit(1, retries=1)
    world.tick(20, seconds=0.2)
    job = world.job(job_id)
    assert (job.state, job.gpus, job.charged_attempts, len(tries)) == (JobState.PENDING, (), 0, 1)
    assert job.attempts[0].cause is not None
    assert job.attempts[0].cause.code is CauseCode.RUNTIME_ERROR
    assert "/proc/1/root" in job.attempts[0].cause.text
    world.tick(60, seconds=600)
    assert "held after 20 starts" in str(world.job(job_id).hold_reason)


def test_a_job_that_yielded_is_not_charged_and_starts_when_the_rival_is_gone(world: World) -> None:
    world.docker.rivalry = lambda _: (rival("a", RUNNING),)
    job_id = world.submit(1)
    world.tick(2)
    job = world.job(job_id)
    assert (job.state, job.attempts, world.docker.made, world.docker.started) == (JobState.PENDING, (), {}, [])
    world.docker.rivalry = lambda _: ()
    world.tick(2)
    assert world.job(job_id).state is JobState.RUNNING


def test_a_job_without_gpus_has_no_rivals(world: World) -> None:
    world.docker.rivalry = lambda _: (rival("a", RUNNING),)
    job_id = world.submit(0)
    world.tick(2)
    assert world.job(job_id).state is JobState.RUNNING
