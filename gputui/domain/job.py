"""A job: what was asked for, what became of it, and each try at running it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from gputui.domain.cause import Cause
from gputui.domain.state import JobState, check_transition

JobId: TypeAlias = int
Pairs: TypeAlias = tuple[tuple[str, str], ...]
"""A mapping of strings, in order and frozen."""

NORMAL_PRIORITY = 50
MAX_PRIORITY = 100
CLASSES = ("low", "normal", "high")
DEFAULT_BACKOFF = timedelta(seconds=5)


def whole_class(priority: int) -> int:
    """0, 1 or 2: low, normal or high, whichever the priority is nearest to: low to 25, high from 75."""
    return min(2, max(0, round(priority / NORMAL_PRIORITY)))


@dataclass(frozen=True)
class GpuRequest:
    """How many GPUs, or which ones. `minimum` 0 means none."""

    minimum: int = 0
    maximum: int = 0
    devices: tuple[str, ...] = ()
    """UUIDs or indices named by the user; empty when any will do."""
    everything: bool = False
    """All GPUs of the node, however many there are."""
    memory: int | None = None
    """Bytes each GPU must have in total."""
    model: str | None = None
    """Part of the model's name, compared without case."""
    free_memory: int | None = None
    """Bytes each GPU must have free when it is given out."""
    share: bool = False
    """Others that ask so may share its GPUs: `memory` is what it is promised of each then."""
    capabilities: tuple[str, ...] = ()
    """NVIDIA driver capabilities named after `--gpus`; empty: the image or NVIDIA_DRIVER_CAPABILITIES decides."""
    driver: str | None = None
    driver_options: Pairs = ()
    """The fields `driver=` and `options=` of `--gpus`, handed to the engine as they are."""

    @property
    def promised(self) -> int:
        """Bytes of each GPU that it shares with others; 0: it wants its GPUs to itself."""
        return (self.memory or 0) if self.share else 0


@dataclass(frozen=True)
class ContainerOptions:
    """What `docker run` takes, under the same names; sizes in bytes."""

    env: Pairs = ()
    volumes: tuple[str, ...] = ()
    """`source:target[:mode]`, as after `-v`."""
    mounts: tuple[str, ...] = ()
    """`type=bind,source=…,target=…`, as after `--mount`."""
    workdir: str | None = None
    user: str | None = None
    entrypoint: str | None = None
    cpus: float | None = None
    cpu_shares: int | None = None
    memory: int | None = None
    shm_size: int | None = None
    ipc: str | None = None
    network: str | None = None
    ulimits: tuple[str, ...] = ()
    """`name=soft[:hard]`."""
    labels: Pairs = ()
    runtime: str | None = None
    """An OCI runtime the engine knows, as after `--runtime`."""
    publish: tuple[str, ...] = ()
    """`[[IP:]HOST:]CONTAINER[/PROTOCOL]`; the host's port may be `auto`."""
    publish_all: bool = False
    expose: tuple[str, ...] = ()
    hostname: str | None = None
    domainname: str | None = None
    add_host: tuple[str, ...] = ()
    """`NAME:ADDRESS`."""
    dns: tuple[str, ...] = ()
    dns_option: tuple[str, ...] = ()
    dns_search: tuple[str, ...] = ()
    network_alias: tuple[str, ...] = ()
    ip: str | None = None
    ip6: str | None = None
    link: tuple[str, ...] = ()
    link_local_ip: tuple[str, ...] = ()
    mac_address: str | None = None
    tmpfs: tuple[str, ...] = ()
    volumes_from: tuple[str, ...] = ()
    volume_driver: str | None = None
    storage_opt: tuple[str, ...] = ()
    read_only: bool = False
    device: tuple[str, ...] = ()
    device_cgroup_rule: tuple[str, ...] = ()
    device_read_bps: tuple[str, ...] = ()
    device_read_iops: tuple[str, ...] = ()
    device_write_bps: tuple[str, ...] = ()
    device_write_iops: tuple[str, ...] = ()
    blkio_weight: int | None = None
    blkio_weight_device: tuple[str, ...] = ()
    privileged: bool = False
    cap_add: tuple[str, ...] = ()
    cap_drop: tuple[str, ...] = ()
    security_opt: tuple[str, ...] = ()
    """A seccomp profile is its JSON, not the name of a file."""
    group_add: tuple[str, ...] = ()
    sysctl: tuple[str, ...] = ()
    pid: str | None = None
    uts: str | None = None
    userns: str | None = None
    cgroupns: str | None = None
    cgroup_parent: str | None = None
    cpuset_cpus: str | None = None
    cpuset_mems: str | None = None
    cpu_period: int | None = None
    cpu_quota: int | None = None
    cpu_rt_period: int | None = None
    cpu_rt_runtime: int | None = None
    """Microseconds, all four."""
    memory_swap: int | None = None
    """Bytes of memory and swap together; -1: no limit of swap."""
    memory_reservation: int | None = None
    memory_swappiness: int | None = None
    oom_kill_disable: bool = False
    oom_score_adj: int | None = None
    pids_limit: int | None = None
    """-1: no limit but the site's."""
    stop_signal: str | None = None
    stop_timeout: int | None = None
    """Seconds between the polite signal and SIGKILL, in place of the site's pause."""
    no_init: bool = False
    """The command is process 1 itself, as some images want it."""
    pull: str | None = None
    """`always`, `missing` or `never`; None: missing."""
    platform: str | None = None
    health_cmd: str | None = None
    health_interval: timedelta | None = None
    health_timeout: timedelta | None = None
    health_start_period: timedelta | None = None
    health_start_interval: timedelta | None = None
    health_retries: int | None = None
    no_healthcheck: bool = False
    log_driver: str | None = None
    """`json-file` or `local`, whose logs can be read."""
    log_opt: tuple[str, ...] = ()
    annotation: tuple[str, ...] = ()


