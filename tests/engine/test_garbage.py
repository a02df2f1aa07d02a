"""Garbage collections stop every thread: the queue is left out of them, and they are rare."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from gputui.engine import garbage
from tests.engine.test_host import RealClock, Seat, real
from tests.engine.world import World


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    threshold = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    gc.unfreeze()
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()


async def test_the_queue_is_passed_over_by_who_leads_and_by_who_looks_on(world: World) -> None:
    first, second = (Seat(real(world), RealClock(), "console", may_lead=leads) for leads in (True, False))
    for seat in (first, second):
        _as_python_has_it()
        task = asyncio.create_task(seat.host.run())
        await seat.until(lambda: gc.get_freeze_count() > 0)
        assert gc.get_threshold()[0] == garbage.YOUNG
        seat.host.stop()
        await asyncio.wait_for(task, 10)


def _as_python_has_it() -> None:
    gc.set_threshold(700, 10, 10)
    gc.unfreeze()


def test_what_a_plan_makes_and_drops_sets_off_no_collection_of_old_objects() -> None:
    garbage.settle()
    gc.collect()
    before = gc.get_stats()[2]["collections"]
    for _ in range(8):
        dropped = [(number, [number]) for number in range(20_000)]
    del dropped
    assert gc.get_stats()[2]["collections"] == before
