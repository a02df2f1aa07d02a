"""Choice of adapters for the ports, and construction of the engine's services from the options of a command."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.config import Options
from gputui.domain.audit import Actor
from gputui.domain.container import ForeignContainer
from gputui.domain.errors import GputuiError, RuntimeFault
from gputui.domain.gpu import ProbeReading
from gputui.domain.job import BootTime
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Leader, Node, Snapshot

RESCUE_WAIT = 5.0
"""Seconds that a repair waits for the scheduler to write its rescue file."""

if TYPE_CHECKING:
    from socket import socket

    from gputui.domain.container import ExecRequest
    from gputui.domain.entries import Entries
    from gputui.domain.gpu import Gpu
    from gputui.domain.gpu_history import TakenStep
    from gputui.domain.job import Attempt, Job, JobId
    from gputui.domain.telemetry_series import Measured
    from gputui.engine.actions.actions import Actions
    from gputui.engine.actions.foreign_use import ForeignUse
    from gputui.engine.actions.reservations import Reservations
    from gputui.engine.actions.tenants import Tenants
    from gputui.engine.feed import Feed
    from gputui.engine.files.logs import Logs
    from gputui.engine.files.viewers import AttachWait
    from gputui.engine.job_exec import Entrance, JobExecRouter
    from gputui.engine.process.host import Adapters, Host
    from gputui.engine.process.relay import Relay
    from gputui.gpus.simulated import SimulatedProbe
    from gputui.ports import GpuProbe, JobExec, JobStore, Monitor, Permit, Runtime, SteadyClock
    from gputui.ports.foreign import ForeignContainers
    from gputui.store.repair import Repair


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """Return the current time, aware, in UTC."""
        return datetime.now(UTC)

    def boot_time(self) -> BootTime:
        """Return the boot's id and the seconds since then, without time spent suspended."""
        return BootTime(_boot_id(), time.monotonic())


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def clock() -> SteadyClock:
    """Return the system clock."""
    return SystemClock()


def actor(environ: Mapping[str, str] = os.environ) -> Actor:
    """Return the user of this process; under sudo, the user who called sudo."""
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
    """Return whether the state directory has a queue, or remains of one; creates nothing."""
    from gputui.store.directory import QUEUE

    return any(options.state.glob(f"{QUEUE}*"))


def open_store(options: Options, waiting: Callable[[str], None] | None = None) -> JobStore:
    """Return the store of the state directory, which is created if missing.

    `waiting` is called with a sentence when another process locks the queue for long; by default it is logged.
    """
    from gputui.store import TinyJobStore

    if waiting is None:
        return TinyJobStore(options.state, options.settings.store)
    return TinyJobStore(options.state, options.settings.store, waiting)


def open_repair(options: Options) -> Repair:
    """Return the repair of the state directory, after giving a running scheduler time to write its rescue file."""
    import time

    from gputui.engine.files.leadership import current_leader
    from gputui.store.repair import repair_of

    repair = repair_of(options.state, options.settings.store)
    leader, deadline = current_leader(options.state), time.monotonic() + RESCUE_WAIT
    while leader and repair.assess() and not repair.has_rescue_of(leader.pid) and time.monotonic() < deadline:
        time.sleep(0.2)
    return repair


def actions(store: JobStore, options: Options | None = None) -> Actions:
    """Return the actions of this process's user, within the settings of `options`."""
    from gputui.engine.actions.actions import Actions
    from gputui.engine.actions.permissions import UserPermissions

    settings = options.settings if options else Settings()
    permissions = UserPermissions(options.state, settings) if options else None
    return Actions(store, clock(), actor(), settings.scheduler, settings.policy, permissions)


def reservations(store: JobStore, options: Options) -> Reservations:
    """Return the reservations, for changes by this process's user."""
    from gputui.engine.actions.reservations import Reservations

    return Reservations(store, clock(), actor(), options.settings.policy)


def tenants(store: JobStore, options: Options) -> Tenants:
    """Return the tenants' shares and limits, for changes by this process's user."""
    from gputui.engine.actions.permissions import UserPermissions
    from gputui.engine.actions.tenants import Tenants

    permissions = UserPermissions(options.state, options.settings)
    return Tenants(store, clock(), actor(), options.settings.policy, permissions)


