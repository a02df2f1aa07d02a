"""Reservations are judged once, across schedulers."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.domain.settings import PolicySettings, Settings, Window
from gputui.domain.snapshot import Controls, WindowState
from gputui.domain.state import JobState
from gputui.engine.actions.actions import describe_window
from tests.cases import cases
from tests.engine.world import World
from tests.factories import NOW

GRACE = timedelta(seconds=33)
WINDOW = Window("course", NOW + timedelta(seconds=10), NOW + timedelta(hours=1), count=4, tenant="bob")


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, settings=Settings(policy=PolicySettings(reservation_grace=GRACE)))
    with made.store.transaction() as transaction:
        transaction.set_controls(Controls(reservations=(WINDOW,)))
    return made


def controls(world: World) -> Controls:
    return world.store.controls()


def test_an_unclaimed_reservation_is_released_for_good(world: World) -> None:
    others = world.submit(gpus=4, time_limit=timedelta(hours=2))
    world.tick(42)
    assert world.job(others).state is JobState.PENDING
    assert controls(world).released == {}
    world.tick()
    assert controls(world).released == {WINDOW.key: NOW + timedelta(seconds=43)}
    world.tick()
    assert world.job(others).state is JobState.RUNNING
    world.exit(others)
    world.reborn()
    world.tick()
    world.submit(gpus=1, tenant="bob")
    again = world.submit(gpus=3, time_limit=timedelta(hours=2))
    world.tick(3)
    assert world.job(again).state is JobState.RUNNING


def test_a_claimed_reservation_is_kept_after_its_job_has_ended(world: World) -> None:
    world.tick(11)
    own = world.submit(gpus=1, tenant="bob")
    world.tick(4)
    assert list(controls(world).claimed) == [WINDOW.key]
    world.exit(own)
    with world.store.transaction() as transaction:  # gone to history, as after days
        transaction.put(replace(world.job(own), attempts=()))
    world.reborn()
    others = world.submit(gpus=1)
    world.tick(60)
    assert world.job(others).state is JobState.PENDING
    assert controls(world).released == {}


def test_a_reservation_is_kept_until_its_end(world: World) -> None:
    with world.store.transaction() as transaction:
        short = replace(WINDOW, end=NOW + timedelta(seconds=22))
        transaction.set_controls(Controls(reservations=(short,)))
    others = world.submit(gpus=4, time_limit=timedelta(hours=2))
    world.tick(21)
    assert world.job(others).state is JobState.PENDING
    world.tick(2)
    assert world.job(others).state is JobState.RUNNING
    assert controls(world).claimed == {}


def test_the_snapshot_has_windows_and_fragmentation(world: World) -> None:
    busy = world.submit(gpus=3, time_limit=timedelta(hours=2), tenant="bob")
    world.tick(3)
    assert world.job(busy).state is JobState.RUNNING
    world.submit(gpus=2, tenant="bob")
    seen = world.tick(2)
    assert seen.fragmentation == 1
    [view] = seen.windows
    assert (view.window, view.state, view.source) == (WINDOW, WindowState.UPCOMING, "command")
    assert len(view.gpus) == 4
    assert view.lapses_at == WINDOW.start + GRACE


@cases(
    ("tenant", "priority", "beneficiary"),
    [
        ("bob", None, "bob"),
        (None, 80, "priority 80 and above"),
        ("bob", 80, "bob, and priority 80 and above"),
        (None, None, "nobody"),
    ],
)
def test_a_reservation_is_described_with_its_beneficiary(
    tenant: str | None, priority: int | None, beneficiary: str
) -> None:
    window = Window("night", NOW, NOW + timedelta(hours=1), count=4, tenant=tenant, priority=priority)
    hours = f"from {NOW.isoformat()} to {(NOW + timedelta(hours=1)).isoformat()}"
    assert describe_window(window) == f"4 GPUs {hours} for {beneficiary}"
