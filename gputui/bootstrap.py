"""The only place where adapters are chosen."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from gputui.config import Options
from gputui.domain.audit import Actor
from gputui.domain.errors import GputuiError
from gputui.domain.job import Job, JobId
from gputui.domain.snapshot import Snapshot
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
