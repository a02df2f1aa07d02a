"""What the engine and a runtime say to each other. A host process counts as a container here."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gputui.domain.cause import Cause
from gputui.domain.job import JobId, JobSpec, PublishedPort


@dataclass(frozen=True)
class RunAs:
    """The account an attempt runs under."""

    uid: int
    is_strict: bool = False
    """Whether the state directory is shared: then `--user` may name no other account."""


@dataclass(frozen=True)
class Launch:
    """One attempt as the runtime is to create it."""

    store_id: str
    job_id: JobId
    attempt: int
    spec: JobSpec
    gpus: tuple[str, ...]
    """UUIDs; empty: the job must see no GPU at all."""
    array_index: int | None = None
    gpu_names: tuple[str, ...] = ()
    """Names by which the engine's CDI specifications know these GPUs; empty: their UUIDs."""
    run_as: RunAs | None = None
    """Its submitter. None: a host process runs as whoever schedules, a container as its image says."""

    @property
    def name(self) -> str:
        """Made of store, job and attempt, so that creating it twice conflicts instead of running it twice."""
        return f"gputui-{self.store_id}-{self.job_id}-{self.attempt}"

    @property
    def promised(self) -> int:
        """Bytes of each GPU that it may use where it shares them, told to it as GPUTUI_GPU_MEMORY; 0: all of it."""
        return self.spec.gpus.promised if self.gpus else 0

    @property
    def tag(self) -> str:
        """What GPUTUI_ATTEMPT is set to inside, so that its processes can be told from foreign ones."""
        return f"{self.store_id}:{self.job_id}:{self.attempt}"


class ContainerState(StrEnum):
    """Where a container stands."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True)
class ContainerRecord:
    """A container of this store, as the runtime has it."""

    id: str
    job_id: JobId
    attempt: int
    state: ContainerState
    gpus: tuple[str, ...] = ()
    """UUIDs it was created with."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    cause: Cause | None = None
    """Why it ended, unless it ended well."""
    pid: int | None = None
    """Of its first process, or of a host attempt's session leader."""
    ports: tuple[PublishedPort, ...] = ()


@dataclass(frozen=True)
class ForeignContainer:
    """A running container that is not this store's and has asked for GPUs."""

    id: str
    name: str
    user: str | None
    devices: tuple[str, ...]
    """What it asked for, as written: `all`, `0`, `GPU-…`, `MIG-…`, `minor:3`."""
    image: str = ""


@dataclass(frozen=True)
class Capability:
    """What a runtime can do; a thing it lacks is a value here, not an exception later."""

    images: bool = False
    limits: bool = False
    foreign: bool = False


@dataclass(frozen=True)
class EngineGpus:
    """How a container engine is set up to give GPUs to containers. `doctor` judges it."""

    mode: str = "nvidia"
    """`nvidia` (device requests, as `--gpus` makes them), `cdi`, or `none`: the engine ignores requests for GPUs."""
    runtimes: tuple[tuple[str, str], ...] = ()
    """Name and path of each registered runtime, as the engine tells them."""
    cdi_devices: tuple[str, ...] | None = None
    """Device names that the engine lists; None: it does not list any, or is too old to."""
    is_local: bool = False
    """Whether the engine runs on this machine, so that its files can be looked at."""
    address: str = ""
    """URL by which the engine was reached."""
    is_rootless: bool = False
    is_podman: bool = False
    warnings: tuple[str, ...] = ()
    """Sentences for the console about GPUs of this engine; `doctor` makes its own from the facts above."""

    @property
    def nvidia_path(self) -> str | None:
        """Path of the registered runtime `nvidia`; None: it is not registered."""
        return dict(self.runtimes).get("nvidia")


@dataclass(frozen=True)
class RuntimeStatus:
    """How a runtime stands."""

    name: str
    """`docker` or `process`."""
    up: bool
    text: str
    """What it is, or what is wrong and what to do."""
    version: str | None = None
    since: datetime | None = None
    warnings: tuple[str, ...] = ()
    """Sentences for `doctor` and the console, such as "live-restore is off: …; set …": what, why, and after a semicolon
    what to do."""
    capability: Capability = Capability()
    asked: bool = True
    """Whether it was asked at all: before that it is not up, and nothing is wrong."""
    gpus: EngineGpus | None = None
    """None for a runtime without containers, and for an engine that does not answer."""
    hint: str = ""
    """Advice for a runtime that is not up; the text ends with it in brackets."""

    @property
    def all_warnings(self) -> tuple[str, ...]:
        """Every warning, those about GPUs last."""
        return (*self.warnings, *(self.gpus.warnings if self.gpus else ()))


@dataclass(frozen=True)
class Created:
    """A container that exists: newly made, or found under its name."""

    id: str
    adopted: bool = False
    notes: tuple[str, ...] = ()
    """What was changed to make it possible, in sentences: cpus clamped to the host's 2."""