@dataclass(frozen=True)
class LimitWarning:
    """A signal sent to a job some time before its time limit ends it."""

    number: int
    before: timedelta


@dataclass(frozen=True)
class JobSpec:
    """What a user submits. Changed afterwards by `gpu_memory_step`, and by edits while it waits, alone."""

    image: str | None = None
    """None: a host process."""
    command: tuple[str, ...] = ()
    name: str = ""
    tenant: str = ""
    gpus: GpuRequest = GpuRequest()
    priority: int = NORMAL_PRIORITY
    """0 to 100, higher first."""
    nice: int = 0
    time_limit: timedelta | None = None
    retries: int = 0
    backoff: timedelta = DEFAULT_BACKOFF
    """Pause before the first retry; doubled each time."""
    retry_on: tuple[str, ...] = ()
    """Exit codes and words of `policy.retry.RETRY_WORDS`; empty: every failure of the job's own."""
    gpu_memory_step: int | None = None
    """Bytes by which `gpus.memory` grows after each attempt that ran out of GPU memory."""
    warning: LimitWarning | None = None
    """None: the time limit comes unannounced."""
    after: tuple[JobId, ...] = ()
    """Start when all of these COMPLETED (Slurm's afterok)."""
    after_any: tuple[JobId, ...] = ()
    """Start when all of these ended, however."""
    begin_at: datetime | None = None
    preemptible: bool = False
    options: ContainerOptions = ContainerOptions()
    warrant: str = ""
    """`UID/NAME` of the file in which the submitter left image, command and options, in a shared state directory."""

    def runs_as_much_as(self, other: JobSpec) -> bool:
        """Whether both run the same: what a warrant is about."""
        return (self.image, self.command, self.options) == (other.image, other.command, other.options)

    @property
    def is_host(self) -> bool:
        """Whether it runs as a process of the host, without a container."""
        return self.image is None


