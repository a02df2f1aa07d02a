"""Days of a server in seconds: the real scheduler, store and actions on a clock that jumps between events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from gputui.domain.container import ContainerState
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.settings import Settings
from gputui.domain.state import JobState
from tests.engine.world import World
from tests.factories import NOW

LOOKS = 6
"""Maximum number of passes of the scheduler at one event."""
PAUSE = 0.001
"""Seconds between two passes."""
SPARE = 1e-6
"""Seconds of tolerance for rounding errors in sums of times."""


@dataclass
class VirtualServer:
    """Server whose jobs run for their stated times. Times are seconds since it began."""

    directory: Path
    gpus: int = 8
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        self.world = World(self.directory, gpus=self.gpus, settings=self.settings)
        self.actions = self.world.actions
        self.started: dict[JobId, float] = {}
        """Time at which the first attempt of each job began."""
        self.ended: dict[JobId, float] = {}
        self.expected: dict[JobId, float] = {}
        """The first expected start that each job was told."""
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        self._work: dict[JobId, float] = {}
        self._seen: set[str] = set()
        self._found: object = None
        """Actions of the scheduler as of its last pass."""

    @property
    def now(self) -> float:
        return (self.world.clock.now() - NOW).total_seconds()

    def at(self, seconds: float, act: Callable[[], object]) -> None:
        """Schedule a call at that time."""
        self._count += 1
        heappush(self._events, (seconds, self._count, act))

    def submit(self, work: float, gpus: int | tuple[int, int] = 1, limit: float | None = None, **spec: Any) -> JobId:
        """Submit a job that needs that many seconds of work, over all its attempts."""
        limits = {} if limit is None else {"time_limit": timedelta(seconds=limit)}
        job_id = self.world.submit(gpus, **{"name": f"job {len(self._work)}", **limits, **spec})  # type: ignore[arg-type]
        self._work[job_id] = work
        return job_id

    def job(self, job_id: JobId) -> Job:
        return self.world.job(job_id)

    def run(self, until: float = float("inf"), done: Callable[[], bool] = lambda: False) -> None:
        """Process events until none is left, that time has come or the condition holds."""
        while self._events and self._events[0][0] <= until and not done():
            at = max(self._events[0][0], self.now)
            self.world.clock.advance(at - self.now)
            while self._events and self._events[0][0] <= at + SPARE:
                heappop(self._events)[2]()
            self._look()

    def _look(self) -> None:
        """Run ticks until the scheduler finds nothing more to do."""
        world = self.world
        for _ in range(LOOKS):
            world.tick(seconds=PAUSE)
            self._watch()
            if (found := (world.store.version(), len(world.docker.started))) == self._found:
                break
            self._found = found
        for job_id, at in world.snapshots[-1].expected_starts.items():
            self.expected.setdefault(job_id, (at - NOW).total_seconds())
        del world.snapshots[:-1]

    def _watch(self) -> None:
        """Schedule the ends of the containers that have begun."""
        for name, record in self.world.docker.made.items():
            if name in self._seen or record.state is not ContainerState.RUNNING or record.job_id is None:
                continue
            self._seen.add(name)
            job = self.world.job(record.job_id)
            self.started.setdefault(job.id, self.now)
            self._foresee(name, job)

    def _foresee(self, name: str, job: Job) -> None:
        began, work, limit = self.now, self._work[job.id], job.spec.time_limit

        def end() -> None:
            record = self.world.docker.made.get(name)
            if record is not None and record.state is ContainerState.RUNNING:
                self.world.docker.exit(name, 0)
                self._work[job.id], self.ended[job.id] = 0.0, self.now

        def overrun() -> None:
            self._work[job.id] = max(0.0, work - (self.now - began))
            self.at(self.now, self._wake_after_back_off(job.id, len(job.attempts)))

        if limit is None or work <= limit.total_seconds():
            self.at(began + work, end)
        else:
            self.at(began + limit.total_seconds() + 1, overrun)

    def _wake_after_back_off(self, job_id: JobId, attempts: int) -> Callable[[], None]:
        """Return an act that looks, once the attempt is over, when the job may be tried again."""

        def look() -> None:
            job = self.world.job(job_id)
            if job.state is JobState.PENDING and job.not_before is not None:
                self.at((job.not_before - NOW).total_seconds() + PAUSE, lambda: None)
            elif job.state.is_active and len(job.attempts) == attempts:
                self.at(self.now + PAUSE, look)

        return look
