"""A busy day: the real scheduler over simulated GPUs and jobs of seconds, with a clock that is turned."""

from __future__ import annotations

import random
from pathlib import Path

from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.gpus.simulated import SimulatedProbe
from tests.engine.world import World


class Day:
    """Eight GPUs, and jobs of 5 to 20 seconds, a third of which fail."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._chosen = random.Random(seed)
        self.world = World(directory)
        self.world.probe = SimulatedProbe(8, clock=self.world.clock)  # type: ignore[assignment]
        self.world.reborn()
        self._lasts: dict[JobId, float] = {}

    @property
    def is_busy(self) -> bool:
        """Return whether a job runs or waits."""
        return any(not job.state.is_terminal for job in self.world.store.jobs().values())

    def submit(self, number: int) -> None:
        for _ in range(number):
            job_id = self.world.submit(1, image=None, name=f"train-{len(self._lasts) + 1}")
            self._lasts[job_id] = self._chosen.uniform(5, 20)

    def second(self, waiting: int = 0) -> Snapshot:
        """Let a second pass, and keep at least that many jobs waiting."""
        now = self.world.clock.now()
        jobs = self.world.store.jobs().values()
        for job in jobs:
            began = job.started_at if job.state is JobState.RUNNING else None
            if began is not None and (now - began).total_seconds() >= self._lasts[job.id]:
                self.world.exit(job.id, 3 * (job.id % 3 == 0))
        self.submit(waiting - sum(job.state is JobState.PENDING for job in jobs))
        return self.world.tick()
