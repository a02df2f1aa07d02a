"""What the hands remember stays bounded however long they work."""

from __future__ import annotations

from gputui.engine import hands
from tests.engine.world import World


def test_the_book_of_attempts_does_not_grow_for_ever(world: World) -> None:
    book = world.scheduler.hands
    for number in range(hands.REMEMBERED + 50):
        book._settle((number, 1), "docker")
    assert len(book._settled) == hands.REMEMBERED
    assert book.settled((0, 1)) == 0
    assert book.settled((hands.REMEMBERED + 49, 1)) > hands.REMEMBERED
