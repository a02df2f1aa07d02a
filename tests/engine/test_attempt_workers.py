"""The workers' memory of attempts is bounded, and one clean-up of a container runs at a time."""

from __future__ import annotations

import pytest

from gputui.domain.errors import RuntimeUnavailableError
from gputui.engine.tick import attempt_workers
from tests.engine.fakes import LaterExecutor
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
