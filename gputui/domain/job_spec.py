"""Specification of a job: image, command, GPUs, limits and options, as its user gave them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TypeAlias

from msgspec import Struct

Pairs: TypeAlias = tuple[tuple[str, str], ...]
"""A mapping of strings, in order and frozen."""


class ContainerOptions(Struct, frozen=True):
    """Options of `docker run`, under the same names; sizes in bytes."""

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
    """Limits, each `name=soft[:hard]`."""
    labels: Pairs = ()
    runtime: str | None = None
    """An OCI runtime that the engine knows, as after `--runtime`."""
    publish: tuple[str, ...] = ()
    """`[[IP:]HOST:]CONTAINER[/PROTOCOL]`; the host's port may be `auto`."""
    publish_all: bool = False
    expose: tuple[str, ...] = ()
    hostname: str | None = None
    domainname: str | None = None
    add_host: tuple[str, ...] = ()
    """Host entries, each `NAME:ADDRESS`."""
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
    """Security options; a seccomp profile is its JSON, not a file name."""
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
    """CPU period, quota, and real-time period and runtime, all in microseconds."""
    memory_swap: int | None = None
    """Bytes of memory and swap together; -1: swap is not limited."""
    memory_reservation: int | None = None
    memory_swappiness: int | None = None
    oom_kill_disable: bool = False
    oom_score_adj: int | None = None
    pids_limit: int | None = None
    """Maximum number of processes; -1: no limit except the site's."""
    stop_signal: str | None = None
    stop_timeout: int | None = None
    """Seconds between the stop signal and SIGKILL, in place of the site's setting."""
    no_init: bool = False
    """The command is process 1 itself, as some images require."""
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


EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - what Docker publishes a port on unless told otherwise


class PublishedPort(Struct, frozen=True):
    """A port of a container, and the host port that is forwarded to it."""

    container_port: int
    host_port: int
    protocol: str = "tcp"
    host_ip: str = EVERY_ADDRESS

    def __str__(self) -> str:
        host = f"[{self.host_ip}]" if ":" in self.host_ip else self.host_ip
        return f"{host}:{self.host_port} -> {self.container_port}/{self.protocol}"

    def ssh(self, server: str) -> str | None:
        """Return the command that forwards it to another machine as http://localhost:PORT; None unless it is TCP."""
        if self.protocol != "tcp":
            return None
        here = self.container_port if self.container_port >= 1024 else self.host_port
        there = "localhost" if self.host_ip in {EVERY_ADDRESS, "::", "127.0.0.1", "::1", ""} else self.host_ip
        return f"ssh -N -L {here}:{there}:{self.host_port} {server}"


JobId: TypeAlias = int

NORMAL_PRIORITY = 50
MAX_PRIORITY = 100
MAX_NAME = 128
MAX_TENANT = 64
MAX_BYTES = 128 * 1024 - 1
"""Maximum bytes of any text: Linux's own limit of one argument or environment string."""
MAX_NUMBER = 2**53
"""The largest whole number that every JSON parser keeps exactly."""
MAX_ELEMENTS = 100_000
"""Maximum number of elements of an array."""
MAX_SIGNAL = 64
"""The highest number of a signal."""
CLASSES = ("low", "normal", "high")
DEFAULT_BACKOFF = timedelta(seconds=5)


def whole_class(priority: int) -> int:
    """Return 0, 1 or 2 for low, normal or high: low up to 25, high from 75."""
    return min(2, max(0, round(priority / NORMAL_PRIORITY)))


class GpuRequest(Struct, frozen=True):
    """Request for a number of GPUs, or for particular ones. `minimum` 0 means none."""

    minimum: int = 0
    maximum: int = 0
    devices: tuple[str, ...] = ()
    """UUIDs or indices named by the user; empty when any will do."""
    everything: bool = False
    """True if all GPUs of the node are requested, however many there are."""
    memory: int | None = None
    """Bytes each GPU must have in total."""
    model: str | None = None
    """Part of the model's name, compared without case."""
    free_memory: int | None = None
    """Bytes each GPU must have free when it is assigned."""
    share: bool = False
    """Allows other jobs that share to use its GPUs; `memory` is then its promised memory of each."""
    capabilities: tuple[str, ...] = ()
    """NVIDIA driver capabilities named after `--gpus`; empty: the image or NVIDIA_DRIVER_CAPABILITIES decides."""
    driver: str | None = None
    driver_options: Pairs = ()
    """The fields `driver=` and `options=` of `--gpus`, passed to the engine unchanged."""

    @property
    def promised(self) -> int:
        """Promised bytes of each shared GPU; 0: it does not share its GPUs."""
        return (self.memory or 0) if self.share else 0


