"""The workers' memory of attempts is bounded, and one clean-up of a container runs at a time."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gputui.domain.action import Signal
from gputui.domain.container import ContainerRecord, ContainerState
from gputui.domain.errors import Cause, CauseCode, RuntimeFault, RuntimeUnavailableError
from gputui.domain.job import Attempt
from gputui.engine.tick import attempt_workers
from gputui.engine.tick.attempt_workers import AttemptWorkers, ImagePulls
from gputui.engine.tick.start_protocol import launch_of
from gputui.engine.tick.workers import Sequence
from tests.cases import cases
from tests.engine.fakes import InlineExecutor, LaterExecutor
from tests.engine.world import World


def test_the_workers_forget_the_oldest_attempts(world: World) -> None:
    book = world.scheduler.workers
    for number in range(attempt_workers.REMEMBERED + 50):
        book.note_given_back((number, 1))
    assert book.last_worked_on((0, 1)) == 0
    assert book.last_worked_on((attempt_workers.REMEMBERED + 49, 1)) > attempt_workers.REMEMBERED


def test_a_container_is_cleaned_up_once_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clean-up that takes longer than the pause between two of them is not joined by a second one."""
    job_id = world.submit()
    world.tick(2)
    [record] = world.docker.running()
    world.exit(job_id)
    ended = world.docker.made[record.id]
    book, workers = world.scheduler.workers, LaterExecutor()
    monkeypatch.setattr(book, "_pools", lambda work, runtime: workers)
    for _ in range(3):
        book.clean(world.docker, ended, world.clock.now())
        world.clock.advance(60)
    assert len(workers.waiting) == 1
    monkeypatch.setattr(world.docker, "up", False)
    workers.work()
    with pytest.raises(RuntimeUnavailableError):
        world.docker.containers()
    monkeypatch.setattr(world.docker, "up", True)
    book.clean(world.docker, ended, world.clock.now())
    workers.work()
    assert world.docker.saved
    assert not world.docker.made


def full(*_: object) -> None:
    raise RuntimeFault(Cause(CauseCode.DISK_FULL, "no space left"))


@cases("reborn", [False, True])
def test_a_container_is_cleaned_up_although_its_job_is_in_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reborn: bool
) -> None:
    world = World(tmp_path)
    job_id = world.submit()
    world.tick(2)
    world.exit(job_id)
    with monkeypatch.context() as broken:
        broken.setattr(world.docker, "save_log", full)
        world.tick(2)
        world.clock.advance(timedelta(days=8).total_seconds())
        world.store.maintain(world.clock.now())
        assert job_id not in world.store.jobs()
        world.tick()
        assert world.docker.made, "its output is nowhere else"
    if reborn:
        world.reborn()
    world.tick(2, seconds=60)
    assert world.docker.saved
    assert not world.docker.made


def test_a_clean_up_is_repeated_although_the_clock_went_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = world.submit()
    world.tick(2)
    world.exit(job_id)
    with monkeypatch.context() as broken:
        broken.setattr(world.docker, "save_log", full)
        world.tick(2)
    world.clock.advance(-86400)
    world.tick(2)
    assert not world.docker.made


def test_a_container_of_a_job_that_nobody_knows_is_left_alone(world: World) -> None:
    world.docker.made["c"] = ContainerRecord("c", 999, 1, ContainerState.EXITED, exit_code=0)
    world.tick(3)
    assert "c" in world.docker.made


@cases("error", [RuntimeUnavailableError("docker broke off"), OSError("oh")])
def test_what_the_runtime_did_not_answer_is_not_repeated_at_once(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A listing asked for after a failure would repeat the request in the next moment, for ever."""
    changed: list[str] = []
    parts = world.store, lambda *_: InlineExecutor(), world.clock
    pulls = ImagePulls(*parts, world.settings.scheduler, changed.append)
    workers = AttemptWorkers(*parts, world.settings, changed.append, pulls, tmp_path, Sequence())
    job = world.job(world.submit())
    launch = launch_of(world.store.store_id, job, Attempt(1, ()))

    def broken(*_: Any) -> None:
        raise error

    for name in ("start", "suspend"):
        monkeypatch.setattr(world.docker, name, broken)
    workers.start(world.docker, launch)
    workers.set_suspended(world.docker, (job.id, 1), "c", is_suspended=True)
    assert changed == []
    assert not workers.is_busy((job.id, 1))


def test_requests_for_a_lost_runtime_are_not_written_again_and_again(world: World) -> None:
    job_id = world.submit()
    world.tick(2)
    world.actions.act(Signal((job_id,), 10))
    world.docker.up = False
    world.tick(2)
    version = world.store.version()
    world.tick(5)
    assert world.store.version() == version
    world.docker.up = True
    world.tick(2)
    assert [what for _, what in world.docker.told] == ["signal 10"]
