"""The loop ticks at once when another process wrote to the store, and looks for itself where nobody tells."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event
from typing import cast

import pytest

from gputui.domain.settings import SchedulerSettings
from gputui.engine import loop
from gputui.engine.scheduler import Scheduler
from gputui.engine.waker import Waker
from gputui.store import TinyJobStore
from tests.factories import ACTOR, NOW, FakeClock, job

NEVER = 3600.0


class Ticks:
    """A scheduler that only tells of its ticks."""

    def __init__(self) -> None:
        self.wake_at = NOW
        self._loop = asyncio.get_running_loop()
        self._ticked = asyncio.Event()

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def tick(self, now: object) -> None:
        self._loop.call_soon_threadsafe(self._ticked.set)

    async def next(self, patience: float = 10) -> None:
        await asyncio.wait_for(self._ticked.wait(), patience)
        self._ticked.clear()


async def ticks_after_a_write(directory: Path) -> None:
    """Return when a write of another store was followed by a tick."""
    ours, other, ticks, stop = TinyJobStore(directory), TinyJobStore(directory), Ticks(), asyncio.Event()
    settings = SchedulerSettings(tick_interval=timedelta(hours=1), reconcile_interval=timedelta(hours=1))
    looped = loop.Loop(cast("Scheduler", ticks), ours, settings, FakeClock(), Waker())
    running = asyncio.create_task(looped.run(stop))
    await ticks.next()
    with pytest.raises(TimeoutError):
        await ticks.next(0.1)
    other.submit([job()], actor=ACTOR)
    await ticks.next()
    stop.set()
    await running
    ours.close()
    other.close()


@pytest.fixture(autouse=True)
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the interval nor a look of its own makes a tick."""
    monkeypatch.setattr(loop, "STORE_LOOK", NEVER)
    monkeypatch.setattr(loop, "STORE_POLL", NEVER)


async def test_a_write_rings(tmp_path: Path) -> None:
    await ticks_after_a_write(tmp_path / "state")


async def test_where_nobody_tells_of_writes_the_loop_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "STORE_POLL", 0.01)
    monkeypatch.setattr(TinyJobStore, "watch", lambda self: None)
    await ticks_after_a_write(tmp_path / "state")


async def test_a_writer_that_died_without_a_word_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "STORE_LOOK", 0.01)
    monkeypatch.setattr(loop.Loop, "_hear", lambda self, watch: watch.take())
    await ticks_after_a_write(tmp_path / "state")


class Slow(TinyJobStore):
    """One whose house is kept until it is let go."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.begun, self.let_go, self.kept = Event(), Event(), 0

    def keep_house(self, now: datetime) -> None:
        self.begun.set()
        assert self.let_go.wait(20)
        self.kept += 1


async def test_house_that_is_kept_when_the_loop_ends_is_kept_to_the_end_and_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop, "HOUSEKEEPING", 0.01)
    store, ticks, stop = Slow(tmp_path / "state"), Ticks(), asyncio.Event()
    running = asyncio.create_task(
        loop.Loop(cast("Scheduler", ticks), store, SchedulerSettings(), FakeClock(), Waker()).run(stop)
    )
    await asyncio.to_thread(store.begun.wait, 20)
    stop.set()
    await asyncio.sleep(0.1)
    assert not running.done()
    store.let_go.set()
    await asyncio.wait_for(running, 20)
    assert store.kept == 1
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    store.close()


async def test_what_fails_in_keeping_house_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop, "HOUSEKEEPING", 0.01)
    failed = Event()

    def fail(self: TinyJobStore, now: datetime) -> None:
        failed.set()
        raise ZeroDivisionError

    monkeypatch.setattr(TinyJobStore, "keep_house", fail)
    store, ticks, stop = TinyJobStore(tmp_path / "state"), Ticks(), asyncio.Event()
    running = asyncio.create_task(
        loop.Loop(cast("Scheduler", ticks), store, SchedulerSettings(), FakeClock(), Waker()).run(stop)
    )
    await asyncio.to_thread(failed.wait, 20)
    stop.set()
    await asyncio.wait_for(running, 20)
    assert "housekeeping failed" in caplog.text
    store.close()