def current_snapshot(options: Options, store: JobStore) -> Snapshot:
    """Return a snapshot from the store and the leader's last published readings. Starts nothing."""
    from gputui.engine.tick import snapshot_builder

    return snapshot_builder.follower_snapshot(store, options.state, options.settings, clock().now())


def is_scheduled(options: Options) -> bool:
    """Return whether a process schedules in the state directory now."""
    from gputui.engine.files.leadership import current_leader

    return current_leader(options.state) is not None


def known_gpus(options: Options) -> tuple[Gpu, ...]:
    """Return the GPUs that the scheduler lists now; empty without a scheduler, since no GPU is read for this."""
    from gputui.engine.files import live_file
    from gputui.engine.files.leadership import current_leader

    if current_leader(options.state) is None or (live := live_file.read(options.state)) is None:
        return ()
    return tuple(view.gpu for node in live.nodes for view in node.gpus)


def make_runtimes(options: Options, store_id: str) -> tuple[Runtime, ...]:
    """Return the runtimes of this machine, the one for containers first."""
    from gputui.runtime.docker.runtime import DockerRuntime
    from gputui.runtime.process.runtime import ProcessRuntime

    settings = options.settings
    runtimes: list[Runtime] = []
    if options.runtime == "docker":
        runtimes.append(DockerRuntime(store_id, settings.runtime, clock()))
    if options.runtime == "process" or settings.scheduler.host_jobs:
        runtimes.append(ProcessRuntime(store_id, options.state, settings.runtime, clock()))
    return tuple(runtimes)


def local_images(options: Options) -> tuple[str, ...]:
    """Return the names of the engine's images; empty when no engine answers."""
    if options.runtime != "docker":
        return ()
    from gputui.runtime.docker.runtime import DockerRuntime

    with closing(DockerRuntime("", options.settings.runtime, clock())) as engine, suppress(RuntimeFault):
        return engine.images()
    return ()


def make_probe(options: Options, store_id: str = "") -> GpuProbe:
    """Return the probe that `--probe` names, not started."""
    if options.probe.simulated is None:
        from gputui.gpus.supervisor import NvmlProbe

        return NvmlProbe(options.settings.gpus, clock())
    return _simulated(options, store_id)


def _simulated(options: Options, store_id: str) -> SimulatedProbe:
    from gputui.gpus.simulated import SimulatedProbe
    from gputui.gpus.simulated_models import DEFAULT

    model = (options.probe.model or DEFAULT).upper()
    return SimulatedProbe(options.probe.simulated or 0, model, clock=clock(), store_id=store_id)


def silence_probe_log() -> None:
    """Keep the probe's log records off stderr: the command itself reports what is wrong."""
    import logging

    logging.getLogger("gputui").addHandler(logging.NullHandler())


def check_probe(options: Options) -> None:
    """Raise InputError for an unknown model or an impossible number of simulated GPUs."""
    if options.probe.simulated is not None:
        from gputui.gpus.simulated_models import parse_probe

        parse_probe(str(options.probe))


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
    import socket

    from gputui.engine.hooks.weekly import made_report
    from gputui.engine.process.host import Adapters, Host

    def adapters() -> Adapters:
        runtimes = make_runtimes(options, store.store_id)
        probe = started() or make_probe(options, store.store_id)
        return Adapters({runtime.name: runtime for runtime in runtimes}, probe)

    return Host(
        store=store,
        adapters=made or adapters,
        settings=options.settings,
        clock=clock(),
        directory=options.state,
        me=Leader(os.getpid(), socket.gethostname(), actor().user, kind, clock().now(), uid=os.geteuid()),
        feed=feed,
        may_lead=may_lead and (kind != "console" or not options.settings.console.read_only),
        hand_over=hand_over,
        relay=relay_of(options),
        open_monitor=open_monitor,
        make_report=partial(made_report, options.arguments()),
    )


