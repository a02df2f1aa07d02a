"""Scheduling without a screen and the hand-over to it, and what a process does for others: metrics, traces, hooks.

Over a cluster nothing is scheduled: the engine does that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gputui import bootstrap
from gputui.bootstrap import hosting
from gputui.bootstrap.door import ServiceManager, keep_inherited, passed_listener
from gputui.config import Options
from gputui.console.own_log import log_to_file, own_log_path
from gputui.domain.errors import NotLeaderError, install_line
from gputui.domain.snapshot import Notice, Snapshot
from gputui.domain.text import format_duration, plain
from gputui.engine.feed import Feed
from gputui.engine.files import new_file
from gputui.engine.leadership import Leadership, current_leader
from gputui.engine.loop import SchedulingFailedError
from gputui.ports import JobStore
from gputui.ports.monitor import Monitors

if TYPE_CHECKING:
    from gputui.bootstrap.door import MakeCommands
    from gputui.domain.arrays import Entries
    from gputui.engine.cluster.poll import Duty
    from gputui.engine.cluster.queue import EngineQueue
    from gputui.metrics.exporter import Exporter
    from gputui.ports import Monitor

log = logging.getLogger(__name__)
Say = Callable[[str], object]
ANEW_AFTER = 2.0
"""Seconds before a failed scheduler restarts, so that another console can take over."""
BEAT_EVERY = 1.0
"""Seconds between two signs of life to systemd of a process that waits to schedule."""
WAIT_ANEW = 10**7
"""Seconds for which it then waits for another scheduler to end; practically for ever."""
HAND_OVER_WAIT = 60
"""Seconds for which the background scheduler tries to take over from the process that started it."""
YIELD_WITHIN = 20.0
"""Seconds within which a background scheduler yields to a service."""
_WAITS = "another process of yours {}; this one takes over when it ends"
_HOW = install_line(["gputui[otel]"], sys.prefix, has_pip=find_spec("pip") is not None)
_NO_TRACES = f"no traces are sent: OpenTelemetry is not installed: {_HOW}"


def monitor_opener(options: Options, store_id: str, said: Say = lambda _: None) -> Callable[[Entries], Monitor] | None:
    """Return the factory of a term's monitor; None, without further imports, if none is switched on.

    `said` is called with sentences about the port.
    """
    settings = options.settings
    if not settings.metrics.enabled and not settings.traces.enabled:
        return None

    def open_exporter(jobs: Entries) -> Monitor:
        from gputui.metrics.exporter import Exporter

        return Exporter(settings, options.state, jobs.values(), store_id=store_id, said=said)

    def open_tracer(jobs: Entries) -> Monitor:
        try:
            from gputui.tracing import JobTracer
        except ImportError as error:
            log.error("no traces are sent: %s", error)
            said(_NO_TRACES)
            return _NoTracer()
        return JobTracer(settings.traces, jobs.values(), store_id, socket.gethostname())

    if not settings.traces.enabled:
        return open_exporter
    if not settings.metrics.enabled:
        return open_tracer
    return lambda jobs: Monitors.of(open_exporter(jobs), open_tracer(jobs))


class _NoTracer(Monitors):
    """Monitor that reports the missing package."""

    def notices(self) -> tuple[Notice, ...]:
        return (Notice("warning", _NO_TRACES, short="no traces"),)


def serve(
    options: Options, wait: float, *, stands_in: bool = False, passed: str = "", commands: MakeCommands | None = None
) -> int:
    """Schedule until SIGTERM or SIGINT; a terminal that closes does not end it. `passed`: socket of the owner before.

    One that stands in for a console also ends when a service waits to schedule, or nothing is left to do.
    """
    store = bootstrap.open_store(options)
    if not stands_in and (leader := current_leader(options.state)) is not None and leader.stands_in:
        wait = max(wait, YIELD_WITHIN)
    try:
        log_to_file(options.state, options.settings.log.format)
        where = f"state in {options.state}, log in {own_log_path(options.state)}"
        say(f"{where}; Ctrl-C ends it, jobs keep running")
        if not asyncio.run(_serve(options, store, wait, stands_in=stands_in, passed=passed, commands=commands)):
            leader = current_leader(options.state)
            who = f"{leader.kind} of {leader.user}, pid {leader.pid}" if leader else "another process"
            silence = leader.silent_for if leader else None
            does = f"has not responded for {format_duration(silence)}, and holds the lock" if silence else "schedules"
            hint = "end it, or use --wait to queue up behind it" if silence else "use --wait to queue up behind it"
            raise NotLeaderError(f"{who}, {does} in {options.state} already", hint=hint)
    except SchedulingFailedError as error:
        say(f"{plain(str(error))}; starting again")
        store.close()
        # a new `gputui serve` with the same pid, which waits while a console schedules
        time.sleep(ANEW_AFTER)
        keep_inherited()
        command = _stand_in(options) if stands_in else _command(options, f"{WAIT_ANEW}s", *options.serve_arguments)
        os.execv(command[0], command)  # noqa: S606 - this Python, and our own module
    finally:
        store.close()
    return 0


def say(sentence: str) -> None:
    """Print on stderr; ignores errors of stderr, such as a full disk, which must not stop the scheduler."""
    with contextlib.suppress(OSError, ValueError):
        print(f"gputui serve: {sentence}", file=sys.stderr, flush=True)


def _command(options: Options, wait: str, *arguments: str) -> list[str]:
    return [*options.program(), "serve", "--wait", wait, *arguments]


def _stand_in(options: Options, passed: str = "") -> list[str]:
    """Return the command of a scheduler that takes over from a console, and its socket."""
    listener = [f"--listener={passed}"] if passed else []
    return _command(options, f"{HAND_OVER_WAIT}s", "--stand-in", *listener)


async def _serve(
    options: Options, store: JobStore, wait: float, *, stands_in: bool, passed: str, commands: MakeCommands | None
) -> bool:
    monitor = monitor_opener(options, store.store_id, say)
    manager = ServiceManager()
    host = hosting.make_host(
        options,
        store,
        Feed(),
        "serve",
        open_monitor=monitor,
        stands_in=stands_in,
        passed=passed,
        beat=manager.beat,
        commands=commands,
    )
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        log.info("ended by %s", number.name)
        manager.stopping()
        host.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)

    async def beat_in_line() -> None:
        """Tell the service manager that the process lives, as long as it waits for another scheduler to end."""
        while True:
            await asyncio.sleep(BEAT_EVERY)
            if not host.leads:
                manager.beat()

    waiting = asyncio.create_task(beat_in_line())
    try:
        has_led = await host.lead(wait)
    finally:
        waiting.cancel()
    if host.has_run_dry and any(not job.state.is_terminal for job in store.jobs().values()):
        hand_over(options)  # a job was submitted in the moment of the end
    return has_led


def hand_over(options: Options) -> None:
    """Start a background scheduler that takes over as soon as this process stops scheduling, unless a service waits.

    It inherits the socket of this process, so that whoever connects in between waits for it.
    """
    if Leadership(options.state).is_awaited():
        return
    # its stderr is the only place for errors at its start
    errors = errors_file(options.state / "serve.err")
    passed, descriptors = passed_listener(options.state)
    try:
        subprocess.Popen(  # noqa: S603 - this Python, and our own module
            _stand_in(options, passed),
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            cwd="/",
            start_new_session=True,
        )
    finally:
        os.close(errors)


def errors_file(path: Path) -> int:
    """Open the file for writing; fall back to /dev/null, as on a full disk or for another user's file."""
    try:
        return new_file(path)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


