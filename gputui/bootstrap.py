"""The only place where adapters are chosen."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.config import Options
from gputui.domain.audit import Actor
from gputui.domain.container import ForeignContainer
from gputui.domain.errors import RuntimeFault
from gputui.domain.gpu import ProbeReading
from gputui.domain.job import BootTime
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Leader, Node, Snapshot
from gputui.ports import GpuProbe, Interior, JobStore, Runtime, SteadyClock

RESCUE_WAIT = 5.0
"""Seconds that a repair waits for the scheduler to write down what it has in memory."""

if TYPE_CHECKING:
    from gputui.domain.gpu import Gpu
    from gputui.domain.gpu_history import TakenStep
    from gputui.engine.actions import Actions
    from gputui.engine.feed import Feed
    from gputui.engine.host import Host
    from gputui.engine.inside import Inside
    from gputui.engine.logs import Logs
    from gputui.engine.reservations import Reservations
    from gputui.engine.tenants import Tenants
    from gputui.store.repair import Repair


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """The time, aware, in UTC."""
        return datetime.now(UTC)

    def boot_time(self) -> BootTime:
        """The seconds that this machine has been awake, and since which start of it."""
        return BootTime(_boot_id(), time.monotonic())


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def clock() -> SteadyClock:
    """The clock that everything goes by."""
    return SystemClock()


def actor(environ: Mapping[str, str] = os.environ) -> Actor:
    """Who runs this process: under sudo, who called sudo."""
    uid, sudo = os.getuid(), environ.get("SUDO_UID", "")
    if uid == 0 and sudo.isascii() and sudo.isdigit() and len(sudo) < 11:
        uid = int(sudo)
    return Actor(uid=uid, user=_user_name(uid))


def _user_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # an id without an account, as in many containers
        return str(uid)


def has_queue(options: Options) -> bool:
    """Return whether there is a queue, or something left of one, in the state directory; creates nothing."""
    from gputui.store.directory import QUEUE

    return any(options.state.glob(f"{QUEUE}*"))


def open_store(options: Options, waiting: Callable[[str], None] | None = None) -> JobStore:
    """The store in the state directory, made if there is none yet.

    `waiting` is called with a sentence when another process keeps the queue locked for long; by default it is logged.
    """
    from gputui.store import TinyJobStore

    if waiting is None:
        return TinyJobStore(options.state, options.settings.store)
    return TinyJobStore(options.state, options.settings.store, waiting)


def open_repair(options: Options) -> Repair:
    """The repair of the state directory. Gives a scheduler at work the time to write down what it has in memory."""
    import time

    from gputui.engine.leader import current_leader
    from gputui.store.repair import repair_of

    repair = repair_of(options.state, options.settings.store)
    leader, deadline = current_leader(options.state), time.monotonic() + RESCUE_WAIT
    while leader and repair.look() and not repair.has_rescue_of(leader.pid) and time.monotonic() < deadline:
        time.sleep(0.2)
    return repair


def actions(store: JobStore, options: Options | None = None) -> Actions:
    """What the user of this process may ask for, within the settings of `options`."""
    from gputui.engine.actions import Actions
    from gputui.engine.permissions import Permissions

    settings = options.settings if options else Settings()
    permissions = Permissions(options.state, settings) if options else None
    return Actions(store, clock(), actor(), settings.scheduler, settings.policy, permissions)


def reservations(store: JobStore, options: Options) -> Reservations:
    """The reservations, as the user of this process may change them."""
    from gputui.engine.reservations import Reservations

    return Reservations(store, clock(), actor(), options.settings.policy)


def tenants(store: JobStore, options: Options) -> Tenants:
    """What tenants are due, as the user of this process may change it."""
    from gputui.engine.tenants import Tenants

    return Tenants(store, clock(), actor(), options.settings.policy)


def current_snapshot(options: Options, store: JobStore) -> Snapshot:
    """The picture as the store and the leader's last published readings give it. Starts nothing."""
    from gputui.engine import picture

    return picture.beside(store, options.state, options.settings, clock().now())


def known_gpus(options: Options) -> tuple[Gpu, ...]:
    """Return the GPUs that the scheduler lists now; none where nobody schedules, since GPUs are not read for this."""
    from gputui.engine import published
    from gputui.engine.leader import current_leader

    if current_leader(options.state) is None or (live := published.read(options.state)) is None:
        return ()
    return tuple(view.gpu for node in live.nodes for view in node.gpus)


def make_runtimes(options: Options, store_id: str) -> tuple[Runtime, ...]:
    """The runtimes of this node, the one for containers first."""
    from gputui.runtime.docker import DockerRuntime
    from gputui.runtime.process import ProcessRuntime

    settings = options.settings
    runtimes: list[Runtime] = []
    if options.runtime == "docker":
        runtimes.append(DockerRuntime(store_id, settings.runtime, clock()))
    if options.runtime == "process" or settings.scheduler.host_jobs:
        runtimes.append(ProcessRuntime(store_id, options.state, settings.runtime, clock()))
    return tuple(runtimes)


