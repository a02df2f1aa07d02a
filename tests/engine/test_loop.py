"""The loop ticks at once after a write, and goes on after a fault."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event
from typing import cast

import pytest
from msgspec.structs import replace

from gputui.domain.settings import SchedulerSettings
from gputui.engine import loop
from gputui.engine.loop import Faults, SchedulingFailedError, Waker
from gputui.engine.tick.scheduler import Scheduler
from gputui.store import TinyJobStore
from tests.cases import cases
from tests.factories import ACTOR, NOW, FakeClock, job


class Ticks:
    """Scheduler that only reports its ticks."""

    def __init__(self) -> None:
        self.wake_at = NOW
        self._loop = asyncio.get_running_loop()
        self._ticked = asyncio.Event()

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def tick(self, now: object) -> None:
        self._loop.call_soon_threadsafe(self._ticked.set)

    async def next(self, patience: float = 60) -> None:
        await asyncio.wait_for(self._ticked.wait(), patience)
        self._ticked.clear()


async def test_a_write_wakes_the_loop(tmp_path: Path) -> None:
    store, ticks, stop = TinyJobStore(tmp_path / "state"), Ticks(), asyncio.Event()
    settings = SchedulerSettings(tick_interval=timedelta(hours=1), reconcile_interval=timedelta(hours=1))
    looped = loop.Loop(cast("Scheduler", ticks), store, settings, FakeClock(), Waker())
    running = asyncio.create_task(looped.run(stop))
    await ticks.next()
    with pytest.raises(TimeoutError):
        await ticks.next(0.1)
    await asyncio.to_thread(store.submit, [job()], actor=ACTOR)
    await ticks.next()
    with pytest.raises(TimeoutError):
        await ticks.next(0.1)
    with store.transaction() as transaction:
        transaction.put(replace(store.jobs()[1], held=True))
    await ticks.next()
    stop.set()
    await running
    store.close()


class Slow(TinyJobStore):
    """Store whose maintenance blocks until it is released."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.begun, self.let_go, self.kept = Event(), Event(), 0

    def maintain(self, now: datetime) -> None:
        self.begun.set()
        assert self.let_go.wait(60)
        self.kept += 1


PARTS = {"_dispatch": "a tick", "_keep_time": "the timer", "tick": "a tick"}


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restart failed tasks without a pause."""
    monkeypatch.setattr(loop, "AGAIN_AFTER", 0.0)
    monkeypatch.setattr(loop, "MAINTENANCE_INTERVAL", 0.01)


class Supervised:
    """Loop of which one task fails the first times."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, part: str, times: float) -> None:
        self.directory = directory
        self.left, self.told, self.stop = times, list[str](), asyncio.Event()
        self.is_told = asyncio.Event()
        self.store, self.ticks, self.waker = TinyJobStore(directory), Ticks(), Waker()
        self.faults = Faults()
        settings = SchedulerSettings(tick_interval=timedelta(seconds=0.05))
        self.loop = loop.Loop(
            cast("Scheduler", self.ticks),
            self.store,
            settings,
            FakeClock(),
            self.waker,
            faults=self.faults,
            told=self.tell,
        )
        whole = getattr(self.loop, part)
        monkeypatch.setattr(loop.Loop, part, self.broken if part in ("tick", "_tick_due") else self.broken_part)
        self.whole = whole

    def tell(self) -> None:
        self.told += [notice.text for notice in self.faults.notices]
        self.is_told.set()

    def fail(self) -> None:
        self.left -= 1
        if self.left >= 0:
            raise KeyError("oh")

    async def broken_part(self) -> None:
        self.fail()
        await self.whole()

    def broken(self, *words: object) -> object:
        self.fail()
        return self.whole(*words)

    async def goes_on(self) -> None:
        """Check that a write causes a tick, and so does the interval."""
        for _ in range(3):
            await self.ticks.next()
        self.store.submit([job()], actor=ACTOR)
        await self.ticks.next()

    def close(self) -> None:
        self.store.close()


@pytest.mark.usefixtures("at_once")
@cases("part", PARTS)
async def test_a_task_that_fails_once_is_restarted_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    caplog.clear()
    there = Supervised(tmp_path / "state", monkeypatch, part, times=1)
    running = asyncio.create_task(there.loop.run(there.stop))
    await there.goes_on()
    there.stop.set()
    await asyncio.wait_for(running, 60)
    told = f"the scheduler failed in {PARTS[part]} and continues: KeyError: 'oh'; "
    assert there.told == [f"{told}gputui.log in the state directory has the details"]
    assert f"the scheduler failed in {PARTS[part]}" in caplog.text
    assert "Traceback" in caplog.text
    there.close()


@pytest.mark.usefixtures("at_once")
@cases("part", PARTS)
async def test_a_task_that_always_fails_ends_scheduling_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    there = Supervised(tmp_path / "state", monkeypatch, part, times=float("inf"))
    with pytest.raises(
        SchedulingFailedError, match=rf"failed 5 times within a minute, the last time in {PARTS[part]} by KeyError"
    ):
        await asyncio.wait_for(there.loop.run(there.stop), 60)
    there.close()


@pytest.mark.usefixtures("at_once")
async def test_a_failed_timer_job_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = Supervised(tmp_path / "state", monkeypatch, "_tick_due", times=1)
    running = asyncio.create_task(there.loop.run(there.stop))
    await there.goes_on()
    there.stop.set()
    await asyncio.wait_for(running, 60)
    assert len(there.told) == 1
    there.close()


async def test_maintenance_is_completed_when_the_loop_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop, "MAINTENANCE_INTERVAL", 0.01)
    store, ticks, stop = Slow(tmp_path / "state"), Ticks(), asyncio.Event()
    running = asyncio.create_task(
        loop.Loop(cast("Scheduler", ticks), store, SchedulerSettings(), FakeClock(), Waker()).run(stop)
    )
    await asyncio.to_thread(store.begun.wait, 60)
    stop.set()
    await asyncio.sleep(0.1)
    assert not running.done()
    store.let_go.set()
    await asyncio.wait_for(running, 60)
    assert store.kept == 1
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    store.close()


async def test_failed_maintenance_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop, "MAINTENANCE_INTERVAL", 0.01)
    failed = Event()

    def fail(self: TinyJobStore, now: datetime) -> None:
        failed.set()
        raise ZeroDivisionError

    monkeypatch.setattr(TinyJobStore, "maintain", fail)
    store, ticks, stop = TinyJobStore(tmp_path / "state"), Ticks(), asyncio.Event()
    running = asyncio.create_task(
        loop.Loop(cast("Scheduler", ticks), store, SchedulerSettings(), FakeClock(), Waker()).run(stop)
    )
    await asyncio.to_thread(failed.wait, 60)
    stop.set()
    await asyncio.wait_for(running, 60)
    assert "maintenance failed" in caplog.text
    store.close()


async def test_a_timer_that_ends_while_its_jobs_are_due_fails_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop, "MAINTENANCE_INTERVAL", 0.001)
    maintained, stop, here = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()
    monkeypatch.setattr(TinyJobStore, "maintain", lambda self, now: here.call_soon_threadsafe(maintained.set))
    store = TinyJobStore(tmp_path / "state")
    running = asyncio.create_task(
        loop.Loop(cast("Scheduler", Ticks()), store, SchedulerSettings(), FakeClock(), Waker()).run(stop)
    )
    await maintained.wait()
    stop.set()
    while not running.done():
        time.sleep(0.002)  # noqa: ASYNC251 - as on a loaded machine: a job falls due in each round of the event loop
        await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    store.close()
