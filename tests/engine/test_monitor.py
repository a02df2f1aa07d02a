"""Monitor of a term: it gets ticks, plans, writes and calls, and is closed with the term."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from gputui.bootstrap import SystemClock
from gputui.domain.arrays import Entries
from gputui.domain.errors import RuntimeFault, RuntimeUnavailableError
from gputui.domain.snapshot import Leader, Notice, Snapshot
from gputui.domain.state import JobState
from gputui.engine.feed import Feed
from gputui.engine.host import Adapters, Extras, Host, monitored
from gputui.ports.monitor import Monitors
from tests.engine.fakes import FakeProbe
from tests.engine.test_host import real
from tests.engine.world import World


class Heard(Monitors):
    """Monitor that records its calls."""

    def __init__(self) -> None:
        self.what: Counter[str] = Counter()
        self.more = threading.Condition()
        self.latest: Snapshot | None = None

    def _hear(self, what: str) -> None:
        with self.more:
            self.what[what] += 1
            self.more.notify_all()

    def published(self, snapshot: Snapshot) -> None:
        self.latest = snapshot
        self._hear("snapshot")

    def took(self, step: str, seconds: float) -> None:
        assert seconds >= 0
        self._hear(step)

    def wrote(self, seconds: float) -> None:
        assert seconds >= 0
        self._hear("write")

    def called(self, runtime: str, call: str, result: str, seconds: float) -> None:
        self._hear(f"{runtime} {call} {result}")

    def notices(self) -> tuple[Notice, ...]:
        return (Notice("warning", "no metrics are served"),)

    def close(self) -> None:
        self._hear("end")

    async def until(self, condition: Callable[[], bool]) -> None:
        def wait() -> bool:
            with self.more:
                return self.more.wait_for(condition, 60)

        assert await asyncio.to_thread(wait), self.what


async def test_a_monitor_records_a_term_and_ends_with_it(world: World) -> None:
    real(world)
    heard, feed = Heard(), Feed()
    waiting = world.submit(1)
    begun: list[Entries] = []

    def open_monitor(jobs: Entries) -> Heard:
        begun.append(jobs)
        return heard

    host = Host(
        store=world.store,
        adapters=lambda: Adapters({"docker": world.docker, "process": world.host}, FakeProbe(4, SystemClock())),
        settings=world.settings,
        clock=SystemClock(),
        directory=world.directory,
        me=Leader(1, "here", "root", "serve", datetime.now(UTC)),
        feed=feed,
        extras=Extras(open_monitor=open_monitor),
    )
    task = asyncio.create_task(host.run())
    await heard.until(lambda: heard.latest is not None and world.job(waiting).state is JobState.RUNNING)
    assert [list(jobs) for jobs in begun] == [[waiting]]
    assert {"tick", "plan", "docker create ok", "docker start ok", "docker containers ok"} <= heard.what.keys()
    assert any("no metrics" in notice.text for notice in feed.latest.notices)
    assert "end" not in heard.what
    host.stop()
    await asyncio.wait_for(task, 60)
    assert heard.what["end"] == 1


def test_calls_are_recorded_with_their_results(world: World) -> None:
    heard = Heard()
    runtime = monitored(world.docker, heard)
    assert runtime.containers() == ()
    world.docker.up = False
    with pytest.raises(RuntimeUnavailableError):
        runtime.containers()
    world.docker.up = True
    with pytest.raises(RuntimeFault):
        runtime.pull("missing", print, threading.Event())
    assert heard.what == {"docker containers ok": 1, "docker containers unavailable": 1, "docker pull error": 1}
    assert (runtime.name, runtime.status()) == (world.docker.name, world.docker.status())


async def test_scheduling_works_if_the_monitor_cannot_be_opened(world: World) -> None:
    real(world)
    waiting, feed = world.submit(1), Feed()

    def open_monitor(jobs: Entries) -> Heard:
        raise ImportError("no library")

    host = Host(
        store=world.store,
        adapters=lambda: Adapters({"docker": world.docker, "process": world.host}, FakeProbe(4, SystemClock())),
        settings=world.settings,
        clock=SystemClock(),
        directory=world.directory,
        me=Leader(1, "here", "root", "serve", datetime.now(UTC)),
        feed=feed,
        extras=Extras(open_monitor=open_monitor),
    )
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    def look(_: Snapshot) -> None:
        if world.job(waiting).state is JobState.RUNNING:
            loop.call_soon_threadsafe(started.set)

    feed.subscribe(look)
    task = asyncio.create_task(host.run())
    await asyncio.wait_for(started.wait(), 60)
    host.stop()
    await asyncio.wait_for(task, 60)
