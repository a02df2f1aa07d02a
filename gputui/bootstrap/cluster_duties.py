"""Duties for a cluster that one process of a machine has for all of its user."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gputui import bootstrap
from gputui.bootstrap.clusters import cluster_store
from gputui.config import Options

if TYPE_CHECKING:
    from gputui.domain.snapshot import Snapshot
    from gputui.engine.cluster.duties import Duty, SharedDuty
    from gputui.engine.cluster.hooks import ClusterHooks
    from gputui.engine.cluster.measurements import ClusterTelemetry
    from gputui.engine.hooks.announcer import RecordEnds
    from gputui.engine.hooks.weekly import WeeklyReport
    from gputui.ports import JobStore, Monitor


def shared_duty(
    store: JobStore, name: str, key: str, begin: Callable[[Snapshot], Duty], waits: Callable[[], object] = lambda: None
) -> SharedDuty:
    """Return a duty that one process has for all with the same key; see SharedDuty."""
    from gputui.engine.cluster.duties import SharedDuty, Turn

    directory = cluster_store(store).directory
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    turn = Turn(directory / f"{key}.duty")  # no `.lock`: journals beside it have locks of that name
    return SharedDuty(name, turn, begin, waits)


def hooks_duty(
    options: Options, store: JobStore, monitor: Monitor, waits: Callable[[], object] = lambda: None
) -> SharedDuty:
    """Return the duty of telling hooks; deliveries are reported to `monitor`."""
    return shared_duty(store, "hooks", "hooks", lambda _: _hooks(options, store, monitor), waits)


def _hooks(options: Options, store: JobStore, monitor: Monitor) -> ClusterHooks:
    from gputui.cluster.told_ends import ToldEnds
    from gputui.engine.cluster.hooks import ClusterHooks
    from gputui.engine.hooks.announcer import Announcer
    from gputui.engine.hooks.delivery import sinks
    from gputui.engine.process.host import DELIVERY_WORKERS
    from gputui.engine.tick.worker_pools import DaemonExecutor

    queue, settings = cluster_store(store), options.settings.hooks
    targets = tuple(sinks(settings, socket.gethostname()))

    def announcer(record: RecordEnds) -> Announcer:
        workers = partial(DaemonExecutor, DELIVERY_WORKERS)
        return Announcer(record, settings, targets, workers, monitor=monitor, weekly=_weekly(options, queue.directory))

    ledger, worker = ToldEnds(queue.directory), DaemonExecutor(1, "ends-of-jobs")
    ends_after = options.settings.scheduler.idle_gpus_end
    return ClusterHooks(
        queue.cluster, announcer, ledger, settings, bootstrap.clock(), worker, ends_idle_after=ends_after
    )


def _weekly(options: Options, directory: Path) -> WeeklyReport | None:
    from gputui.engine.hooks.weekly import made_report, weekly_of
    from gputui.engine.tick.worker_pools import DaemonExecutor

    there = replace(options, state=directory.parents[1])  # a console's own options have another one
    make, worker = partial(made_report, there.arguments()), DaemonExecutor(1, "weekly-report")
    return weekly_of(options.settings, directory, make, worker)


def telemetry_duty(options: Options, store: JobStore, waits: Callable[[], object] = lambda: None) -> SharedDuty:
    """Return the duty of measuring what jobs do with their GPUs, where nodes are read."""
    return shared_duty(store, "telemetry", "telemetry", lambda _: _telemetry(options, store), waits)


def _telemetry(options: Options, store: JobStore) -> ClusterTelemetry:
    from gputui.cluster.telemetry_records import TelemetryRecords
    from gputui.engine.cluster.idle_ends import IdleEnds
    from gputui.engine.cluster.measurements import DIRECTORY, ClusterTelemetry
    from gputui.engine.files.log_retention import LogSweeper
    from gputui.engine.tick.worker_pools import DaemonExecutor

    queue, worker, settings = cluster_store(store), DaemonExecutor(1, "telemetry"), options.settings
    records, directory, clock = TelemetryRecords(queue.directory), queue.directory, bootstrap.clock()
    sweep = LogSweeper(directory / DIRECTORY, settings.store, queue).step
    ends = IdleEnds(queue.cluster, records, settings.scheduler.idle_gpus_end, clock, DaemonExecutor(1, "idle-jobs"))
    return ClusterTelemetry(records, directory, settings.scheduler, clock, worker, sweep, ends)
