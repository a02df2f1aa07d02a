"""Construction of the process that schedules, and of the demo's adapters."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from gputui import bootstrap
from gputui.bootstrap import adapters
from gputui.config import Options
from gputui.domain.snapshot import Leader

if TYPE_CHECKING:
    from gputui.domain.entries import Entries
    from gputui.domain.gpu_history import TakenStep
    from gputui.engine.feed import Feed
    from gputui.engine.process.host import Adapters, Host
    from gputui.engine.process.relay import Relay
    from gputui.ports import GpuProbe, JobStore, Monitor


def make_host(
    options: Options,
    store: JobStore,
    feed: Feed,
    kind: str,
    *,
    may_lead: bool = True,
    started: Callable[[], GpuProbe | None] = lambda: None,
    made: Callable[[], Adapters] | None = None,
    hand_over: Callable[[], object] | None = None,
    open_monitor: Callable[[Entries], Monitor] | None = None,
) -> Host:
    """Return the host that feeds snapshots to this process (`kind`: console or serve); it makes adapters when it leads.

    `started` may return a probe that already reads; `made` returns other adapters than the options name. `hand_over`
    starts a background scheduler when scheduling keeps failing here. `open_monitor` opens the monitor of a term.
    """
    from gputui.engine.hooks.weekly import made_report
    from gputui.engine.process.host import Extras, Host

    return Host(
        store=store,
        adapters=made or partial(_adapters, options, store.store_id, started),
        settings=options.settings,
        clock=bootstrap.clock(),
        directory=options.state,
        me=_this_process(kind),
        feed=feed,
        may_lead=may_lead and (kind != "console" or not options.settings.console.read_only),
        extras=Extras(hand_over, relay_of(options), open_monitor, partial(made_report, options.arguments())),
    )


def _adapters(options: Options, store_id: str, started: Callable[[], GpuProbe | None]) -> Adapters:
    from gputui.engine.process.host import Adapters

    runtimes = adapters.make_runtimes(options, store_id)
    probe = started() or adapters.make_probe(options, store_id)
    return Adapters({runtime.name: runtime for runtime in runtimes}, probe)


def _this_process(kind: str) -> Leader:
    import socket

    return Leader(
        os.getpid(), socket.gethostname(), bootstrap.actor().user, kind, bootstrap.clock().now(), uid=os.geteuid()
    )


def relay_of(options: Options) -> Relay:
    """Return the relay into jobs of the state directory, not opened."""
    from gputui.engine.process.relay import Relay

    return Relay(options.state, [sys.executable, "-P", "-m", "gputui.console.relay", *options.arguments()])


def demo_adapters(options: Options, store_id: str) -> Adapters:
    """Return the simulated GPUs and the runtime of the demo."""
    from gputui.engine.process.host import Adapters
    from gputui.gpus.simulated import furnish
    from gputui.runtime.process.runtime import DemoRuntime

    probe = adapters.simulated_probe(options, store_id)
    others = furnish(probe)
    runtime = DemoRuntime(store_id, options.state, options.settings.runtime, bootstrap.clock(), others)
    return Adapters({runtime.name: runtime}, probe)


def demo_past(options: Options, store: JobStore, since: datetime) -> list[TakenStep]:
    """Return readings since then in which the jobs that have ended ran. Takes half a second."""
    from gputui.gpus.simulated import furnish, readings_of_past

    probe = adapters.simulated_probe(options, store.store_id)
    furnish(probe)
    ended = [job for job in store.jobs().values() if job.ended_at is not None]
    return list(readings_of_past(probe, ended, since, bootstrap.clock().now()))