@dataclass(frozen=True)
class BootTime:
    """A point on the clock that nobody sets: how long the machine has been awake since it was started."""

    boot: str
    """Which start of the machine."""
    seconds: float


@dataclass(frozen=True)
class PublishedPort:
    """A port of a container, and the port of the host that leads to it."""

    container_port: int
    host_port: int
    protocol: str = "tcp"
    host_ip: str = "0.0.0.0"

    def __str__(self) -> str:
        host = f"[{self.host_ip}]" if ":" in self.host_ip else self.host_ip
        return f"{host}:{self.host_port} -> {self.container_port}/{self.protocol}"

    def ssh(self, server: str) -> str | None:
        """Return the command that leads to it from another machine, as http://localhost:PORT; None unless it is TCP."""
        if self.protocol != "tcp":
            return None
        here = self.container_port if self.container_port >= 1024 else self.host_port
        there = "localhost" if self.host_ip in {"0.0.0.0", "::", "127.0.0.1", "::1", ""} else self.host_ip
        return f"ssh -N -L {here}:{there}:{self.host_port} {server}"


@dataclass(frozen=True)
class Attempt:
    """One try at running a job."""

    number: int
    """From 1. A start that was interrupted before a container ran gives its number back."""
    gpus: tuple[str, ...] = ()
    """UUIDs allocated to it."""
    claimed_at: datetime | None = None
    """When the store gave it its GPUs: step (a) of the start protocol."""
    container_id: str | None = None
    """The runtime's handle: a container's full id, or a host attempt's name."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    cause: Cause | None = None
    """Why it ended, unless it ended well."""
    log_path: str | None = None
    """Where its output is kept once it has ended, relative to the state directory."""
    charged: bool = True
    """Whether it counts against the job's retries."""
    notes: tuple[str, ...] = ()
    """What the runtime changed and said so: cpus clamped to the host's, ..."""
    ports: tuple[PublishedPort, ...] = ()
    """Ports published, as the engine chose them at the start."""
    warned_at: datetime | None = None
    """When it was sent the signal that announces its time limit."""
    gpu_share: float = 1.0
    """What of each GPU its tenant is charged with: less than 1 where others may share it."""
    preempted_by: JobId | None = None
    preempted_at: datetime | None = None
    """For which job it was told to make way, and when; it may have ended well before it had to."""
    clock_moved: timedelta = timedelta()
    """Amount by which the clock was set while it ran: applied to its times above, not to those of the runtime."""
    began: BootTime | None = None
    """`started_at` by the clock that nobody sets."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.ended_at is not None


@dataclass(frozen=True)
class ArrayRef:
    """A job's place in an array."""

    id: JobId
    """Id of the array: that of its first element. Before ids are given out: minus one minus the place of the
    first element among the jobs submitted together, which the store turns into the id."""
    index: int
    limit: int | None = None
    """At most so many elements run at once."""


@dataclass(frozen=True)
class Stopping:
    """An attempt on its way out: told to end, and killed when its grace is over."""

    cause: Cause
    at: datetime
    killed_at: datetime | None = None


