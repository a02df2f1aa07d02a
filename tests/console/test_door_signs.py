"""Signs of the door: that the scheduler lives, and which rules refused what to whom."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

from gputui.bootstrap import door
from gputui.domain.access import Caller, Role
from gputui.domain.settings import SchedulerSettings, Settings
from gputui.domain.snapshot import EMPTY
from gputui.engine.feed import Feed
from tests.api.owner import TestOwner
from tests.memory_store import MemoryJobStore


def until_more(beats: list[float], count: int) -> None:
    """Wait for so many further beats."""
    wanted, deadline = len(beats) + count, time.monotonic() + 30
    while len(beats) < wanted:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_tells_that_it_lives_as_long_as_ticks_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "START_WITHIN", 0.05)
    settings = Settings(scheduler=SchedulerSettings(tick_interval=timedelta(seconds=0.2)))
    owner = TestOwner(tmp_path / "state", settings)
    monkeypatch.setattr(door, "SILENT_AFTER", 0.0)
    feed, beats = Feed(), list[float]()
    found = door.Door(owner.options, feed, lambda _: owner.services, beat=lambda: beats.append(time.monotonic()))
    found.open()
    until_more(beats, 2)  # a first tick may take long
    feed.publish(EMPTY)
    done = threading.Event()
    deadline = time.monotonic() + 60
    while not found.silent_for:  # three intervals without a tick
        assert time.monotonic() < deadline
        time.sleep(0.05)
    silent_at = time.monotonic()
    done.wait(2.5)
    assert not [beat for beat in beats if beat > silent_at]
    seen = len(beats)
    while len(beats) == seen:
        feed.publish(EMPTY)
        time.sleep(0.05)
        assert time.monotonic() < deadline
    found.close()
    found.leave(is_awaited=False)
    owner.store.close()


def test_refusals_of_one_user_fill_no_disk() -> None:
    store, now = MemoryJobStore(), [0.0]
    refusals = door.Refusals(store, lambda: now[0])
    eve, bob = (Caller(uid, uid, (), name, Role.USER) for uid, name in ((1003, "eve"), (1002, "bob")))
    for _ in range(500):
        refusals.record(eve, "own-jobs", "cancel job 7")
    refusals.record(bob, "own-jobs", "hold job 8")
    for _ in range(10):
        now[0] += 3.0
        refusals.record(eve, "own-jobs", "cancel job 7")
    entries = [(entry.user, entry.verb, entry.target, entry.after) for entry in store.audit_log()]
    assert entries.count(("eve", "refused", "own-jobs", "cancel job 7")) == 30
    assert entries.count(("bob", "refused", "own-jobs", "hold job 8")) == 1
