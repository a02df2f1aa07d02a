"""GPUs and their host: properties, readings, health, faults, and state for the scheduler. Unknown is None, never 0."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.errors import NotFoundError
from gputui.domain.job_spec import JobId
from gputui.domain.telemetry import Consumption
from gputui.domain.text import plain, ranges

STATE, DOCKER = "state", "docker"
"""Roles of a disk: it holds the state directory, or the engine's images and containers."""
ALMOST_FULL = 0.97
"""Used share of a disk from which it is a problem."""
FULL_SOON = timedelta(hours=1)
"""A disk that will be full within this time is a problem."""


class DiskUse(Struct, frozen=True):
    """Use of a file system that jobs need."""

    mount: str
    """Mount point."""
    roles: tuple[str, ...]
    """Roles of the disk: `state`, `docker`."""
    total: int
    """Bytes for ordinary users, used and free together, as `df` counts them for its percentage."""
    free: int
    """Free bytes for ordinary users."""
    full_in: timedelta | None = None
    """Time until it is full at the current rate; None: it does not fill up, or only after days."""

    @property
    def used(self) -> float:
        return 1 - self.free / self.total if self.total else 1.0


class HostFigures(Struct, frozen=True):
    """Figures of the host itself, regardless of limits of the container or control group that gputui runs in."""

    cpu: float | None = None
    """Busy share of all processors since the previous reading, 0 to 1."""
    cores: int | None = None
    """Number of processors that are online."""
    load: float | None = None
    """Load average of one minute."""
    memory_total: int | None = None
    memory_used: int | None = None
    """Bytes in use that are not available to new programs without swapping: total minus available."""
    swap_total: int | None = None
    swap_used: int | None = None
    received: float | None = None
    sent: float | None = None
    """Bytes per second over all physical interfaces; None where there is none, as in a container."""


class HostSample(HostFigures, frozen=True, kw_only=True):
    """Reading of the host at one moment."""

    sampled_at: datetime
    disks: tuple[DiskUse, ...] = ()


class GpuState(StrEnum):
    """State of a GPU. Only FREE may be given to a job; UNKNOWN never counts as free."""

    FREE = "FREE"
    ALLOCATED = "ALLOCATED"
    FOREIGN = "FOREIGN"
    DRAINED = "DRAINED"
    UNKNOWN = "UNKNOWN"


class HealthCode(StrEnum):
    """Health problems of a GPU, worst first."""

    LOST = "Lost"
    NEEDS_RESET = "NeedsReset"
    XID = "Xid"
    ECC = "Ecc"
    REMAP_FAILED = "RemapFailed"
    REMAP_PENDING = "RemapPending"
    UNKNOWN = "Unknown"
    OK = "Ok"


class Health(Struct, frozen=True):
    """Health of a GPU: a code for programs and a sentence for people."""

    code: HealthCode = HealthCode.OK
    text: str = ""

    @property
    def is_schedulable(self) -> bool:
        """Return whether jobs may start there; a pending row remap or corrected errors do not prevent it."""
        return self.code in {HealthCode.OK, HealthCode.REMAP_PENDING}

    @property
    def reason(self) -> str:
        """Return the sentence for a place that names the code too: without the word `lost`."""
        return self.text.removeprefix("lost: ")


class Link(Struct, frozen=True):
    """Connection between two GPUs of a host, as `nvidia-smi topo -m` names it."""

    peer: str
    """UUID of the other GPU."""
    kind: str
    """`NVLINK`, or the PCIe path `PIX PXB PHB NODE SYS`, nearest first."""
    lanes: int = 0
    """NVLink lanes between the two; 0 for a PCIe path."""


