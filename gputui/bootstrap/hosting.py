"""Construction of the process that schedules, and of the demo's adapters."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from msgspec import Struct
from msgspec.structs import replace

from gputui import __version__, bootstrap
from gputui.bootstrap import adapters
from gputui.bootstrap.backend import ConsoleBackend, open_foreign_use
from gputui.config import Options
from gputui.domain.access import Role, role_of
from gputui.domain.gpu import ProbeReading
from gputui.domain.snapshot import Leader

if TYPE_CHECKING:
    from gputui.api.rights import AccountNames
    from gputui.bootstrap.door import MakeCommands
    from gputui.domain.access import Caller
    from gputui.domain.arrays import Entries
    from gputui.domain.container import ExecRequest
    from gputui.domain.gpu_history import TakenStep
    from gputui.domain.job import Job
    from gputui.engine.actions.foreign_use import ForeignUse
    from gputui.engine.cluster.poll import Duty
    from gputui.engine.cluster.queue import EngineQueue
    from gputui.engine.feed import Feed
    from gputui.engine.host import Adapters, Host
    from gputui.engine.streams import Streams
    from gputui.ports import GpuProbe, JobStore, Monitor
    from gputui.ports.backend import About, DirectBackend
    from gputui.ports.machine import ForeignContainers, HostProcesses


class Behind(Protocol):
    """Source of snapshots behind the screen of a console: a scheduler's host, a cluster's poll, or several servers."""

    @property
    def leads(self) -> bool: ...

    def want_pcie(self, uuid: str | None) -> None:
        """Request PCIe throughput of this GPU only."""
        ...

    def stop(self) -> None: ...

    async def run(self) -> None: ...


def console_options(options: Options, own: Path, about: About) -> Options:
    """Return the options of a console. Where it has no queue of its own it keeps its log in the directory `own`.

    `about` is its queue: forecasts are made with its settings.
    """
    if bootstrap.has_own_queue(options):
        return options
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    if options.in_cluster:
        return replace(options, state=own)
    settings = replace(options.settings, scheduler=about.scheduler, policy=about.policy)
    return replace(options, state=own, asked=options.sockets, settings=settings)


def open_foreign(options: Options, backend: DirectBackend) -> ForeignUse | None:
    """Return actions on foreign processes and containers for a console; None for a cluster."""
    if not bootstrap.has_own_queue(options):
        return None
    is_read_only = options.settings.console.read_only
    return open_foreign_use(options, partial(store_of, backend), is_read_only=is_read_only)


def store_of(backend: DirectBackend) -> JobStore:
    return backend.store if isinstance(backend, ConsoleBackend) else cast("JobStore", backend.queue)


def make_behind(
    options: Options,
    backend: DirectBackend,
    feed: Feed,
    *,
    may_lead: bool,
    host: Callable[..., Host] | None = None,
    open_monitor: Callable[[str], Callable[[Entries], Monitor] | None] = lambda store_id: None,
    duties: Callable[[EngineQueue], Iterable[Duty]] = lambda queue: (),
) -> Behind:
    """Return the host of a console's scheduler, or the poll of a cluster, which does these duties if it may lead.

    `host` makes the first: `make_host`, perhaps with more arguments.
    """
    if options.in_cluster:
        from gputui.bootstrap import clusters  # its imports would delay consoles of one machine

        may = may_lead and not options.settings.console.read_only
        queue = clusters.queue_of(backend)
        return clusters.make_poll(options, queue, feed, tuple(duties(queue)) if may else ())
    if not bootstrap.may_open(options):
        from gputui.api.backend import ApiBackend
        from gputui.bootstrap.owner import OwnerBehind

        return OwnerBehind(options, feed, backend if isinstance(backend, ApiBackend) else None)
    store = store_of(backend)
    monitor = open_monitor(store.store_id)
    made = (host or make_host)(options, store, feed, "console", may_lead=may_lead, open_monitor=monitor)
    if isinstance(backend, ConsoleBackend):
        backend.leads = lambda: made.leads
    return made


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
    stands_in: bool = False,
    passed: str = "",
    beat: Callable[[], object] = lambda: None,
    commands: MakeCommands | None = None,
) -> Host:
    """Return the host that feeds snapshots to this process (`kind`: console or serve); it makes adapters when it leads.

    `started` may return a probe that already reads; `made` returns other adapters than the options name. `hand_over`
    starts a background scheduler when scheduling keeps failing here. `open_monitor` opens the monitor of a term.
    `stands_in`: it took over from a console, until a service wants to schedule or nothing is left to do. `passed`,
    `beat` and `commands` are for its `Door`.
    """
    import socket

    from gputui.api.connections import passed_descriptors
    from gputui.bootstrap.door import Door, make_services
    from gputui.bootstrap.owner import OwnerEvents
    from gputui.engine.hooks import made_report
    from gputui.engine.host import Adapters, Extras, Host
    from gputui.store.queue_files import SCHEMA  # the store is opened after the console's first frame

    def open_adapters() -> Adapters:
        runtimes = adapters.make_runtimes(options, store.store_id)
        if options.runtime == "docker":
            from gputui.runtime.docker.endpoint import keep_context

            keep_context()  # which may be that of the queue's engine
        probe = started() or adapters.make_probe(options, store.store_id)
        return Adapters({runtime.name: runtime for runtime in runtimes}, probe)

    clock = bootstrap.clock()
    streams = open_streams(options, store)
    me = Leader(
        os.getpid(),
        socket.gethostname(),
        bootstrap.actor().user,
        kind,
        clock.now(),
        uid=os.geteuid(),
        version=__version__,
        schema=SCHEMA,
        stands_in=stands_in,
    )
    opened: list[Monitor] = []

    def open_kept(jobs: Entries) -> Monitor:
        assert open_monitor is not None
        opened[:] = [open_monitor(jobs)]
        return opened[0]

    door = Door(
        options,
        feed,
        partial(
            make_services,
            options,
            store,
            feed,
            me,
            streams.serve,
            lambda gpu: host.read_for_others(gpu),
            commands=commands,
            metrics=lambda: opened[0].page() if opened else b"",
        ),
        passed=passed,
        is_service=kind == "serve",
        beat=beat,
    )
    host: Host = Host(
        store=store,
        adapters=made or open_adapters,
        settings=options.settings,
        clock=clock,
        directory=options.state,
        me=me,
        feed=feed,
        may_lead=may_lead and (kind != "console" or not options.settings.console.read_only),
        extras=Extras(
            hand_over,
            streams,
            open_kept if open_monitor else None,
            partial(made_report, options.arguments()),
            door,
            OwnerEvents(options) if kind == "console" else None,
            for_users=kind == "serve" and bool(passed_descriptors()),
            is_former=former_users(options),
        ),
    )
    return host


def former_users(options: Options) -> Callable[[int], bool]:
    """Return what tells whether an account may not use the queue any more; False where its database does not tell.

    A queue without users has none, except that of root, whose last user may have been removed.
    """
    settings = options.settings
    listed = (*settings.access.users, *settings.policy.operators)

    @cache
    def asked() -> tuple[int, AccountNames]:
        from gputui.api.rights import AccountNames  # only jobs of others need it

        return options.state.stat().st_uid, AccountNames()

    def is_former(uid: int) -> bool:
        owner, names = asked()
        groups = () if uid in {0, owner} or not (owner == 0 or settings.access.users) else names.groups(uid)
        if not groups or names.name(uid) in listed:
            return False
        is_known = all(names.number(each)[0] is not None for each in listed if each.startswith("@"))
        return is_known and role_of(uid, groups, owner, settings, names.number) is Role.VIEWER

    return is_former


def open_streams(options: Options, store: JobStore) -> Streams:
    from gputui.bootstrap.backend import entry_of
    from gputui.engine.streams import Streams

    def record(caller: Caller, job: Job, verb: str, request: ExecRequest | None) -> None:
        store.note(entry_of(caller, job, verb, request))

    command = [sys.executable, "-P", "-m", "gputui.bootstrap.stream", *options.arguments()]
    return Streams(command, lambda: store.store_id, store.get, record)


class DemoMachine(Struct, eq=False):
    """Simulated machine of the demo: its GPUs, the runtime of its jobs, and the processes on its GPUs."""

    _options: Options
    _store: Callable[[], JobStore]
    _latest: Callable[[], ProbeReading] = ProbeReading
    _containers: ForeignContainers | None = None

    def adapters(self) -> Adapters:
        from gputui.engine.host import Adapters
        from gputui.gpus.simulated import FOREIGN, SimulatedContainers, furnish
        from gputui.runtime.process.runtime import DemoRuntime

        options, store_id, clock = self._options, self._store().store_id, bootstrap.clock()
        probe = adapters.simulated_probe(options, store_id)

        def removed() -> None:
            probe.foreign(FOREIGN)
            runtime.wake()

        containers = SimulatedContainers(furnish(probe), removed, clock)
        self._latest, self._containers = probe.latest, containers
        runtime = DemoRuntime(store_id, options.state, options.settings.runtime, clock, lambda: containers.running)
        return Adapters({runtime.name: runtime}, probe)

    def foreign_use(self) -> ForeignUse:
        """Return the values of its processes, which get no signals, and actions on its foreign containers."""
        from gputui.engine.actions.foreign_use import ForeignUse

        clock, is_read_only = bootstrap.clock(), self._options.settings.console.read_only

        def processes() -> HostProcesses:
            from gputui.gpus.simulated import SimulatedProcesses

            return SimulatedProcesses(lambda: self._latest(), clock)

        actor = bootstrap.actor()
        return ForeignUse(self._store, clock, actor, processes, lambda: self._containers, is_read_only=is_read_only)


def demo_past(options: Options, store: JobStore, since: datetime) -> list[TakenStep]:
    """Return readings since then in which the jobs that have ended ran. Takes half a second."""
    from gputui.gpus.simulated import furnish, readings_of_past

    probe = adapters.simulated_probe(options, store.store_id)
    furnish(probe)
    ended = [job for job in store.jobs().values() if job.ended_at is not None]
    return list(readings_of_past(probe, ended, since, bootstrap.clock().now()))
