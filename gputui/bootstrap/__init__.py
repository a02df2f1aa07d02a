"""Construction of services from the options of a command: the clock, the user, the store and the actions on it.

The modules of this package construct the rest; nothing else knows the adapters of the ports.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gputui import __version__
from gputui.config import Options
from gputui.domain.access import Actor
from gputui.domain.errors import GputuiError, StoreAccessError, StoreError
from gputui.domain.job_spec import RUNTIMES
from gputui.domain.text import user_name

if TYPE_CHECKING:
    from gputui.domain.access import Caller, Resolve
    from gputui.domain.cluster import Caps
    from gputui.domain.gpu import Gpu
    from gputui.domain.gpu_history import TakenStep
    from gputui.domain.job import BootTime
    from gputui.domain.snapshot import Snapshot
    from gputui.ports import JobStore, SteadyClock
    from gputui.ports import backend as ports
    from gputui.ports.backend import DirectBackend
    from gputui.store.repair import Repair

_RESTART = {
    True: "quit that console, pid {}, and open this gputui's",
    False: "restart it with this gputui: systemctl restart gputui, or kill {} and run gputui serve",
}
RESCUE_WAIT = 5.0
"""Seconds that a repair waits for the scheduler to write its rescue file."""


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def boot_time(self) -> BootTime:
        from gputui.domain.job import BootTime  # not needed to submit

        return BootTime(_boot_id(), time.monotonic())


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


clock: Callable[[], SteadyClock] = SystemClock


def actor(environ: Mapping[str, str] = os.environ) -> Actor:
    """Return the user of this process; under sudo, the user who called sudo."""
    uid = os.getuid() or sudo_uid(environ) or 0
    return Actor(uid=uid, user=user_name(uid))


def sudo_uid(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the uid of the user who called sudo, as the environment tells; None: nobody did."""
    uid = environ.get("SUDO_UID", "")
    return int(uid) if uid.isascii() and uid.isdigit() and len(uid) < 11 else None


def caller() -> Caller:
    """Return this process's user as an operator, since it can write the state directory."""
    from gputui.domain.access import Caller, Role

    who, uid = actor(), os.getuid()
    via = "sudo" if who.uid != uid and "SUDO_UID" in os.environ else ""
    return Caller(uid, os.getgid(), tuple(os.getgroups()), who.user, Role.OPERATOR, os.getpid(), via=via)


def first_caps(options: Options) -> Caps | None:
    """Return what the cluster's engine can do, as far as it is known before that is asked; None without a cluster."""
    if not options.in_cluster:
        return None
    from gputui.domain.cluster import parse_engine

    engine = parse_engine(options.settings.cluster.engine)
    assert engine is not None
    return cast("Caps", import_module(f"gputui.cluster.{engine.kind}.site").caps_of(None))


def runtime_names(options: Options) -> tuple[str, ...]:
    """Return the names of the runtimes that can run jobs here. A cluster's engine refuses what it cannot run itself."""
    if options.in_cluster:
        return tuple(RUNTIMES)
    runs_host_jobs = RUNTIMES[options.runtime] or not options.settings.scheduler.host_jobs
    return (options.runtime,) if runs_host_jobs else (options.runtime, "process")


def may_schedule(options: Options, *, is_console: bool = False) -> bool:
    """Return whether a process may schedule here: a cluster's engine does it itself, a read-only console may not.

    Nor may the console of a user whose queue is a service's.
    """
    if is_console and (options.settings.console.read_only or not options.sockets.in_process):
        return False
    return not options.in_cluster


def has_queue(options: Options) -> bool:
    """Return whether the state directory has a queue, or remains of one, or a cluster has it; creates nothing."""
    if options.in_cluster or options.asked is not None:
        return True
    from gputui.store.files import QUEUE

    return any(options.state.glob(f"{QUEUE}*"))


def open_store(options: Options, waiting: Callable[[str], None] | None = None) -> JobStore:
    """Return the store of the state directory, which is created if missing.

    `waiting` is called with a sentence when another process locks the queue for long; by default it is logged. Raises
    StoreAccessError for settings with a group that shares the directory: that has ended.
    """
    if group := options.settings.store.group:
        what = f"the settings let the group {group} write the queue, which gputui does not do any more"
        hint = f"sudo gputui --state {shlex.quote(str(options.state))} install --users {group} --convert"
        raise StoreAccessError(what, where="store.group", hint=f"{hint}    # backs it up, and serves the group")
    from gputui.store import TinyJobStore

    def is_served() -> bool:
        if options.in_cluster or not any(map(os.path.lexists, options.sockets.paths)):
            return False
        from gputui.bootstrap.owner import open_api

        owner = open_api(options)
        if owner is not None:
            owner.close()
        return owner is not None

    hooks: dict[str, Any] = {"waiting": waiting} if waiting is not None else {}
    hooks |= {"migrating": partial(_ask_leader, options.state), "served": is_served}
    return TinyJobStore(options.state, options.settings.store, **hooks)