class Gpu(Struct, frozen=True):
    """Properties of a GPU that do not change while the driver runs."""

    uuid: str
    """`GPU-…`, or `MIG-…` for an instance; in a cluster `NODE:INDEX`, since its engine knows no UUID."""
    index: int
    """Index for display only: it shifts when a GPU drops out. MIG instances carry their parent's; in a cluster the
    engine's."""
    model: str | None = None
    memory_total: int | None = None
    """Total memory in bytes."""
    pci_bus_id: str | None = None
    numa_node: int | None = None
    minor: int | None = None
    """The n of /dev/nvidia<n>."""
    links: tuple[Link, ...] = ()
    mig_parent: str | None = None
    """UUID of the GPU that this instance is a part of."""
    mig_profile: str | None = None
    """Profile of an instance, such as `1g.10gb`."""
    mig_index: int | None = None
    """Number of a MIG instance within its parent, as the driver counts; for display only."""
    mig_enabled: bool = False
    """True if the GPU is divided into instances; jobs for whole GPUs never start on it."""
    power_limit: float | None = None
    default_power_limit: float | None = None
    """Power limit in watts, and the one that the board has without anybody's settings."""
    unified: bool = False
    """True if it has no memory of its own but uses the machine's, which `memory_total` is then."""
    persistence: bool | None = None
    """True if persistence mode is on; without it the driver re-initialises the GPU at every open."""
    drivers_uuid: str | None = None
    """The driver's UUID of a GPU that `uuid` only names by its node; None where that is the UUID, or nobody read it."""

    @property
    def known_uuid(self) -> str:
        """Return the driver's UUID; empty for a GPU of a node that nobody has read."""
        return self.drivers_uuid or ("" if ":" in self.uuid else self.uuid)

    @property
    def shown_uuid(self) -> str:
        return self.drivers_uuid or self.uuid


ALL_SHARES = "GPU-all"
"""Replaces a UUID to request the processes' shares of all GPUs, without throughput."""


class GpuProcess(Struct, frozen=True):
    """A process on a GPU, as reported by the driver and /proc."""

    pid: int
    """Process id in the host's PID namespace, as the driver reports it."""
    memory: int | None = None
    """GPU memory in bytes."""
    user: str | None = None
    command: str | None = None
    container_id: str | None = None
    """Full id of the container it is in, read from its cgroup."""
    session: int | None = None
    """Session id, which a host job and all its children share."""
    attempt: str | None = None
    """`<store>:<job>:<attempt>` from GPUTUI_ATTEMPT in its environment, where that is readable."""
    compute: bool = True
    """True for a compute process, False for a graphics one."""
    visible: bool = True
    """False when /proc here has no such pid: the process is in another PID namespace."""
    sm: float | None = None
    """0 to 1: the share of time in which it kept the multiprocessors busy; only when asked for."""
    ticks: int | None = None
    """Start time in clock ticks since boot, which distinguishes it from a later process with the same pid."""
    started_at: datetime | None = None
    used: Consumption | None = None
    """Use of the machine by its container or its job of Slurm, on nodes of a cluster; read every few seconds."""
    used_age: float = 0.0
    """Seconds from that reading to the sample's of processes."""

    def is_any_of(self, programs: Collection[str]) -> bool:
        """Return whether it runs one of these programs: its name, with or without a directory, or the whole command."""
        command = self.command or ""
        name = command.partition(" ")[0]
        return bool(command) and any(
            each == command or (each if " " in each else each.rpartition("/")[2]) == name for each in programs
        )


CAP = "power cap"
"""Reason for throttling that an operator has set."""
HARMLESS = frozenset({"sync boost", "display clock"})
"""Reasons for throttling by design: the clocks follow those of another GPU or of a display."""


class GpuFigures(Struct, frozen=True, kw_only=True):
    """Figures of one GPU that every sweep reads. None: could not be read, or the GPU does not have it."""

    utilization: float | None = None
    """0 to 1: the share of the last interval in which a kernel ran."""
    memory_utilization: float | None = None
    """0 to 1: the share of time in which memory was read or written."""
    memory_used: int | None = None
    """Bytes in use, without the driver's own reserve where it reports that separately."""
    memory_total: int | None = None
    temperature: float | None = None
    """Temperature in degrees Celsius."""
    power: float | None = None
    """Power draw in watts."""
    sm_clock: int | None = None
    memory_clock: int | None = None
    """SM clock and memory clock in MHz."""
    lists_processes: bool = True
    """False if the driver has no list of processes at all, as under WSL 2."""
    pcie_tx: float | None = None
    pcie_rx: float | None = None
    """Bytes per second; only when asked for."""
    nvlink_tx: float | None = None
    nvlink_rx: float | None = None
    """Bytes of data per second over all its NVLinks; only when asked for."""


