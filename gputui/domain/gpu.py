"""A GPU: what it is, one reading of it, and how it stands for the scheduler. Unknown is None, never 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum


class GpuState(StrEnum):
    """How a GPU stands. Only FREE may be given to a job; UNKNOWN never reads as free."""

    FREE = "FREE"
    ALLOCATED = "ALLOCATED"
    FOREIGN = "FOREIGN"
    DRAINED = "DRAINED"
    UNKNOWN = "UNKNOWN"


class HealthCode(StrEnum):
    """What is wrong with a GPU, worst first."""

    LOST = "Lost"
    NEEDS_RESET = "NeedsReset"
    XID = "Xid"
    ECC = "Ecc"
    REMAP_FAILED = "RemapFailed"
    REMAP_PENDING = "RemapPending"
    UNKNOWN = "Unknown"
    OK = "Ok"


@dataclass(frozen=True)
class Health:
    """What is wrong with a GPU, in a word for programs and a sentence for people."""

    code: HealthCode = HealthCode.OK
    text: str = ""

    @property
    def is_schedulable(self) -> bool:
        """Whether a job may be started there: a pending row remap or corrected errors do not forbid it."""
        return self.code in {HealthCode.OK, HealthCode.REMAP_PENDING}


@dataclass(frozen=True)
class Link:
    """How a GPU reaches another one on the same host, as `nvidia-smi topo -m` names it."""

    peer: str
    """UUID of the other GPU."""
    kind: str
    """`NVLINK`, or the PCIe path `PIX PXB PHB NODE SYS`, nearest first."""
    lanes: int = 0
    """NVLink lanes between the two; 0 for a PCIe path."""


@dataclass(frozen=True)
class Gpu:
    """What does not change while the driver runs."""

    uuid: str
    """`GPU-…`, or `MIG-…` for an instance."""
    index: int
    """For the eye alone: it shifts when a GPU drops out. Instances carry their parent's."""
    model: str | None = None
    memory_total: int | None = None
    """Bytes."""
    pci_bus_id: str | None = None
    numa_node: int | None = None
    minor: int | None = None
    """The n of /dev/nvidia<n>."""
    links: tuple[Link, ...] = ()
    mig_parent: str | None = None
    """UUID of the GPU this instance is a slice of."""
    mig_profile: str | None = None
    """`1g.10gb` and its kin, for an instance."""
    mig_index: int | None = None
    """Which of its parent's instances it is, as the driver counts them; for the eye alone."""
    mig_enabled: bool = False
    """The GPU is cut into instances: whole-GPU jobs never go there."""
    power_limit: float | None = None
    """Watts."""
    persistence: bool | None = None
    """Whether persistence mode is on; off costs a re-initialisation at every open."""


@dataclass(frozen=True)
class GpuProcess:
    """A process on a GPU, as the driver and /proc tell."""

    pid: int
    """As the driver numbers it: the host's PID namespace."""
    memory: int | None = None
    """Bytes."""
    user: str | None = None
    command: str | None = None
    container_id: str | None = None
    """Full id of the container it is in, read from its cgroup."""
    session: int | None = None
    """Its session id: a host job and all its children share one."""
    attempt: str | None = None
    """`<store>:<job>:<attempt>` from GPUTUI_ATTEMPT in its environment, where that is readable."""
    compute: bool = True
    """Computes, rather than draws a screen."""
    visible: bool = True
    """False when /proc here has no such pid: it lives in another PID namespace."""
    sm: float | None = None
    """0 to 1: the share of time in which it kept the multiprocessors busy; only when asked for."""


