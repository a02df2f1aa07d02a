"""Plans are made when an input has changed, but not for values that change constantly."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from gputui.domain.action import Hold, Pause, Unpause
from gputui.domain.policy.plan import plan
from gputui.engine.loop import Loop, Waker
from gputui.engine.tick import planner
from tests.engine.world import World
from tests.factories import GIB


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Record an item for each plan."""
    made: list[object] = []

    def counted(*args: Any) -> object:
        made.append(object())
        return plan(*args)

    monkeypatch.setattr(planner, "plan", counted)
    return made


def test_an_unchanged_snapshot_is_not_planned_again(world: World, plans: list[object]) -> None:
    world.actions.act(Pause(""))
    world.submit(1)
    jobs = world.tick(2).jobs
    made = len(plans)
    for memory in (30, 31, 32):  # a foreign process, which grows
        world.probe.sick(0, memory_used=memory * GIB)
        snapshot = world.tick(seconds=0.1)
        assert snapshot.jobs is jobs  # so that the console need not look at them again
    assert len(plans) == made + 1  # it is not free any more


def test_a_freed_gpu_and_an_action_trigger_a_plan(world: World, plans: list[object]) -> None:
    world.probe.sick(0, memory_used=30 * GIB)
    world.actions.act(Pause(""))
    job_id = world.submit(1)
    world.tick(2)
    for change in (
        lambda: world.probe.sick(0),
        lambda: world.actions.act(Hold((job_id,))),
        lambda: world.actions.act(Unpause()),
    ):
        made = len(plans)
        change()
        world.tick(seconds=0.1)
        assert len(plans) == made + 1


def test_the_queue_is_left_out_of_collections_after_the_first_tick(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A walk over all of it would stop every thread for long, the console's too."""
    frozen: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(len(world.snapshots)))
    loop = Loop(world.scheduler, world.store, world.settings.scheduler, world.clock, Waker())
    for _ in range(3):
        assert loop.tick()
    assert frozen == [1]