class GpuSample(GpuFigures, frozen=True):
    """Reading of one GPU. None: the value could not be read, or the GPU does not have it."""

    uuid: str
    sampled_at: datetime
    sm_activity: float | None = None
    """0 to 1: share of time in which the multiprocessors were busy; from Hopper on."""
    memory_activity: float | None = None
    """0 to 1: share of the memory bandwidth in use; from Hopper on."""
    memory_free: int | None = None
    """Bytes that can still be allocated, where others than GPUs use the memory too; else None."""
    power_limit: float | None = None
    """Power limit in watts."""
    fan: float | None = None
    """Fan speed, 0 to 1."""
    throttle: tuple[str, ...] = ()
    """Reasons why clocks are throttled; empty when they are not.

    `CAP` only where the power limit is set below the board's own: every board that is well used is at its own.
    """
    processes: tuple[GpuProcess, ...] | None = None
    """Processes on the GPU. None when the list could not be read, so that the GPU is not known to be free."""
    processes_at: datetime | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    """Volatile counts: since the driver was loaded."""
    xid: int | None = None
    """The last Xid event seen since the probe began."""
    health: Health = Health()

    @property
    def slowed(self) -> tuple[str, ...]:
        """Reasons for throttling that somebody could remedy: faults, and a power limit."""
        return tuple(reason for reason in self.throttle if reason not in HARMLESS)

    @property
    def has_slowing_fault(self) -> bool:
        """Return whether it is slowed by its hardware, its heat or its power supply."""
        return any(reason != CAP for reason in self.slowed)


class ProbeCode(StrEnum):
    """State of the probe."""

    OK = "Ok"
    STARTING = "Starting"
    NO_LIBRARY = "NoLibrary"
    DRIVER_MISMATCH = "DriverMismatch"
    DRIVER_NOT_LOADED = "DriverNotLoaded"
    NO_PERMISSION = "NoPermission"
    COUNT_FAILED = "CountFailed"
    NO_GPUS = "NoGpus"
    NO_PROBE = "NoProbe"
    WEDGED_AT_START = "WedgedAtStart"
    WEDGED = "Wedged"
    SLOW = "Slow"
    DIED = "Died"
    FAILED = "Failed"
    UNKNOWN_ERROR = "UnknownError"
    BLOCKED = "Blocked"
    RESET_REQUIRED = "ResetRequired"
    GPU_LOST = "GpuLost"
    UNREACHABLE = "Unreachable"
    """The probe of a node cannot be started, or its output cannot be used."""


class ProbeStatus(Struct, frozen=True):
    """State of the probe: a code, and a sentence that says what to do."""

    code: ProbeCode = ProbeCode.STARTING
    text: str = "the first reading has not come yet"
    since: datetime | None = None
    hint: str = ""
    """Advice, with which the text ends, in parentheses; empty: the advice that belongs to the code."""


NO_PROBE = ProbeStatus(ProbeCode.NO_PROBE, "no readings: no probe on this node")
"""State of a node of a cluster whose GPUs nobody reads: no fault."""


class ProbeReading(Struct, frozen=True):
    """Latest data of the probe."""

    status: ProbeStatus = ProbeStatus()
    gpus: tuple[Gpu, ...] = ()
    """GPUs in the driver's order, instances after their parents; a lost GPU keeps its place and its index."""
    samples: Mapping[str, GpuSample] = field(default_factory=dict)
    """Latest sample by UUID. A GPU whose last sweep failed keeps its older sample."""
    taken_at: datetime | None = None
    """Time of the last complete sweep."""
    driver_version: str | None = None
    notes: tuple[str, ...] = ()
    """Plain sentences: persistence mode off, another PID namespace, ..."""
    cuda_version: str | None = None
    """The newest CUDA that the driver supports, such as 12.8."""
    host: HostSample | None = None
    machine: str = ""
    """Name of the machine that these are readings of, if it is another; empty: this one."""


class Holder(Struct, frozen=True):
    """Occupant of a GPU: a job, a container or a process."""

    kind: str
    """`job`, `container` or `process`."""
    name: str
    """The job's or container's name, or the command of the process."""
    user: str | None = None
    pid: int | None = None
    container_id: str | None = None
    memory: int | None = None
    """Bytes; None when the driver does not report them."""
    image: str | None = None
    """The image of a foreign container."""
    job_id: int | None = None
    """Job that a process belongs to which does not hold the GPU; its name is that of the job."""
    since: datetime | None = None
    """Start of the job's attempt, the container or the process; None: unknown."""


class Sharer(Struct, frozen=True):
    """A job on a GPU that it shares."""

    job_id: int
    memory: int
    """Bytes that it counts with: its promised memory, or its actual use if that is more."""


