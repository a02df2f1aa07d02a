"""Busy server behind a console: real scheduler and store, simulated GPUs, changing containers."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gputui.domain.job import BootTime
from gputui.domain.job_spec import JobId
from gputui.domain.settings import PolicySettings, Settings, StoreSettings
from gputui.domain.snapshot import Leader
from gputui.engine.actions.actions import Actions
from gputui.engine.feed import Feed
from gputui.engine.host import Adapters, Host
from gputui.gpus.simulated import SimulatedProbe
from gputui.ports.backend import LogRequest
from gputui.store import TinyJobStore
from tests.engine.fakes import FakeRuntime
from tests.factories import ACTOR, job
from tests.tui.sample import NAMES

GPUS, JOBS, LINES_PER_SECOND = 64, 10_000, 2000
KEPT = 100
"""Number of finished jobs that stay in the queue: soon reached, so that it does not grow during the test."""
_BEAT = 0.01
_WHOLE = 50_000
"""Number of lines of a whole log, of which some were written before it was opened."""
_WIDTHS = (1, 1, 1, 1, 2, 2, 4, 8, 8, 16)
_LINE = b"\x1b[32mstep %d\x1b[0m loss=%.3f \xe8\xae\xad\xe7\xbb\x83 lr=3e-4 tokens/s=%d\r"


class RealClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def boot_time(self) -> BootTime:
        return BootTime("boot", time.monotonic())


class Flood:
    """Output of one job: a given number of lines per second until it is closed, each with its time."""

    def __init__(self, tail: int | None, *, follow: bool) -> None:
        self._next = _written() - min(tail if tail is not None else _WHOLE, _WHOLE)
        self._follow = follow
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        end = _written()
        while not self._closed.is_set():
            for number in range(self._next, end):
                yield _line(number)
            if not self._follow:
                return
            self._next = end
            self._closed.wait(_BEAT)
            end = _written()

    def close(self) -> None:
        self._closed.set()


def _written() -> int:
    """Return how many lines a job has written by now."""
    return int(time.monotonic() * LINES_PER_SECOND)


def _line(number: int) -> bytes:
    return b"RuntimeError: CUDA error" if number % 997 == 0 else _LINE % (number, 1 / number, number * 7)


class Floods:
    """Logs of jobs that all print a flood of lines."""

    def log(self, job_id: JobId, request: LogRequest) -> Flood:
        del job_id
        return Flood(request.tail, follow=request.follow)


class BusyServer:
    """Ten thousand jobs on sixty-four GPUs, one seed."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = RealClock()
        self.settings = Settings(policy=PolicySettings(), store=StoreSettings(keep_finished=KEPT))
        self.store = TinyJobStore(directory / "state", self.settings.store)
        self.actions = Actions(self.store, self.clock, ACTOR)
        self.containers = FakeRuntime("docker", self.clock)
        self.feed = Feed()
        self.host = Host(
            store=self.store,
            adapters=self._adapters,
            settings=self.settings,
            clock=self.clock,
            directory=directory / "state",
            me=Leader(1, "here", "alice", "console", self.clock.now()),
            feed=self.feed,
        )
        self.submit(JOBS)

    def _adapters(self) -> Adapters:
        process = FakeRuntime("process", self.clock)
        probe = SimulatedProbe(GPUS, clock=self.clock, store_id=self.store.store_id)
        return Adapters({"docker": self.containers, "process": process}, probe)

    def submit(self, count: int) -> None:
        """Store that many jobs, of all widths, some with hostile names, which an older version has let in."""
        chosen, now = self.random, self.clock.now()
        names = (*NAMES, *(f"train-{n}" for n in range(40)))
        jobs = [
            job(
                gpus=chosen.choice(_WIDTHS),
                name=chosen.choice(names),
                tenant=chosen.choice(("alice", "bob", "carol", "dan", "eve")),
                priority=chosen.randrange(101),
                time_limit=timedelta(minutes=chosen.randrange(10, 600)),
                retries=chosen.choice((0, 0, 2)),
            )
            for _ in range(count)
        ]
        self.store.submit([each.evolve(submitted_at=now) for each in jobs], actor=ACTOR)

    async def live(self, turn: float = 0.5) -> None:
        """End jobs, successfully or not, and submit others in their place, until cancelled."""
        while True:
            await asyncio.sleep(turn)
            running = self.containers.running()
            for record in self.random.sample(running, min(2, len(running))):
                self.containers.exit(record.id, self.random.choice((0, 0, 1, 137)))
            self.containers.forget_the_past()
            waiting = sum(not job.state.is_terminal for job in self.feed.latest.jobs)
            await asyncio.to_thread(self.submit, min(50, max(0, JOBS - waiting)))

    def close(self) -> None:
        self.store.close()