class Deliveries(Monitors):
    """Monitor of the hooks of this process, for as long as it serves metrics too."""

    exporter: Exporter | None = None

    def delivered(self, hook: str, result: str) -> None:
        if self.exporter is not None:
            self.exporter.delivered(hook, result)


class MetricsDuty:
    """Exporter of the snapshots of a cluster; what is in the first one is not counted as new."""

    def __init__(self, options: Options, said: Say, deliveries: Deliveries, snapshot: Snapshot) -> None:
        from gputui.metrics.exporter import Exporter

        metrics = replace(options.settings.metrics, hpc_job_mapping_dir=None)  # indices of which node?
        settings = replace(options.settings, metrics=metrics)
        self._listen = metrics.listen
        self._deliveries = deliveries
        self._exporter = deliveries.exporter = Exporter(settings, options.state, snapshot.jobs, said=said)

    def update(self, snapshot: Snapshot) -> None:
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
        self._deliveries.exporter = None
        self._exporter.close()


def duties(options: Options, queue: EngineQueue, said: Say = lambda _: None) -> Iterator[Duty]:
    """Yield the duties of a process over a cluster; `said` is called with sentences about them."""
    from gputui.bootstrap import clusters

    deliveries = Deliveries()
    if options.settings.metrics.enabled:
        port = re.sub(r"[^\w.:-]", "_", options.settings.metrics.listen)
        key = f"metrics-{port}@{socket.gethostname()}"
        begin = partial(MetricsDuty, options, said, deliveries)
        yield clusters.shared_duty(queue, "metrics", key, begin, lambda: said(_WAITS.format("serves the metrics")))
    if clusters.is_wanted(options):
        said_waits = _WAITS.format("measures what jobs do with their GPUs")
        yield clusters.telemetry_duty(options, queue, lambda: said(said_waits))
    if options.settings.hooks.has_receivers:
        yield clusters.hooks_duty(options, queue, deliveries, lambda: said(_WAITS.format("runs the hooks")))


def serve_cluster(options: Options) -> int:
    """Do the duties of the cluster that the settings name, until SIGTERM or SIGINT."""
    from gputui.bootstrap import clusters

    with closing(clusters.open_backend(options)) as backend:
        poll = clusters.make_poll(options, backend.queue, Feed(), tuple(duties(options, backend.queue, say)))

        async def run() -> None:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, poll.stop)
            loop.add_signal_handler(signal.SIGHUP, lambda: None)
            await poll.run()

        say(f"{' and '.join(served(options))} of {backend.about().host}; Ctrl-C ends it")
        asyncio.run(run())
    return 0


def served(options: Options) -> Iterator[str]:
    """Yield what a process over a cluster without a screen does; nothing if it has nothing to do."""
    from gputui.bootstrap import clusters

    if options.settings.metrics.enabled:
        yield "metrics"
    if options.settings.hooks.has_receivers:
        yield "hooks"
    if clusters.is_wanted(options):
        yield "telemetry"