def _ask_leader(directory: Path, stored: int) -> None:
    """Raise StoreError if the scheduler could not read a queue converted from the schema `stored` to the current one.

    A leader of 0.1 does not tell its schema; it is taken to know that of the files and none later.
    """
    from gputui.engine.leadership import current_leader
    from gputui.store.queue_files import SCHEMA

    leader = current_leader(directory)
    reads = None if leader is None else stored if leader.schema is None else leader.schema
    if leader is None or reads is None or reads >= SCHEMA:
        return
    theirs = f"gputui {leader.version}" if leader.version else "an older gputui"
    raise StoreError(
        f"{leader.kind} of {leader.user}, pid {leader.pid}, schedules with {theirs}, which reads schema {reads} of the "
        f"queue; gputui {__version__} writes schema {SCHEMA}, so it stores nothing before that one is restarted",
        where=str(directory),
        hint=f"{_RESTART[leader.kind == 'console'].format(leader.pid)}; running jobs continue",
    )


def check_leader(options: Options) -> None:
    """Raise StoreError if an older scheduler runs that could not read what this gputui writes."""
    from gputui.store.files import QUEUE
    from gputui.store.queue_files import read_meta

    if (found := read_meta(options.state / QUEUE)) is not None:
        _ask_leader(options.state, found[0].schema)


def open_repair(options: Options) -> Repair:
    """Return the repair of the state directory; first gives a running scheduler time to write its rescue file.

    Raises GputuiError if it writes none: it hangs, or it began after the loss and has no more than the files.
    """
    from gputui.engine.leadership import current_leader
    from gputui.store.repair import repair_of

    repair = repair_of(options.state, partial(_ask_leader, options.state))
    leader, deadline = current_leader(options.state), time.monotonic() + RESCUE_WAIT
    while leader and repair.assess() and not repair.has_rescue_of(leader.pid) and time.monotonic() < deadline:
        time.sleep(0.2)
    if leader and repair.assess() and not repair.has_rescue_of(leader.pid) and current_leader(options.state):
        who = f"{leader.kind} schedules there, pid {leader.pid}, and has written nothing from its memory"
        hint = f"kill -CONT {leader.pid} if it hangs; else stop it (systemctl stop gputui), then repair; jobs run on"
        raise GputuiError(who, where=str(options.state), hint=hint)
    return repair


def open_backend(options: Options, waiting: Callable[[str], None] | None = None, key: str = "") -> DirectBackend:
    """Return the queue of this machine or of a cluster, as the options say; `waiting` as for `open_store`.

    `key` is stored with what is done: that of a request to an owner who did not answer.

    Its files are opened, and a state directory made, when they are first used.
    """
    if options.in_cluster:
        from gputui.bootstrap import clusters

        return clusters.open_backend(options)
    from msgspec.structs import replace

    from gputui.bootstrap.backend import LocalBackend

    return LocalBackend(options, waiting, caller=replace(caller(), key=key) if key else None)


def ask_backend(options: Options, waiting: Callable[[str], None] | None = None) -> DirectBackend:
    """Return the queue as its owner serves it while there is one, else as `open_backend` does.

    Raises NoOwnerError if this user may ask an owner alone, and there is none.
    """
    if options.in_cluster:
        return open_backend(options, waiting)
    if options.sockets.in_process:
        from typing import cast

        from gputui.bootstrap.backend import MovingBackend

        return cast("DirectBackend", MovingBackend(options, waiting))
    from gputui.bootstrap.owner import open_api

    return open_api(options, waiting) or open_backend(options, waiting)


def may_open(options: Options) -> bool:
    """Return whether this user may open the queue in a process of his own: a cluster's, or files that he can write."""
    if options.in_cluster:
        return True
    return options.asked is None and (not options.state.exists() or os.access(options.state, os.W_OK))


def has_own_queue(options: Options) -> bool:
    """Return whether the queue is one of this machine that this user may open in a process of his own."""
    return not options.in_cluster and may_open(options)


def actions(
    store: JobStore,
    options: Options,
    known_gpus: Callable[[], tuple[Gpu, ...]] = tuple,
    jobs_machine: Callable[[], str] = str,
    asks: Caller | None = None,
    resolve: Resolve | None = None,
) -> ports.Performer:
    """Return the actions of who asks, by default of this process's user, within the settings of `options`."""
    from gputui.bootstrap.adapters import engine_url
    from gputui.engine.actions.actions import Actions
    from gputui.engine.actions.permissions import UserPermissions, account_number

    settings, asks = options.settings, asks or caller()
    # an action of many jobs asks for each of them, and both may read files
    url, machine = cache(partial(engine_url, options)), cache(jobs_machine)
    permissions = UserPermissions(options.state, settings, url, machine)
    return Actions(
        store,
        clock(),
        asks.actor,
        settings.scheduler,
        settings.policy,
        permissions,
        known_gpus=known_gpus,
        caller=asks,
        resolve=resolve or account_number,
    )


def current_snapshot(options: Options, store: JobStore, *, planned: bool = True) -> Snapshot:
    """Return what the files of the queue tell, without GPUs; starts nothing. Unless `planned`, it has no plan."""
    from gputui.engine.tick import snapshot_builder

    return snapshot_builder.files_snapshot(store, options.state, options.settings, clock().now(), planned=planned)


def is_scheduled(options: Options) -> bool:
    from gputui.engine.leadership import current_leader

    return current_leader(options.state) is not None


def gpu_past(options: Options) -> list[TakenStep]:
    """Return the recorded GPU readings of the last hour or two; none in cluster mode, whose GPUs are elsewhere."""
    if options.in_cluster:
        return []
    from gputui.engine import telemetry_files

    return telemetry_files.read_gpu_log(options.state)
