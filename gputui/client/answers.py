"""Answers to a program. They may get new fields: those that are not known here are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeAlias

from msgspec import Struct

from gputui.domain.job import TERMINAL, JobState


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