def demo_adapters(options: Options, store_id: str) -> Adapters:
    """Return the simulated GPUs and the runtime of the demo."""
    from gputui.engine.process.host import Adapters
    from gputui.gpus.simulated import furnish
    from gputui.runtime.process.runtime import DemoRuntime

    probe = _simulated(options, store_id)
    others = furnish(probe)
    runtime = DemoRuntime(store_id, options.state, options.settings.runtime, clock(), others)
    return Adapters({runtime.name: runtime}, probe)


def demo_past(options: Options, store: JobStore, since: datetime) -> list[TakenStep]:
    """Return readings since then in which the jobs that have ended ran. Takes half a second."""
    from gputui.gpus.simulated import furnish, readings_of_past

    probe = _simulated(options, store.store_id)
    furnish(probe)
    ended = [job for job in store.jobs().values() if job.ended_at is not None]
    return list(readings_of_past(probe, ended, since, clock().now()))


def gpu_past(options: Options) -> list[TakenStep]:
    """Return the recorded GPU readings of the last hour or two."""
    from gputui.engine.files import gpu_log

    return gpu_log.read(options.state)


def measured(options: Options, job: Job) -> dict[int, Measured]:
    """Return the telemetry of each attempt of a job, by number. Reads files."""
    from gputui.engine.files import telemetry_file

    return {attempt.number: telemetry_file.measured(options.state, job, attempt) for attempt in job.attempts}


def open_logs(options: Options, store: JobStore) -> Logs:
    """Return the logs of all attempts, live or kept. Connects to a runtime only for a live one."""
    from gputui.engine.files.logs import Logs

    runtimes: dict[str, Runtime] = {}

    def find(name: str) -> Runtime | None:
        if not runtimes:
            runtimes.update({runtime.name: runtime for runtime in make_runtimes(options, store.store_id)})
        return runtimes.get(name)

    return Logs(store, options.state, find)


def open_job_exec(options: Options, store: JobStore, actor_uid: int | None = None) -> JobExecRouter:
    """Return shells, commands and process lists of running jobs. Connects to a runtime only on use.

    They are for the user of that uid; None: the user of this process.
    """
    from gputui.engine.actions.permissions import UserPermissions
    from gputui.engine.files.viewers import InputMark
    from gputui.engine.job_exec import JobExecRouter

    permissions = UserPermissions(options.state, options.settings)
    uid = os.geteuid() if actor_uid is None else actor_uid

    def permit(job: Job) -> Permit:
        def check(submitter: int | None) -> None:
            if not permissions.may_enter(uid, submitter):
                who = _user_name(submitter) if submitter is not None else "somebody else"
                hint = "only its submitter and operators may enter it"
                raise GputuiError(f"job {job.shown_id} is a job of {who}", hint=hint)

        return check

    def make() -> dict[str, JobExec]:
        from gputui.runtime.docker.job_exec import DockerExec
        from gputui.runtime.process.job_exec import ProcessExec

        found: dict[str, JobExec] = {"process": ProcessExec(store.store_id, options.state)}
        if options.runtime == "docker":
            found["docker"] = DockerExec(options.settings.runtime)
        return found

    def may_try(job: Job) -> None:
        """Raise GputuiError where the queue says that it is another user's job; who enters it is checked again."""
        if not permissions.may_operate(uid) and job.submitted_by != _user_name(uid):
            hint = "only its submitter and operators may enter it"
            raise GputuiError(f"job {job.shown_id} is a job of {job.submitted_by}", hint=hint)

    def note_input(job_id: JobId) -> Callable[[], None]:
        return InputMark(options.state, job_id).set

    command = (sys.executable, "-P", "-m", "gputui", *options.arguments())
    return JobExecRouter(make, store.store_id, permit, note_input, command, may_try)


def open_entrance(options: Options, store: JobStore) -> Entrance:
    """Return the way into jobs of this process's user: by the scheduler's relay where the queue is shared.

    There only root and the owner of the state directory go by themselves, and others where nobody relays.
    """
    from gputui.engine.actions.permissions import UserPermissions
    from gputui.engine.job_exec import Entrance
    from gputui.runtime import relayed

    owner = options.state.stat().st_uid
    is_shared = UserPermissions(options.state, options.settings).is_shared
    direct, record = open_job_exec(options, store), partial(record_entry, store)
    if not is_shared or os.geteuid() in {0, owner}:
        return Entrance(direct, None, record)
    return Entrance(direct, partial(relayed.ask, options.state, {0, owner, os.geteuid()}), record)


