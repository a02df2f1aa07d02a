"""Metrics of a cluster, served without a screen. Nothing is scheduled: the engine does."""

from __future__ import annotations

import asyncio
import signal
from contextlib import closing
from typing import TYPE_CHECKING

from gputui import bootstrap
from gputui.bootstrap import clusters
from gputui.console.serving import say
from gputui.engine.feed import Feed

if TYPE_CHECKING:
    from gputui.config import Options
    from gputui.domain.snapshot import Snapshot
    from gputui.metrics.exporter import Exporter


class ClusterExporter:
    """Exporter of the snapshots of a cluster, opened with the first one: what is in that one is not counted as new."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.exporter: Exporter | None = None

    def publish(self, snapshot: Snapshot) -> None:
        """Count the changes of the snapshot, and serve it."""
        from gputui.metrics.exporter import Exporter

        if not snapshot.is_of_cluster:  # it has not answered yet
            return
        if self.exporter is None:
            self.exporter = Exporter(self._options.settings, self._options.state, snapshot.jobs, said=say)
        self.exporter.published(snapshot)
        if snapshot.leader is not None and not snapshot.leader.silent_for:
            self.exporter.answered()

    def close(self) -> None:
        """Close the port."""
        if self.exporter is not None:
            self.exporter.close()


def serve_metrics(options: Options) -> int:
    """Serve the metrics of the cluster that the settings name, until SIGTERM or SIGINT."""
    with closing(bootstrap.open_store(options)) as store, closing(ClusterExporter(options)) as exporter:
        feed = Feed()
        feed.subscribe(exporter.publish)
        poll = clusters.make_poll(options, store, feed)

        async def run() -> None:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, poll.stop)
            loop.add_signal_handler(signal.SIGHUP, lambda: None)
            await poll.run()

        say(f"metrics of {clusters.name(store)}; Ctrl-C ends it")
        asyncio.run(run())
    return 0
