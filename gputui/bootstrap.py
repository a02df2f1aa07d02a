"""The only place where adapters are chosen."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from gputui.config import Options
from gputui.domain.audit import Actor
from gputui.domain.container import ForeignContainer
from gputui.domain.errors import GputuiError, RuntimeFault
from gputui.domain.gpu import ProbeCode, ProbeReading
from gputui.domain.job import Job, JobId
from gputui.domain.snapshot import Node, Snapshot
from gputui.domain.state import JobState
from gputui.engine.actions import Actions
from gputui.ports import Clock, GpuProbe, JobStore, LogStream, Runtime


class Logs(Protocol):
    """Where the output of attempts is found."""

    def open(self, job_id: JobId, attempt: int | None, *, tail: int | None, follow: bool) -> LogStream:
        """The output of one attempt, the last when None."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """The time, aware, in UTC."""
        return datetime.now(UTC)


def clock() -> Clock:
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


def open_store(options: Options) -> JobStore:
    """The store in the state directory, made if there is none yet."""
    store: JobStore = _adapter("gputui.store", "TinyJobStore")(options.state, options.settings.store)
    return store


def actions(store: JobStore) -> Actions:
    """What the user of this process may ask for."""
    return Actions(store, clock(), actor())


def current_snapshot(options: Options, store: JobStore) -> Snapshot:
    """The picture as the store and the leader's last published readings give it. Starts nothing."""
    del options
    jobs = tuple(store.jobs().values())
    return Snapshot(taken_at=clock().now(), jobs=jobs, controls=store.controls(), order=_by_priority(jobs))


def _by_priority(jobs: tuple[Job, ...]) -> tuple[JobId, ...]:
    def rank(job: Job) -> tuple[float, int, datetime, JobId]:
        return (-job.topped_at.timestamp() if job.topped_at else 0.0, -job.priority, job.submitted_at, job.id)

    return tuple(job.id for job in sorted(jobs, key=rank) if job.state is JobState.PENDING)


def make_runtimes(options: Options, store_id: str) -> tuple[Runtime, ...]:
    """The runtimes of this node, the one for containers first."""
    raise GputuiError("runtimes are not built yet")


def make_probe(options: Options) -> GpuProbe:
    """The probe that `--probe` names, not started."""
    raise GputuiError("the probe is not built yet")


def read_gpus(options: Options, patience: float) -> ProbeReading:
    """One whole reading of the GPUs, or after so many seconds whatever there is by then."""
    came = threading.Event()
    probe = make_probe(options)

    def note(reading: ProbeReading) -> None:
        if reading.taken_at is not None or reading.status.code is not ProbeCode.STARTING:
            came.set()

    try:
        probe.subscribe(note)
        probe.start()
        came.wait(patience)
        return probe.latest()
    finally:
        probe.close()


def measured_snapshot(options: Options, store: JobStore, patience: float = 8.0) -> Snapshot:
    """The picture by a reading of our own, for when nobody schedules."""
    from gputui.domain.policy.occupancy import Evidence, views

    reading = read_gpus(options, patience)
    evidence = Evidence(
        reading=reading,
        store_id=store.store_id,
        jobs=tuple(job for job in store.jobs().values() if job.gpus),
        controls=store.controls(),
        foreign=_foreign(options, store.store_id) if options.probe.simulated is None else (),
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


def run_serve(options: Options, *, wait: float = 0) -> int:
    """Schedule without a screen until told to end; the exit code. Waits so long for the lock."""
    raise GputuiError("serve is not built yet")


def run_console(options: Options) -> int:
    """The console until it is quit; the exit code."""
    raise GputuiError("the console is not built yet")


def run_demo(options: Options) -> int:
    """The console on simulated GPUs in a throw-away state directory; the exit code."""
    raise GputuiError("the demo is not built yet")


def open_logs(options: Options, store: JobStore) -> Logs:
    """The output of every attempt, live or kept."""
    raise GputuiError("logs are not built yet")


def _adapter(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)