class Drain(Struct, frozen=True):
    """An operator's decision that a GPU takes no further jobs."""

    reason: str
    by: str
    at: datetime


class GpuView(Struct, frozen=True):
    """GPU with its last reading and its state: a row of the grid."""

    gpu: Gpu
    state: GpuState
    health: Health
    why: str = ""
    """Reason why it is not free; empty when it is."""
    sample: GpuSample | None = None
    age: timedelta | None = None
    """Age of the sample; None without one."""
    stale: bool = False
    """True if the sample is too old to be used."""
    job_id: int | None = None
    """The first of the jobs that hold it."""
    holders: tuple[Holder, ...] = ()
    drain: Drain | None = None
    job_ids: tuple[int, ...] = ()
    """Jobs that hold the GPU: several only where all of them share."""
    sharers: tuple[Sharer, ...] = ()
    """Jobs that share it, with the memory that each counts with; empty unless it is shared."""
    closed: str = ""
    """Reason why no further job may share it now; empty when one may."""
    process_jobs: Mapping[int, int] = field(default_factory=dict)
    """Job by pid, for processes that belong to a job."""
    trespassers: tuple[int, ...] = ()
    """Jobs that use the GPU without holding it."""
    idle_since: datetime | None = None
    """Time since which its jobs, or the foreign processes on it, have left it idle; None: not for long, or unknown."""

    @property
    def foreign(self) -> tuple[Holder, ...]:
        return tuple(each for each in self.holders if each.kind != "job")

    @property
    def foreign_since(self) -> datetime | None:
        """The earliest start of what is foreign on it; None: there is nothing, or it is unknown."""
        return min((each.since for each in self.foreign if each.since), default=None)

    @property
    def current(self) -> GpuSample | None:
        """The sample if it describes the GPU as it is now; None if it is too old, or the GPU is lost."""
        return None if self.stale or self.health.code is HealthCode.LOST else self.sample

    @property
    def is_stopped_by_xid(self) -> bool:
        """Return whether a fatal Xid keeps jobs off it until an operator resumes it."""
        return self.health.code is HealthCode.XID


LEAST = 12
"""Minimum length of a short form: `GPU-` and the first group of the rest."""


def short_names(uuids: Iterable[str], least: int = LEAST) -> Mapping[str, str]:
    """Return the beginnings of the UUIDs, all of one length: at least `least` characters, more if needed to differ."""
    known = list(dict.fromkeys(uuids))
    longest = max(map(len, known), default=0)
    differing = (size for size in range(least, longest) if len({uuid[:size] for uuid in known}) == len(known))
    length = next(differing, longest)
    return {uuid: uuid[:length] for uuid in known}


def find_gpu(uuids: Sequence[str], name: str) -> str:
    """Return the UUID for an index, a UUID or its unambiguous beginning; raises NotFoundError.

    `uuids` are in the order of their indices.
    """
    if name.isascii() and name.isdigit() and int(name) < len(uuids):
        return uuids[int(name)]
    matches = [uuid for uuid in uuids if uuid == name or (len(name) >= 6 and uuid.startswith(name))]
    if len(matches) != 1:
        raise NotFoundError(f"no GPU {name!r}" if not matches else f"{name!r} begins the UUID of several GPUs")
    return matches[0]


def index_of(view: GpuView) -> str:
    """Return the displayed index; for a MIG instance its GPU's and its own: `0m2`."""
    gpu = view.gpu
    if not gpu.mig_parent:
        return str(gpu.index)
    return f"{gpu.index}m{'' if gpu.mig_index is None else gpu.mig_index}"


def index_ranges(indices: Sequence[str]) -> str:
    """Return `0-3,6` for 0, 1, 2, 3 and 6; those of MIG instances come last."""
    numbers = ranges(sorted(int(index) for index in indices if index.isdigit()))
    return ",".join([*filter(None, [numbers]), *(index for index in indices if not index.isdigit())])


# Fatal Xids outlive the scheduler that saw them, since the driver does not report them again to the next one. A GPU
# that reported one takes no job until a reset is detected, or an operator resumes it.
class GpuFault(Struct, frozen=True):
    """A fatal Xid of a GPU, and the signs by which a later reset is detected."""

    text: str
    """Description of the Xid."""
    at: datetime
    boot: str = ""
    """Boot id of the machine at the time of the report; after another boot all GPUs have been reset."""
    asks_reset: bool = False
    """True if the driver asked for a reset afterwards; once it no longer asks, there was one."""
    has_ecc: bool = False
    """True if there were uncorrected memory errors; a reset clears their count."""