def viewer(options: Options, job_id: JobId) -> AttachWait:
    """Return this process as somebody who waits to attach to a job before it starts."""
    from gputui.engine.files.viewers import AttachWait

    return AttachWait(options.state, job_id)


def output_of(options: Options, store: JobStore, job: Job, attempt: Attempt) -> Iterator[tuple[bool, bytes]]:
    """Yield the output of an attempt that is over, each piece with whether it is of standard error, if that is known.

    Raises GputuiError.
    """
    from gputui.engine.files.logs import log_path
    from gputui.runtime.process.attach import kept_log, live_log
    from gputui.runtime.process.attempt_folder import AttemptFolder

    if job.spec.is_host:
        name = f"gputui-{store.store_id}-{job.id}-{attempt.number}"
        with suppress(OSError), closing(live_log(AttemptFolder(options.state / "attempts" / name))) as log:
            yield from log.rest()
            return
        with suppress(OSError), closing(kept_log(options.state / log_path(job.id, attempt.number))) as log:
            yield from log.rest()
            return
    with closing(open_logs(options, store).open(job.id, attempt.number)) as stream:
        yield from ((False, line + b"\n") for line in stream)


def relay_of(options: Options) -> Relay:
    """Return the relay into jobs of the state directory, not opened."""
    from gputui.engine.process.relay import Relay

    return Relay(options.state, [sys.executable, "-P", "-m", "gputui.console.relay", *options.arguments()])


def open_foreign_use(options: Options, store: JobStore, *, is_read_only: bool = False) -> ForeignUse:
    """Return the processes and containers of others, for acts with this process's rights. Connects only on use."""
    from gputui.engine.actions.foreign_use import ForeignUse
    from gputui.runtime.host_signals import LocalProcesses

    def containers() -> ForeignContainers | None:
        from gputui.runtime.docker.foreign_containers import DockerContainers

        return DockerContainers(options.settings.runtime) if options.runtime == "docker" else None

    return ForeignUse(store, clock(), actor(), LocalProcesses(), containers, is_read_only=is_read_only)


def read_gpus(options: Options, patience: float, probe: GpuProbe | None = None) -> ProbeReading:
    """Return one complete reading of the GPUs, or the latest after `patience` seconds; closes the probe."""
    from gputui.gpus.supervisor import first_reading

    return first_reading(probe or make_probe(options), patience)


def measured_snapshot(
    options: Options, store: JobStore, patience: float = 8.0, probe: GpuProbe | None = None
) -> Snapshot:
    """Return a snapshot from a reading of our own, by `probe` if given, for when no scheduler runs."""
    from gputui.domain.policy.gpus.availability import Evidence, gpu_views

    probe = probe or make_probe(options)
    probe.start()  # it reads while the runtimes are asked
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
    rows = gpu_views(evidence, options.settings.scheduler, now)
    node = Node("", rows, reading.status, reading.driver_version, host=reading.host)
    return Snapshot(taken_at=now, nodes=(node,), controls=evidence.controls)


def _foreign(options: Options, store_id: str) -> tuple[ForeignContainer, ...] | None:
    """Return foreign containers with GPUs; None when a runtime cannot tell."""
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


def peer(connection: socket) -> int:
    """Return the uid of the process at the other end of a unix socket, as the kernel recorded it."""
    from gputui.runtime.frame_channel import peer_uid

    return peer_uid(connection)


def record_entry(
    store: JobStore, job: Job, verb: str, request: ExecRequest | None = None, uid: int | None = None
) -> None:
    """Record in the audit log that a user (None: of this process) attached to a job or ran a command in it."""
    import shlex

    from gputui.domain.audit import AuditEntry, target_of

    who = actor() if uid is None else Actor(uid=uid, user=_user_name(uid))
    words = shlex.join(request.command)[:1000] if request else ""
    with store.transaction() as transaction:
        transaction.audit(AuditEntry(clock().now(), who.uid, who.user, verb, target_of(job), "", words))
