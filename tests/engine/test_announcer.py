"""Hooks: every target gets each event at least once, and no tick waits for it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.domain.action import Cancel, Requeue
from gputui.domain.errors import StoreFullError
from gputui.domain.event import Event
from gputui.domain.gpu import Health, HealthCode
from gputui.domain.settings import HookSettings, SchedulerSettings, Settings
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.engine.hooks import BUSY, MOST, Announcer, NotDeliveredError, stored_ends
from gputui.engine.tick.scheduler import Disk
from tests.engine.fakes import InlineExecutor, LaterExecutor
from tests.engine.world import World
from tests.factories import NOW, view

HOOKS = HookSettings(tries=3)


class Ear:
    """Hook that can fail."""

    def __init__(self) -> None:
        self.heard: list[Event] = []
        self.deaf = False
        self.asked = 0

    def __call__(self, event: Event) -> None:
        self.asked += 1
        if self.deaf:
            raise NotDeliveredError("nobody there")
        self.heard.append(event)


class Telling(World):
    """World with a recording hook."""

    def __init__(self, directory: Path, *, wants: Callable[[Event], bool] = lambda _: True) -> None:
        self.ear, self.other = Ear(), Ear()
        self.tellers: InlineExecutor | LaterExecutor = InlineExecutor()
        self.wants = wants
        super().__init__(directory, settings=replace(Settings(), hooks=HOOKS))

    def reborn(self) -> None:
        super().reborn()
        sinks = [("webhook", self.wants, self.ear), ("mail", lambda event: event.name == "job_failed", self.other)]
        self.scheduler.announcer = Announcer(stored_ends(self.store), HOOKS, sinks, lambda name: self.tellers)

    def run(self, code: int = 0, **changes: object) -> int:
        job_id = self.submit(1, **changes)
        self.tick(3)
        self.exit(job_id, code)
        self.tick(3)
        return job_id


@pytest.fixture
def world(tmp_path: Path) -> Telling:
    return Telling(tmp_path)


def test_each_end_is_announced_once_to_the_hooks_that_want_it(world: Telling) -> None:
    done, failed = world.run(), world.run(3)
    held = world.submit(1, begin_at=NOW + timedelta(days=1))
    world.actions.act(Cancel((held,)))
    world.tick(3)
    assert [event.name for event in world.ear.heard] == ["job_completed", "job_failed", "job_cancelled"]
    assert [event.data["id"] for event in world.ear.heard] == [done, failed, held]
    [mailed] = world.other.heard
    assert mailed.text == f"Job {failed} train (alice) failed after 2s: exit code 3"
    assert mailed.data["exit_code"] == 3
    assert mailed.document("here")["job"]["cause"]["code"] == "NonZeroExit"
    assert all(job.announced_end_at == job.ended_at for job in world.store.jobs().values())


def test_a_retry_is_not_an_end_and_a_requeued_job_ends_again(world: Telling) -> None:
    job_id = world.submit(1, retries=1, backoff=timedelta(seconds=1))
    world.tick(3)
    world.exit(job_id, 1)
    world.tick()
    assert world.job(job_id).state is JobState.PENDING
    assert world.ear.heard == []
    world.tick(5)
    world.exit(job_id)
    world.tick(3)
    world.actions.act(Requeue((job_id,)))
    world.tick(5)
    world.exit(job_id)
    world.tick(3)
    first, second = world.ear.heard
    assert first.id != second.id


def test_a_scheduler_killed_before_an_announcement_makes_it_when_it_is_back(world: Telling) -> None:
    world.tellers = LaterExecutor()
    world.reborn()
    job_id = world.run()
    assert world.ear.heard == []
    world.tellers = InlineExecutor()
    world.reborn()
    world.tick(2)
    assert [event.data["id"] for event in world.ear.heard] == [job_id]
    world.reborn()
    world.tick(3)
    assert len(world.ear.heard) == 1


def test_a_failed_delivery_is_retried_with_growing_pauses_and_then_dropped(world: Telling) -> None:
    world.other.deaf = True
    job_id = world.run(3)
    assert world.other.asked == 1
    assert "hooks.mail: nobody there" in [notice.text for notice in world.tick().notices]
    world.tick(6)
    assert world.other.asked == 2
    world.tick(15)
    assert world.other.asked == 2
    world.tick(10)
    assert world.other.asked == 3
    world.tick(2)
    assert world.job(job_id).announced_end_at is not None
    assert len(world.ear.heard) == 1  # the other way of telling worked at once, and was not troubled again
    world.tick(100)
    assert world.other.asked == 3


def test_old_events_are_not_announced(world: Telling) -> None:
    world.tellers = LaterExecutor()
    world.reborn()
    world.run()
    world.clock.advance(HOOKS.max_age.total_seconds() + 10)
    world.tellers = InlineExecutor()
    world.reborn()
    world.tick(3)
    assert world.ear.heard == []


def test_deliveries_are_limited_and_all_made_in_the_end(world: Telling) -> None:
    later = LaterExecutor()
    world.tellers = later
    world.reborn()
    held = [world.submit(1, begin_at=NOW + timedelta(days=1)) for _ in range(BUSY + 10)]
    world.actions.act(Cancel(tuple(held)))
    world.tick(2)
    later.work()
    assert len(world.ear.heard) == BUSY
    for _ in range(4):
        world.tick()
        later.work()
    assert sorted(event.data["id"] for event in world.ear.heard) == held


def test_a_slow_target_delays_no_other_and_its_dropped_deliveries_are_reported(tmp_path: Path) -> None:
    world = Telling(tmp_path)
    slow, quick = LaterExecutor(), InlineExecutor()
    told = Ear()
    sinks = [("webhook", lambda _: True, world.ear), ("on_job_end", lambda _: True, told)]
    announcer = Announcer(
        stored_ends(world.store), HOOKS, sinks, lambda name: slow if name == "hook-webhook" else quick
    )
    world.scheduler.announcer = announcer
    held = [world.submit(1, begin_at=NOW + timedelta(days=1)) for _ in range(MOST + 10)]
    world.actions.act(Cancel(tuple(held)))
    world.tick(2)
    assert sorted(event.data["id"] for event in told.heard) == held
    assert "hooks.webhook: deliveries dropped: 10, waiting: 1000" in [notice.text for notice in world.tick().notices]
    slow.work()
    world.tick(2)
    assert all(job.announced_end_at for job in world.store.jobs().values())
    assert len(world.ear.heard) == MOST


def test_an_announcement_that_cannot_be_stored_is_not_forgotten(
    world: Telling, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = world.submit(1, begin_at=NOW + timedelta(days=1))
    world.actions.act(Cancel((job_id,)))
    world.tick()

    def full() -> None:
        raise StoreFullError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "transaction", full)
        world.tick(2)
    assert world.job(job_id).announced_end_at is None
    world.tick()
    assert world.job(job_id).announced_end_at is not None
    assert len(world.ear.heard) == 1


def test_sick_and_recovered_gpus_are_announced(tmp_path: Path) -> None:
    world = Telling(tmp_path)
    announcer = world.scheduler.announcer
    assert announcer is not None
    jobs = world.scheduler.context.queue.jobs
    sick = view(1, health=Health(HealthCode.XID, "Xid 79: fell off the bus"))
    unknown = view(1, health=Health(HealthCode.UNKNOWN, ""))
    for views in ((view(0), view(1)), (view(0), sick), (view(0), sick), (view(0), unknown), (view(0), view(1))):
        announcer.update(jobs, views, NOW)
    names = [(event.name, event.data["index"]) for event in world.ear.heard]
    assert names[:1] == [("gpu_sick", 1)]
    assert "Xid 79: fell off the bus" in world.ear.heard[0].text


def test_a_full_disk_is_announced_once_and_shown_while_it_lasts(tmp_path: Path) -> None:
    world = Telling(tmp_path)
    world.settings = replace(world.settings, scheduler=SchedulerSettings(disk_floor=2**60))
    world.reborn()
    seen = world.tick(30)
    assert [event.name for event in world.ear.heard] == ["disk_low"]
    assert any("left on the disk of" in notice.text for notice in seen.notices)


def test_an_unreadable_disk_is_not_low(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "gone", 2**60)
    assert disk.notices(NOW) == ()
    assert not disk.is_low


def test_without_hooks_nothing_is_written(tmp_path: Path) -> None:
    world = World(tmp_path)
    job_id = world.submit(1, begin_at=NOW + timedelta(days=1))
    world.actions.act(Cancel((job_id,)))
    seen: Snapshot = world.tick(3)
    assert seen.notices == ()
    assert world.job(job_id).announced_end_at is None
