"""Garbage collection: the queue is excluded, and collections are rare, because they stop every thread."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest
from textual import events

from gputui.bootstrap import SystemClock
from gputui.engine import loop
from tests.cases import cases
from tests.engine.test_host import Seat, real
from tests.engine.world import World
from tests.tui.console import Console


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    threshold = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    gc.unfreeze()
    yield
    gc.set_threshold(*threshold)
    gc.freeze()  # as it was: each collection over the objects of pytest takes a quarter of a second


async def test_leaders_and_viewers_exclude_the_queue_from_collections(world: World) -> None:
    first, second = (Seat(real(world), SystemClock(), "console", may_lead=leads) for leads in (True, False))
    for seat in (first, second):
        _as_python_has_it()
        task = asyncio.create_task(seat.host.run())
        await seat.until(lambda: gc.get_freeze_count() > 0)
        assert gc.get_threshold()[0] == loop.YOUNG
        seat.host.stop()
        await asyncio.wait_for(task, 60)


def _as_python_has_it() -> None:
    gc.set_threshold(700, 10, 10)
    gc.unfreeze()


def test_collections_of_old_objects() -> None:
    # objects of a plan trigger no full collection
    loop.configure_gc()
    gc.collect()
    before = gc.get_stats()[2]["collections"]
    for _ in range(8):
        dropped = [(number, [number]) for number in range(20_000)]
    del dropped
    assert gc.get_stats()[2]["collections"] == before
    # Python never collects old objects by itself
    loop.configure_gc()
    before = gc.get_stats()[2]["collections"]
    kept = [[number] for number in range(20 * 10 * loop.YOUNG)]
    assert len(kept) > 0
    assert gc.get_stats()[1]["collections"] > 0
    assert gc.get_stats()[2]["collections"] == before


@cases(("most", "stays"), [(10**9, False), (0, True)])
def test_garbage_of_the_start_is_collected_unless_that_would_take_long(
    monkeypatch: pytest.MonkeyPatch, most: int, stays: bool
) -> None:
    monkeypatch.setattr(loop, "MOST_FROZEN", most)
    gc.disable()
    ring = Ring()
    gone = weakref.ref(ring)
    gc.freeze()
    gc.enable()
    del ring
    gc.collect()
    assert gone() is not None, "it is exempt"
    loop.collect_frozen()
    assert (gone() is not None) is stays
    assert gc.get_freeze_count() > 0


class Ring:
    """Object in a reference cycle."""

    def __init__(self) -> None:
        self.itself = self


async def test_old_garbage_is_collected_while_nobody_types() -> None:
    # old garbage is collected while no keys are pressed
    loop.configure_gc()
    sweeper, ring = loop.Sweeper(touched_at=0.0, swept_at=0.0), Ring()
    gone = weakref.ref(ring)
    gc.collect()  # it is old now
    del ring
    sweeper.tend(loop.EVERY - 1)
    assert gone() is not None, "it is not time"
    sweeper.touch(loop.EVERY)
    sweeper.tend(loop.EVERY + loop.STILL / 2)
    assert gone() is not None, "somebody types"
    sweeper.tend(loop.EVERY + loop.STILL)
    assert gone() is None
    assert not sweeper.is_due(loop.EVERY + 2 * loop.STILL)
    # continuous typing delays a collection for half an hour
    sweeper = loop.Sweeper(touched_at=0.0, swept_at=0.0)
    due = []
    for now in range(4000):
        sweeper.touch(now)
        if sweeper.is_due(now):
            due.append(now)
            sweeper.swept_at = now
    assert due == [1800, 3600]
    # keys and the mouse postpone a collection
    console = Console()
    async with console.app.run_test(size=(80, 24)) as pilot:
        await console.begin(pilot)
        at = (None, 3, 3, 0, 0, 0, False, False, False, 3, 3)
        for event in (events.Key("j", "j"), events.MouseMove(*at), events.MouseScrollDown(*at)):
            loop.SWEEPER.touched_at = 0.0
            console.app.post_message(event)
            await pilot.pause()
            assert loop.SWEEPER.touched_at > 0.0


async def test_leaders_and_viewers_tune_the_collector(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "MAINTENANCE_INTERVAL", 0.01)
    for leads in (True, False):
        seat = Seat(real(world), SystemClock(), "console", may_lead=leads)
        monkeypatch.setattr(loop, "SWEEPER", loop.Sweeper(touched_at=0.0, swept_at=0.0))
        task = asyncio.create_task(seat.host.run())
        await seat.until(lambda: loop.SWEEPER.swept_at > 0.0)
        seat.host.stop()
        await asyncio.wait_for(task, 60)