class LimitWarning(Struct, frozen=True):
    """A signal sent to a job some time before its time limit ends it."""

    number: int
    before: timedelta


class Interactive(Struct, frozen=True):
    """Streams of an interactive job."""

    stdin: bool = False
    """True if its standard input stays open for attached clients."""
    tty: bool = False
    """True if it has a terminal."""


class Inherited(Struct, frozen=True):
    """What a host job takes over from the process that submitted it, as in sbatch."""

    umask: int
    limits: tuple[tuple[str, int], ...] = ()
    """Soft limits by name, as in `--ulimit`; -1: unlimited."""


class JobSpec(Struct, frozen=True):
    """Job as its user specified it. Changes later only by `gpu_memory_step`, and by edits while it waits."""

    image: str | None = None
    """Image of the container; None for a host process."""
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
    """Exit codes and words of `policy.retry.RETRY_WORDS`; empty: every failure of the job itself."""
    gpu_memory_step: int | None = None
    """Bytes by which `gpus.memory` grows after each attempt that ran out of GPU memory."""
    warning: LimitWarning | None = None
    """Signal before the time limit; None: there is no warning."""
    after: tuple[JobId, ...] = ()
    """Start when all of these COMPLETED (Slurm's afterok)."""
    after_any: tuple[JobId, ...] = ()
    """Start when all of these have ended, in any state."""
    begin_at: datetime | None = None
    preemptible: bool = False
    interactive: Interactive | None = None
    """Streams to attach to; None: not interactive, with empty standard input."""
    idle_timeout: timedelta | None = None
    """End the job after this long without input, output or use of its GPUs."""
    inherited: Inherited | None = None
    """None: it has the umask and the limits of its scheduler; so have containers theirs of the engine."""
    options: ContainerOptions = ContainerOptions()
    comment: str = ""
    """Note for people; without effect."""
    warrant: str = ""
    """Not empty in a job of a time when a group wrote the queue, of which it proved the submitter."""

    sweep: Pairs = ()
    """Names and values of a parameter sweep, as written; the array's indices stand for their combinations."""

    @property
    def what_runs(self) -> JobSpec:
        """Fields that decide what is run."""
        return JobSpec(
            image=self.image, command=self.command, inherited=self.inherited, options=self.options, sweep=self.sweep
        )

    @property
    def is_host(self) -> bool:
        return self.image is None

    def runtime_in(self, present: Iterable[str]) -> str:
        return runtime_in(present, is_host=self.is_host)


RUNTIMES: Mapping[str, bool] = {"docker": False, "process": True}
"""Runtimes by name, each with whether it runs host jobs; the others run jobs with an image."""


def runtime_in(present: Iterable[str], *, is_host: bool) -> str:
    """Return the name of the runtime among these that runs host jobs, or jobs with an image; empty if none does."""
    return next((name for name in present if RUNTIMES.get(name) is is_host), "")


class Submission(Struct, frozen=True):
    """Request to submit: a spec, and how it enters the queue."""

    spec: JobSpec
    held: bool = False
    array: tuple[int, ...] = ()
    """Indices of its elements; empty: a single job."""
    array_limit: int | None = None


_BITS = 56
"""Bits of an id on its server, where Slurm's elements of arrays need 50; above them stand its number and name."""
_OWN = (1 << _BITS) - 1
MOST_SERVERS = 255
"""Maximum number of servers."""
LONGEST_SERVER = 24
"""Maximum number of bytes of a server's name; all ids have room for it, so that they are in the order of servers."""


def shared_id(number: int, name: str, own: JobId) -> JobId:
    """Return the id in this console of a job on the server with that number (1 to MOST_SERVERS) and name."""
    return int.from_bytes(bytes([number]) + name.encode().ljust(LONGEST_SERVER, b"\0"), "big") << _BITS | own


def own_id(job_id: JobId) -> JobId:
    return job_id & _OWN if job_id > _OWN else job_id


def server_of(job_id: JobId) -> str:
    if job_id <= _OWN:
        return ""
    return (job_id >> _BITS).to_bytes(LONGEST_SERVER + 1, "big")[1:].rstrip(b"\0").decode(errors="replace")


def shown_id(job_id: JobId) -> str:
    """Return the displayed id: `17`, or `gpu1:17` for a job on the server gpu1."""
    if job_id <= _OWN:
        return str(job_id)
    return f"{server_of(job_id)}:{job_id & _OWN}"


def without_server(shown: str) -> str:
    """Return a displayed id without its server: `5_[0-9]` of `gpu1:5_[0-9]`."""
    return shown.rpartition(":")[2]
