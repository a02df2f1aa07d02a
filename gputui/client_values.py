"""Values that programs give `Client`, and get from it: jobs, GPUs, events, and the options of a job."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

from msgspec import Struct

from gputui.domain.state import TERMINAL, JobState


class Because(Struct, frozen=True):
    """Reason of a state, such as why a job waits: a code, and words."""

    code: str
    text: str


class ArrayPlace(Struct, frozen=True):
    """Place of a job in its array."""

    id: int
    """Number of the array."""
    index: int
    limit: int | None = None
    count: int = 1
    """Number of waiting elements that this entry stands for."""
    indices: str = ""


class AttemptInfo(Struct, frozen=True):
    """Attempt to run a job."""

    number: int
    gpus: tuple[str, ...] = ()
    gpu_count: int = 0
    node: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    cause: str | None = None
    cause_code: str | None = None
    error: str | None = None
    log_path: str | None = None
    telemetry: Mapping[str, Any] | None = None
    ports: tuple[Mapping[str, Any], ...] = ()


class JobInfo(Struct, frozen=True):
    """A job as the caller sees it."""

    id: int
    name: str
    state: str
    """PENDING, CONFIGURING, RUNNING, COMPLETING, or how it ended: COMPLETED, FAILED, CANCELLED, TIMEOUT, ..."""
    reason: Because | None = None
    tenant: str = ""
    priority: int = 0
    image: str | None = None
    command: tuple[str, ...] = ()
    comment: str = ""
    gpus_min: int = 0
    gpus_max: int | None = None
    held: bool = False
    hold_reason: str | None = None
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    expected_start_at: datetime | None = None
    limit_at: datetime | None = None
    exit_code: int | None = None
    cause: str | None = None
    cause_code: str | None = None
    error: str | None = None
    labels: Mapping[str, str] = {}
    attempts: tuple[AttemptInfo, ...] = ()
    submitted_by: str = ""
    cancel_requested: bool = False
    requeue_requested: bool = False
    progress: float | None = None
    array: ArrayPlace | None = None
    sweep: Mapping[str, str] | None = None
    spec: Mapping[str, Any] | None = None
    """All that it asks for; of `Client.job` only."""

    @property
    def has_ended(self) -> bool:
        """Return whether it has ended, and will not run again."""
        return self.state in TERMINAL and not self.requeue_requested

    @property
    def is_completed(self) -> bool:
        return self.state == JobState.COMPLETED


class GpuInfo(Struct, frozen=True):
    """A GPU; a reading that is not available is None."""

    uuid: str
    index: int
    model: str
    state: str
    node: str = ""
    why: str | None = None
    health: Because | None = None
    job_ids: tuple[int, ...] = ()
    memory_total: int | None = None
    memory_used: int | None = None
    utilization: float | None = None
    temperature: float | None = None
    power: float | None = None
    age: float | None = None
    """Seconds since the reading."""


class WaitInfo(Struct, frozen=True):
    """Reason why a job waits, and its expected start."""

    id: int
    reason: Because | None = None
    position: int | None = None
    waiting: int | None = None
    waits_for: tuple[int, ...] = ()
    expected_start_at: datetime | None = None
    certainty: str | None = None
    score: Mapping[str, Any] = {}


class JobEvent(Struct, frozen=True):
    """A job has come, or has another state."""

    id: int
    before: str | None
    after: str
    job: JobInfo


class GpuEvent(Struct, frozen=True):
    """A GPU has come, or has another state, health or jobs."""

    uuid: str
    index: int
    state: str
    health: Because | None = None
    job_ids: tuple[int, ...] = ()


class NoticeEvent(Struct, frozen=True):
    """The scheduler has something to say."""

    severity: str
    text: str
    halts: bool = False


class Beginning(Struct, frozen=True):
    """Events begin here, or again where some were missed: look at what you need, and then wait for the next."""


Event: TypeAlias = JobEvent | GpuEvent | NoticeEvent | Beginning
EVENTS: dict[str, type[JobEvent | GpuEvent | NoticeEvent]] = {
    "job": JobEvent,
    "gpu": GpuEvent,
    "notice": NoticeEvent,
}


Command: TypeAlias = str | Sequence[str]
"""Words of a command; text is split as a shell would, and runs without one."""
Seconds: TypeAlias = float | timedelta


class JobOptions(TypedDict, total=False):
    """Options of a job besides its command; a missing one has its default."""

    image: str
    """Image of its container. Without one it is a process of the host, in this directory and environment."""
    name: str
    tenant: str
    comment: str
    gpus: int | tuple[int, int] | Sequence[str]
    """Number of GPUs, the least and the most, `"all"`, or UUIDs and indices of particular ones."""
    gpu_memory: int
    """Bytes that each GPU must have."""
    gpu_model: str
    share: bool
    """Allows other jobs on its GPUs; `gpu_memory` is then promised to it."""
    priority: int
    """0 to 100, 50 is normal."""
    time_limit: Seconds
    idle_timeout: Seconds
    retries: int
    after: Sequence[int]
    """Jobs that must be COMPLETED before it starts."""
    after_any: Sequence[int]
    begin_at: datetime
    preemptible: bool
    held: bool
    env: Mapping[str, str]
    volumes: Sequence[str]
    """`source:target[:mode]`."""
    workdir: str
    labels: Mapping[str, str]
    options: Mapping[str, Any]
    """Further options of `docker run`, by the names in `ContainerOptions` of openapi.json."""
    anyway: bool
    """Also if this server does not have such GPUs now."""
    key: str
    """Idempotency key: with the same one the same request is one job, however often a program is run."""


_SPEC = ("image", "name", "tenant", "priority", "retries", "after", "after_any", "begin_at", "preemptible", "comment")
_GPUS = {"gpu_memory": "memory", "gpu_model": "model", "share": "share"}
_PAIRS = ("env", "labels")


def submission(command: Command, given: dict[str, Any], is_here: bool) -> dict[str, Any]:
    """Return the request for a job, as JSON has it; raises TypeError for an option that does not exist."""
    words = shlex.split(command) if isinstance(command, str) else [str(each) for each in command]
    spec = {name: given.pop(name) for name in _SPEC if name in given}
    for name in ("time_limit", "idle_timeout"):
        if name in given:
            length = given.pop(name)
            spec[name] = length if isinstance(length, timedelta) else timedelta(seconds=length)
    gpus = _count(given.pop("gpus")) if "gpus" in given else {}
    gpus |= {ours: given.pop(name) for name, ours in _GPUS.items() if name in given}
    options = dict(given.pop("options", {}))
    options |= {name: list(given.pop(name).items()) for name in _PAIRS if name in given}
    options |= {name: given.pop(name) for name in ("volumes", "workdir") if name in given}
    found = {"spec": {**spec, "command": words, "gpus": gpus, "options": options}, "held": given.pop("held", False)}
    if given:
        raise TypeError(f"there is no option {', '.join(sorted(given))}")
    if spec.get("image") is None and is_here:
        from gputui.request.caller import inherited, is_taken_over, not_utf8

        # what a host job takes over from this process, as that of `gputui submit --host` does
        odd = not_utf8(os.environ)
        env = {name: value for name, value in os.environ.items() if is_taken_over(name) and name not in odd}
        env |= dict(options.get("env", ()))
        options = {"workdir": str(Path.cwd()), **options, "env": list(env.items())}
        found["spec"] |= {"inherited": inherited(), "options": options}
    named = spec.get("image") or (words[0] if words else "")
    found["spec"].setdefault("name", Path(named.partition("@")[0]).name.partition(":")[0][:100] or "job")
    return found


def _count(wanted: int | tuple[int, int] | Sequence[str]) -> dict[str, Any]:
    if isinstance(wanted, int):
        return {"minimum": wanted, "maximum": wanted}
    if isinstance(wanted, str):
        return {"minimum": 1, "maximum": 1024, "everything": True} if wanted == "all" else _count([wanted])
    if isinstance(wanted, tuple) and len(wanted) == 2 and all(isinstance(each, int) for each in wanted):
        return {"minimum": wanted[0], "maximum": wanted[1]}
    return {"minimum": len(wanted), "maximum": len(wanted), "devices": [str(each) for each in wanted]}
