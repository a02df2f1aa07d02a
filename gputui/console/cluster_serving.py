"""Services of a process over a cluster for others: metrics, hooks. Nothing is scheduled: the engine does that."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gputui.bootstrap import clusters, nodes
from gputui.console.serving import say
from gputui.domain.snapshot import Notice
from gputui.engine.feed import Feed
from gputui.ports.monitor import NoMonitor

if TYPE_CHECKING:
    from gputui.config import Options
    from gputui.domain.snapshot import Snapshot
    from gputui.engine.cluster.poll import Duty
    from gputui.engine.cluster.queue import EngineQueue
    from gputui.metrics.exporter import Exporter

Say = Callable[[str], object]


class Deliveries(NoMonitor):
    """Monitor of the hooks of this process, for as long as it serves metrics too."""

    def __init__(self) -> None:
        self.exporter: Exporter | None = None

    def delivered(self, hook: str, result: str) -> None:
        """Count a delivery."""
        if self.exporter is not None:
            self.exporter.delivered(hook, result)


class MetricsDuty:
    """Exporter of the snapshots of a cluster; what is in the first one is not counted as new."""

    def __init__(self, options: Options, snapshot: Snapshot, said: Say, deliveries: Deliveries) -> None:
        from gputui.metrics.exporter import Exporter

        metrics = replace(options.settings.metrics, hpc_job_mapping_dir=None)  # indices of which node?
        settings = replace(options.settings, metrics=metrics)
        self._listen = metrics.listen
        self._deliveries = deliveries
        self._exporter = deliveries.exporter = Exporter(settings, options.state, snapshot.jobs, said=said)

    def update(self, snapshot: Snapshot) -> None:
        """Count the changes of the snapshot, and serve it."""
        self._exporter.published(snapshot)
        if snapshot.leader is not None and not snapshot.leader.silent_for:
            self._exporter.answered()

    def notices(self) -> tuple[Notice, ...]:
        """Return why nothing is served. That another user's process serves the metrics is no problem."""
        if self._exporter.is_port_taken:
            text = f"metrics: {self._listen} is in use, perhaps by gputui of another user; it is tried again"
            return (Notice("information", text),)
        return self._exporter.notices()

    def close(self) -> None:
        """Close the port."""
        self._deliveries.exporter = None
        self._exporter.close()


def duties(options: Options, queue: EngineQueue, said: Say = lambda _: None) -> Iterator[Duty]:
    """Yield the duties of a process over a cluster; `said` is called with sentences about them."""
    deliveries = Deliveries()
    if options.settings.metrics.enabled:
        port = re.sub(r"[^\w.:-]", "_", options.settings.metrics.listen)
        key = f"metrics-{port}@{socket.gethostname()}"
        begin = partial(_metrics, options, said, deliveries)
        yield clusters.shared_duty(queue, "metrics", key, begin, lambda: said(_WAITS.format("serves the metrics")))
    if nodes.is_wanted(options):
        said_waits = _WAITS.format("measures what jobs do with their GPUs")
        yield clusters.telemetry_duty(options, queue, lambda: said(said_waits))
    if options.settings.hooks.has_receivers:
        yield clusters.hooks_duty(options, queue, deliveries, lambda: said(_WAITS.format("runs the hooks")))


_WAITS = "another process of yours {}; this one takes over when it ends"


def _metrics(options: Options, said: Say, deliveries: Deliveries, first: Snapshot) -> MetricsDuty:
    return MetricsDuty(options, first, said, deliveries)


def serve(options: Options) -> int:
    """Do the duties of the cluster that the settings name, until SIGTERM or SIGINT."""
    with closing(clusters.open_backend(options)) as backend:
        poll = clusters.make_poll(options, backend.queue, Feed(), tuple(duties(options, backend.queue, say)))

        async def run() -> None:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, poll.stop)
            loop.add_signal_handler(signal.SIGHUP, lambda: None)
            await poll.run()

        say(f"{' and '.join(_served(options))} of {backend.about().host}; Ctrl-C ends it")
        asyncio.run(run())
    return 0


def _served(options: Options) -> Iterator[str]:
    """Yield what a process without a screen does."""
    if options.settings.metrics.enabled:
        yield "metrics"
    if options.settings.hooks.has_receivers:
        yield "hooks"
    if nodes.is_wanted(options):
        yield "telemetry"


def has_duties(options: Options) -> bool:
    """Return whether there is something to do for a process without a screen."""
    return any(_served(options))