def local_images(options: Options) -> tuple[str, ...]:
    """The names of images that the engine has; none where there is no engine, or none that answers."""
    if options.runtime != "docker":
        return ()
    from gputui.runtime.docker import DockerRuntime

    engine = DockerRuntime("", options.settings.runtime, clock())
    try:
        return engine.images()
    except RuntimeFault:
        return ()
    finally:
        engine.close()


def make_probe(options: Options, store_id: str = "") -> GpuProbe:
    """The probe that `--probe` names, not started."""
    if options.probe.simulated is None:
        from gputui.gpus.supervisor import NvmlProbe

        return NvmlProbe(options.settings.gpus, clock())
    from gputui.gpus.models import DEFAULT
    from gputui.gpus.simulated import SimulatedProbe

    return SimulatedProbe(
        options.probe.simulated, (options.probe.model or DEFAULT).upper(), clock=clock(), store_id=store_id
    )


def check_probe(options: Options) -> None:
    """Raise InputError for simulated GPUs of a number or model that there is none of."""
    if options.probe.simulated is not None:
        from gputui.gpus.models import parse_probe

        parse_probe(str(options.probe))


def make_host(
    options: Options,
    store: JobStore,
    feed: Feed,
    kind: str,
    *,
    may_lead: bool = True,
    started: Callable[[], GpuProbe | None] = lambda: None,
    hand_over: Callable[[], object] | None = None,
) -> Host:
    """What keeps the feed supplied in this process, `console` or `serve`; its adapters are made when it leads.

    `started` may give a probe that reads already, once. `hand_over` begins a background scheduler, for when scheduling
    fails here again and again.
    """
    import socket

    from gputui.engine.host import Adapters, Host

    def adapters() -> Adapters:
        runtimes = make_runtimes(options, store.store_id)
        probe = started() or make_probe(options, store.store_id)
        return Adapters({runtime.name: runtime for runtime in runtimes}, probe)

    return Host(
        store=store,
        adapters=adapters,
        settings=options.settings,
        clock=clock(),
        directory=options.state,
        me=Leader(os.getpid(), socket.gethostname(), actor().user, kind, clock().now(), uid=os.geteuid()),
        feed=feed,
        may_lead=may_lead and (kind != "console" or not options.settings.console.read_only),
        hand_over=hand_over,
    )


def gpu_past(options: Options) -> list[TakenStep]:
    """What GPUs did in the last hour while somebody scheduled."""
    from gputui.engine import gpu_log

    return gpu_log.read(options.state)


def open_logs(options: Options, store: JobStore) -> Logs:
    """The output of every attempt, live or kept. Connects to a runtime only for a live one."""
    from gputui.engine.logs import Logs

    runtimes: dict[str, Runtime] = {}

    def find(name: str) -> Runtime | None:
        if not runtimes:
            runtimes.update({runtime.name: runtime for runtime in make_runtimes(options, store.store_id)})
        return runtimes.get(name)

    return Logs(store, options.state, find)


def open_inside(options: Options, store: JobStore) -> Inside:
    """The way into jobs that run. Connects to a runtime only when asked."""
    from gputui.engine.inside import Inside

    def make() -> dict[str, Interior]:
        from gputui.runtime.docker_inside import DockerInside
        from gputui.runtime.process_inside import ProcessInside

        found: dict[str, Interior] = {"process": ProcessInside(store.store_id, options.state)}
        if options.runtime == "docker":
            found["docker"] = DockerInside(options.settings.runtime)
        return found

    return Inside(make)


def read_gpus(options: Options, patience: float, probe: GpuProbe | None = None) -> ProbeReading:
    """One whole reading of the GPUs, or after so many seconds whatever there is by then; it ends the probe."""
    from gputui.gpus.once import first_reading

    return first_reading(probe or make_probe(options), patience)


def measured_snapshot(
    options: Options, store: JobStore, patience: float = 8.0, probe: GpuProbe | None = None
) -> Snapshot:
    """The picture by a reading of our own, for when nobody schedules; by that probe, if one reads already."""
    from gputui.domain.policy.occupancy import Evidence, views

    probe = probe or make_probe(options)
    probe.start()  # it reads while engines are asked
    foreign = _foreign(options, store.store_id) if options.probe.simulated is None else ()
    reading = read_gpus(options, patience, probe)
    evidence = Evidence(
        reading=reading,
        store_id=store.store_id,
        jobs=tuple(job for job in store.jobs().values() if job.gpus),
        controls=store.controls(),
        unreadable=store.unreadable(),
        foreign=foreign,
    )
    now = clock().now()
    rows = views(evidence, options.settings.scheduler, now)
    node = Node("", rows, reading.status, reading.driver_version)
    return Snapshot(taken_at=now, nodes=(node,), controls=evidence.controls)


def _foreign(options: Options, store_id: str) -> tuple[ForeignContainer, ...] | None:
    """Other people's containers with GPUs; None as soon as one runtime cannot tell."""
    found: list[ForeignContainer] = []
    runtimes = make_runtimes(options, store_id)
    try:
        for runtime in runtimes:
            if not runtime.check().up:
                return None
            found += runtime.foreign()
    except RuntimeFault:
        return None
    finally:
        for runtime in runtimes:
            runtime.close()
    return tuple(found)