@dataclass(frozen=True)
class Job:
    """What became of a JobSpec so far. Changed only by making the next Job."""

    id: JobId
    spec: JobSpec
    submitted_at: datetime
    state: JobState = JobState.PENDING
    priority: int = NORMAL_PRIORITY
    """What it is now; `spec.priority` is what it was submitted with."""
    topped_at: datetime | None = None
    """Put at the head of the queue by hand; the latest such wish is first."""
    held: bool = False
    hold_reason: str | None = None
    """None when the user held it; else why the scheduler did."""
    cancel_requested: bool = False
    requeue_requested: bool = False
    not_before: datetime | None = None
    """End of a back-off."""
    started_at: datetime | None = None
    """Of the latest attempt."""
    ended_at: datetime | None = None
    exit_code: int | None = None
    cause: Cause | None = None
    """Why the last attempt ended, unless it ended well."""
    attempts: tuple[Attempt, ...] = ()
    stopping: Stopping | None = None
    array: ArrayRef | None = None
    avoid_gpus: tuple[str, ...] = ()
    """UUIDs of GPUs that failed it."""
    submitted_by: str = ""
    """User name of who submitted it."""
    released_at: datetime | None = None
    """When a user last let it go on: what failed before then no longer keeps its image or tenant waiting."""
    recurring: JobId | None = None
    """Id of the recurring job that submitted it."""
    announced_end_at: datetime | None = None
    """The `ended_at` that hooks have been told of."""

    def to(self, state: JobState, **changes: Any) -> Job:
        """The next Job, in `state`; raises TransitionError when the table forbids it."""
        check_transition(self.state, state)
        return dataclasses.replace(self, state=state, **changes)

    def evolve(self, **changes: Any) -> Job:
        """Return the next Job, in the same state."""
        if not changes.keys() <= _FIELDS:
            raise TypeError(f"a job has no {', '.join(changes.keys() - _FIELDS)}")
        job = object.__new__(Job)  # a fifth of the time of dataclasses.replace: an array has 100,000 elements
        job.__dict__.update(self.__dict__, **changes)
        return job

    def prioritised(self, value: int, *, relative: bool = False) -> Job:
        """The next Job, with that priority or so much more, within 0 to 100; put on top by hand it is no more."""
        wanted = self.priority + value if relative else value
        return self.evolve(priority=min(MAX_PRIORITY, max(0, wanted)), topped_at=None)

    @property
    def shown_id(self) -> str:
        """Return `7`, or `5_19` for element 19 of array 5: as commands take it and lists show it."""
        return str(self.id) if self.array is None else f"{self.array.id}_{self.array.index}"

    @property
    def attempt(self) -> Attempt | None:
        """The attempt under way, or else the last one."""
        return self.attempts[-1] if self.attempts else None

    @property
    def next_attempt(self) -> int:
        """Number of the attempt after the last; a repaired queue may lack some before it."""
        return self.attempts[-1].number + 1 if self.attempts else 1

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs it holds now: none unless an attempt is under way."""
        attempt = self.attempt
        if attempt is None or attempt.is_over or not self.state.is_active:
            return ()
        return attempt.gpus

    @property
    def limit_at(self) -> datetime | None:
        """When its time limit ends the attempt under way; None when nothing does."""
        attempt, limit = self.attempt, self.spec.time_limit
        if limit is None or attempt is None or attempt.started_at is None or attempt.is_over:
            return None
        return attempt.started_at + limit

    @property
    def warning_at(self) -> datetime | None:
        """When the attempt under way is to be warned, or was."""
        warning, limit_at = self.spec.warning, self.limit_at
        return limit_at - warning.before if warning and limit_at else None

    @property
    def charged_attempts(self) -> int:
        """Attempts that count against its retries."""
        return sum(attempt.charged for attempt in self.attempts if attempt.is_over)

    def with_attempt(self, **changes: Any) -> Job:
        """The next Job, whose last attempt has `changes`."""
        last = dataclasses.replace(self.attempts[-1], **changes)
        return dataclasses.replace(self, attempts=(*self.attempts[:-1], last))


_FIELDS = frozenset(each.name for each in dataclasses.fields(Job))


@dataclass(frozen=True)
class Submission:
    """What a face asks for: a spec, and how it is to enter the queue."""

    spec: JobSpec
    held: bool = False
    array: tuple[int, ...] = ()
    """Indices of its elements; empty: one job."""
    array_limit: int | None = None


@dataclass(frozen=True)
class Placement:
    """Decided, not yet acted on: start this job on these GPUs."""

    job_id: JobId
    gpus: tuple[str, ...] = field(default=())
    gpu_share: float = 1.0
    """What of each GPU it is charged with."""


@dataclass(frozen=True)
class Preemption:
    """Decided, not yet acted on: this running job makes way for that waiting one."""

    victim: JobId
    by: JobId
