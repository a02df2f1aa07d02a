"""Options of docker run that concern the scheduler: pulls, pauses before SIGKILL, ports."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from gputui.domain.action import Cancel
from gputui.domain.container import ContainerRecord
from gputui.domain.errors import CauseCode
from gputui.domain.job_spec import ContainerOptions, PublishedPort
from gputui.domain.state import JobState
from tests.engine.fakes import FakeRuntime
from tests.engine.world import World

PORT = PublishedPort(8888, 49153)


class Publishing(FakeRuntime):
    """A runtime whose containers publish a port once they run, and that counts its pulls."""

    pulled = 0

    def inspect(self, container_id: str) -> ContainerRecord | None:
        found = super().inspect(container_id)
        return replace(found, ports=(PORT,)) if found else None

    def pull(self, *arguments: object) -> None:
        self.pulled += 1
        super().pull(*arguments)  # type: ignore[arg-type]


def world_of(tmp_path: Path) -> tuple[World, Publishing]:
    world = World(tmp_path / "state")
    docker = world.docker = Publishing("docker", world.clock, world.tripwire)
    docker.pullable.add("busybox")
    world.reborn()
    return world, docker


def test_ports_that_are_published_are_kept_with_the_attempt(tmp_path: Path) -> None:
    world, _ = world_of(tmp_path)
    told = world.submit(options=ContainerOptions(publish=("auto:8888",)))
    untold = world.submit()
    world.tick(3)
    assert world.job(told).attempts[0].ports == (PORT,)
    assert world.job(untold).attempts[0].ports == ()


def test_an_image_is_pulled_again_for_every_attempt_with_pull_always(tmp_path: Path) -> None:
    world, docker = world_of(tmp_path)
    docker.images.add("busybox")
    world.submit(options=ContainerOptions(pull="missing"))
    world.tick(3)
    assert docker.pulled == 0
    job_id = world.submit(options=ContainerOptions(pull="always"), retries=1)
    world.tick(3)
    assert (docker.pulled, world.job(job_id).state) == (1, JobState.RUNNING)
    world.exit(job_id, 1)
    world.tick(2)
    world.clock.advance(3600)
    world.tick(3)
    assert (docker.pulled, len(world.job(job_id).attempts)) == (2, 2)


def test_a_missing_image_with_pull_never_fails_the_job(tmp_path: Path) -> None:
    world, docker = world_of(tmp_path)
    docker.images.clear()
    job_id = world.submit(options=ContainerOptions(pull="never"), retries=3)
    world.tick(4)
    job = world.job(job_id)
    assert (job.state, len(job.attempts), docker.pulled) == (JobState.FAILED, 1, 0)
    assert job.cause is not None
    assert job.cause.code is CauseCode.IMAGE_NOT_FOUND


def test_a_job_s_own_pause_comes_before_sigkill(tmp_path: Path) -> None:
    world, docker = world_of(tmp_path)
    docker.images.add("busybox")
    docker.obeys = False
    job_id = world.submit(options=ContainerOptions(stop_timeout=60))
    world.tick(3)
    world.actions.act(Cancel((job_id,)))
    world.tick(2, seconds=25)
    assert world.job(job_id).state is JobState.COMPLETING, "ten seconds are the default"
    world.tick(3, seconds=25)
    assert world.job(job_id).state is JobState.CANCELLED
