"""A scheduler that stands in for a console: it yields to a service, and ends when nothing is left to do."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from gputui.bootstrap import SystemClock
from gputui.domain.action import AddRecurring, Cancel, Hold, PauseRecurring
from gputui.domain.job_spec import Submission
from gputui.domain.recurring import Recurrence
from gputui.domain.settings import Window
from gputui.domain.snapshot import Controls
from gputui.engine import host
from gputui.engine.leadership import Leadership
from gputui.ports import JobStore
from tests.cases import cases
from tests.engine.test_host import Seat, real
from tests.engine.world import World
from tests.factories import NOW, spec


def has_work(world: World) -> bool:
    return world.scheduler.has_work


def test_work_is_what_has_not_ended_and_what_will_come(world: World) -> None:
    assert has_work(world)  # the queue is not known yet
    world.tick()
    assert not has_work(world)
    job = world.submit(1)
    world.tick(3)
    assert has_work(world)
    world.exit(job)
    world.tick(3)
    assert not has_work(world)
    held = world.submit(1)
    world.actions.act(Hold((held,)))
    world.tick()
    assert has_work(world)  # its release must find a scheduler
    world.actions.act(Cancel((held,)))
    later = world.submit(1, begin_at=world.clock.now() + timedelta(days=1))
    world.tick()
    assert has_work(world)
    world.actions.act(Cancel((later,)))
    world.tick(2)
    assert not has_work(world)
    added = world.actions.act(AddRecurring(Recurrence("0 0 1 1 *", "UTC"), Submission(spec()))).ids[0]
    world.tick()
    assert has_work(world)
    world.actions.act(PauseRecurring((added,)))
    world.tick()
    assert not has_work(world)
    with world.store.transaction() as transaction:
        window = Window("course", NOW + timedelta(hours=1), NOW + timedelta(hours=2), count=4)
        transaction.set_controls(Controls(reservations=(window,)))
    world.tick()
    assert not has_work(world)  # without jobs it makes no difference


@cases("is_empty", [True, False])
async def test_it_yields_to_a_service_that_waits(tmp_path: Path, is_empty: bool) -> None:
    world = World(tmp_path)
    real(world)
    if not is_empty:
        world.actions.act(Hold((world.submit(1),)))
    first, second = Seat(world, SystemClock(), "serve", stands_in=True), Seat(world, SystemClock(), "serve")
    leading = asyncio.create_task(first.host.lead(0))
    await first.until(lambda: first.feed.latest.leads_here)
    assert not Leadership(world.directory).is_awaited()
    waiting = asyncio.create_task(second.host.lead(60))
    assert await asyncio.wait_for(leading, 60)
    await second.until(lambda: second.feed.latest.leads_here)
    assert not first.host.has_run_dry
    second.host.stop()
    assert await asyncio.wait_for(waiting, 60)


async def test_it_ends_when_there_is_nothing_to_do(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "IDLE_FOR", 0.0)
    seat = Seat(real(world), SystemClock(), "serve", stands_in=True)
    assert await asyncio.wait_for(seat.host.lead(0), 60)
    assert (seat.host.has_run_dry, seat.host.leads, seat.probe.is_closed) == (True, False, True)


async def test_a_service_does_not_end_on_an_empty_queue(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it yield to another."""
    monkeypatch.setattr(host, "IDLE_FOR", 0.0)
    monkeypatch.setattr(host, "LOOK_EVERY", 0.01)
    first, second = Seat(real(world), SystemClock(), "serve"), Seat(world, SystemClock(), "serve")
    leading = asyncio.create_task(first.host.lead(0))
    await first.until(lambda: first.feed.latest.leads_here)
    assert not await asyncio.wait_for(second.host.lead(0.5), 60)
    assert first.host.leads
    first.host.stop()
    assert await asyncio.wait_for(leading, 60)


async def test_who_cannot_lead_is_not_waited_for(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service whose store refuses would leave the queue without a scheduler."""
    real(world)
    seat = Seat(world, SystemClock(), "serve")

    def refuse(store: JobStore) -> None:
        raise OSError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(type(world.store), "jobs", refuse)
    waiting = asyncio.create_task(seat.host.lead(0.5))
    with pytest.raises(OSError, match="Permission"):
        await asyncio.wait_for(waiting, 60)
    assert not Leadership(world.directory).is_awaited()
