"""What the hands remember stays bounded however long they work."""

from __future__ import annotations

import pytest

from gputui.domain.errors import RuntimeUnavailableError
from gputui.engine import hands
from tests.engine.fakes import LaterExecutor
from tests.engine.world import World


def test_the_book_of_attempts_does_not_grow_for_ever(world: World) -> None:
    book = world.scheduler.hands
    for number in range(hands.REMEMBERED + 50):
        book._settle((number, 1), "docker")
    assert len(book._settled) == hands.REMEMBERED
    assert book.settled((0, 1)) == 0
    assert book.settled((hands.REMEMBERED + 49, 1)) > hands.REMEMBERED


def test_one_clean_up_of_a_container_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clean-up that takes longer than the pause between two of them is not joined by a second one."""
    job_id = world.submit()
    world.tick(2)
    [record] = world.docker.running()
    world.exit(job_id)
    ended = world.docker.made[record.id]
    book, workers = world.scheduler.hands, LaterExecutor()
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