def with_faults(reading: ProbeReading, faults: Mapping[str, GpuFault]) -> ProbeReading:
    """Return the reading with faulty GPUs marked sick, even if the driver no longer reports the fault."""
    hidden = {
        uuid: replace(sample, health=Health(HealthCode.XID, fault.text))
        for uuid, fault in faults.items()
        if (sample := reading.samples.get(uuid)) is not None and sample.health.is_schedulable
    }
    return replace(reading, samples=MappingProxyType({**reading.samples, **hidden})) if hidden else reading


class FaultEvidence(Struct, frozen=True):
    """Current knowledge about GPUs and the machine."""

    samples: Mapping[str, GpuSample]
    resumed: Mapping[str, datetime]
    """Times by UUID of operators' resumes."""
    boot: str
    now: datetime
    live: frozenset[str] = frozenset()
    """GPUs whose fault the running probe reported itself; it detects resets."""


def judged(faults: Mapping[str, GpuFault], seen: FaultEvidence) -> Mapping[str, GpuFault]:
    """Return the current faults: new ones added, resolved ones removed; the same object if unchanged."""
    found = {}
    for uuid, fault in faults.items():
        resumed_at, sample = seen.resumed.get(uuid), seen.samples.get(uuid)
        is_over = resumed_at is not None and resumed_at >= fault.at
        is_over = is_over or bool(fault.boot and seen.boot and fault.boot != seen.boot)
        if not is_over and sample is not None and sample.health.is_schedulable:
            is_over = uuid in seen.live or fault.asks_reset or (fault.has_ecc and sample.ecc_uncorrected == 0)
        if not is_over:
            found[uuid] = fault
    for uuid in reported(seen):
        found.setdefault(uuid, GpuFault(seen.samples[uuid].health.text, seen.now, seen.boot))
    for uuid, fault in found.items():
        if (sample := seen.samples.get(uuid)) is not None:
            asks_reset = fault.asks_reset or sample.health.code is HealthCode.NEEDS_RESET
            found[uuid] = replace(fault, asks_reset=asks_reset, has_ecc=fault.has_ecc or bool(sample.ecc_uncorrected))
    return faults if found == dict(faults) else found


def reported(seen: FaultEvidence) -> Iterable[str]:
    """Return the GPUs that report a fatal Xid now and were not resumed before the reading."""
    for uuid, sample in seen.samples.items():
        resumed_at = seen.resumed.get(uuid)
        if sample.health.code is HealthCode.XID and (resumed_at is None or sample.sampled_at > resumed_at):
            yield uuid


LOST, SICK, NOT_READ = "lost", "sick", "not read"
TRESPASS = "used without being held"
_USABLE = frozenset({HealthCode.OK, HealthCode.UNKNOWN, HealthCode.REMAP_PENDING})


def fault_of(view: GpuView) -> str:
    """Return `lost`, `sick` or `not read`; empty if the GPU is fine."""
    if view.health.code is HealthCode.LOST or view.gpu.index < 0:
        return LOST
    if view.health.code not in _USABLE:
        return SICK
    return NOT_READ if view.stale else ""


def faulty_gpus(views: Iterable[GpuView]) -> Mapping[JobId, str]:
    """Return `GPU 4 lost`, or `GPU 0,4-5 lost, GPU 7 sick`, for each job that holds lost or sick GPUs.

    Also `GPU 3 used without being held` for a job that uses GPUs which it does not hold.
    """
    found: dict[JobId, dict[str, list[str]]] = {}
    for view in views:
        for job_id in view.trespassers:
            found.setdefault(job_id, {}).setdefault(TRESPASS, []).append(_name(view))
        if (fault := fault_of(view)) in {LOST, SICK}:
            for job_id in view.job_ids or (() if view.job_id is None else (view.job_id,)):
                found.setdefault(job_id, {}).setdefault(fault, []).append(_name(view))
    return {
        job_id: ", ".join(f"GPU {index_ranges(names[kind])} {kind}" for kind in (LOST, SICK, TRESPASS) if kind in names)
        for job_id, names in found.items()
    }


def _name(view: GpuView) -> str:
    """Return the index, or the beginning of the UUID if the driver does not list the GPU."""
    return index_of(view) if view.gpu.index >= 0 else plain(view.gpu.uuid, 12)