@dataclass(frozen=True)
class GpuSample:
    """One reading of one GPU. None means that it could not be read, or that the GPU has no such thing."""

    uuid: str
    sampled_at: datetime
    utilization: float | None = None
    """0 to 1: the share of the last interval in which a kernel ran."""
    memory_utilization: float | None = None
    """0 to 1: the share of time in which memory was read or written."""
    memory_used: int | None = None
    """Bytes, without what the driver keeps for itself where it tells the two apart."""
    memory_total: int | None = None
    temperature: float | None = None
    """Degrees Celsius."""
    power: float | None = None
    power_limit: float | None = None
    """Watts, both."""
    sm_clock: int | None = None
    memory_clock: int | None = None
    """MHz, both."""
    fan: float | None = None
    """0 to 1."""
    throttle: tuple[str, ...] = ()
    """Why clocks are held down, in words; empty when they are not."""
    processes: tuple[GpuProcess, ...] | None = None
    """None when the list could not be read: then the GPU is not known to be free."""
    processes_at: datetime | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    """Volatile counts: since the driver was loaded."""
    xid: int | None = None
    """The last Xid event seen since the probe began."""
    pcie_tx: float | None = None
    pcie_rx: float | None = None
    """Bytes a second; only when asked for."""
    nvlink_tx: float | None = None
    nvlink_rx: float | None = None
    """Bytes of data a second over all its NVLinks; only when asked for."""
    health: Health = Health()


class ProbeCode(StrEnum):
    """How the probe stands."""

    OK = "Ok"
    STARTING = "Starting"
    NO_LIBRARY = "NoLibrary"
    DRIVER_MISMATCH = "DriverMismatch"
    DRIVER_NOT_LOADED = "DriverNotLoaded"
    NO_PERMISSION = "NoPermission"
    COUNT_FAILED = "CountFailed"
    NO_GPUS = "NoGpus"
    WEDGED_AT_START = "WedgedAtStart"
    WEDGED = "Wedged"
    DIED = "Died"
    FAILED = "Failed"
    UNKNOWN_ERROR = "UnknownError"
    BLOCKED = "Blocked"
    RESET_REQUIRED = "ResetRequired"
    GPU_LOST = "GpuLost"


@dataclass(frozen=True)
class ProbeStatus:
    """How the probe stands, in a word and in a sentence that says what to do."""

    code: ProbeCode = ProbeCode.STARTING
    text: str = "the first reading has not come yet"
    since: datetime | None = None


@dataclass(frozen=True)
class ProbeReading:
    """Everything the probe knows now."""

    status: ProbeStatus = ProbeStatus()
    gpus: tuple[Gpu, ...] = ()
    """In the driver's order, instances after their parents; a lost GPU keeps its place and its index."""
    samples: Mapping[str, GpuSample] = field(default_factory=dict)
    """By UUID. A GPU whose last sweep failed keeps its last sample, which ages."""
    taken_at: datetime | None = None
    """When the last whole sweep came in."""
    driver_version: str | None = None
    notes: tuple[str, ...] = ()
    """Plain sentences: persistence mode off, another PID namespace, ..."""
    cuda_version: str | None = None
    """The newest CUDA that the driver supports, such as 12.8."""


@dataclass(frozen=True)
class Holder:
    """Who or what is on a GPU."""

    kind: str
    """`job`, `container` or `process`."""
    name: str
    """The job's or container's name, or the command of the process."""
    user: str | None = None
    pid: int | None = None
    container_id: str | None = None
    memory: int | None = None
    """Bytes; None when the driver does not say."""
    image: str | None = None
    """The image of a container that is not gputui's."""


@dataclass(frozen=True)
class Sharer:
    """A job on a GPU that it shares."""

    job_id: int
    memory: int
    """Bytes it counts with: what it was promised, or what it really uses where that is more."""


@dataclass(frozen=True)
class Drain:
    """An operator's word that a GPU is to take no further jobs."""

    reason: str
    by: str
    at: datetime


@dataclass(frozen=True)
class GpuView:
    """One row of the grid: a GPU, its last reading, and how it stands."""

    gpu: Gpu
    state: GpuState
    health: Health
    why: str = ""
    """Why it is not free, in words; empty when it is."""
    sample: GpuSample | None = None
    age: timedelta | None = None
    """Of the sample; None when there is none."""
    stale: bool = False
    """The sample is too old to be believed."""
    job_id: int | None = None
    """The first of the jobs that hold it."""
    holders: tuple[Holder, ...] = ()
    drain: Drain | None = None
    job_ids: tuple[int, ...] = ()
    """All jobs that hold it: several only where all of them share."""
    sharers: tuple[Sharer, ...] = ()
    """The same, if they share it."""
    closed: str = ""
    """Why no further job may share it now, in words; empty when one may."""

    @property
    def is_stopped_by_xid(self) -> bool:
        """Whether a fatal Xid keeps jobs off it, which an operator's resume clears."""
        return self.health.code is HealthCode.XID
