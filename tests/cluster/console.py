"""Console over a fake cluster."""

from __future__ import annotations

from itertools import count

from textual.pilot import Pilot

from gputui.domain.settings import Settings
from gputui.engine.cluster.backend import EngineBackend
from gputui.engine.cluster.queue import EngineQueue
from gputui.tui.actions import ExitChoice
from gputui.tui.app import PAGES, Gputui
from gputui.tui.services import Services
from tests.cluster.fake import FakeCluster
from tests.tui.console import Console


class ClusterConsole(Console):
    """Console whose queue belongs to a cluster; `refresh` shows the cluster as it is now."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        ticks = count(0, 10)
        self.queue = EngineQueue(cluster, lambda: float(next(ticks)))
        super().__init__(cluster.snapshot())
        backend = EngineBackend(self.queue, Settings(), user="alice")
        self.app = Gputui(self.feed, Services(backend, Settings(), self.clock, PAGES, preferences=self.preferences))
        self.app.animation_level = "none"
        self.app.input_queue.delay = 0

    def keep(self, jobs: object) -> None:
        """Store nothing: the cluster has the jobs."""

    async def refresh(self, pilot: Pilot[ExitChoice]) -> None:
        """Show the cluster as it is now."""
        await self.show(pilot, self.cluster.snapshot())
