"""Readings of the probe process: its lines as decoded, bounded, judged and assembled into one ProbeReading."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import asdict, replace

from gputui.domain.decoding import JsonDecoder, json_decoder
from gputui.domain.gpu import (
    CAP,
    DiskUse,
    Gpu,
    GpuFigures,
    GpuProcess,
    GpuSample,
    Health,
    HealthCode,
    HostFigures,
    HostSample,
    ProbeCode,
    ProbeReading,
    ProbeStatus,
)
from gputui.domain.gpu_history import Steady
from gputui.domain.text import plural


class GpuFacts(Gpu, frozen=True, kw_only=True):
    """Constant facts of a GPU or MIG instance, whose index is the driver's."""

    error: str = ""


class SlowReadings(Struct, frozen=True):
    """Readings that seldom change."""

    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery: int | None = None
    power_limit: float | None = None
    fan: float | None = None


class Reading(GpuFigures, frozen=True, kw_only=True):
    """Reading of one GPU in one sweep."""

    uuid: str
    error: str = ""
    unidentified: str = ""
    """Why no job can be given a GPU whose values are read; empty if its UUID is its own."""
    throttle: int | None = None
    sm_activity: float | UnsetType | None = UNSET
    memory_activity: float | UnsetType | None = UNSET
    """Means since the last sweep that read them; unset if this one did not."""
    slow: SlowReadings | None = None
    processes: tuple[GpuProcess, ...] | UnsetType | None = UNSET
    """Processes; unset if this sweep read no lists, None if this list could not be read."""


class HostReading(HostFigures, frozen=True):
    """Reading of the host in one sweep; rates are missing in the first."""

    disks: tuple[DiskUse, ...] | UnsetType = UNSET
    """Disks; unset if none was read since the last reading."""


class Facts(Struct, tag="facts", tag_field="kind"):
    """List of all GPUs, with driver and CUDA versions."""

    gpus: tuple[GpuFacts, ...]
    driver: str | None = None
    cuda: int | None = None
    """CUDA version as NVML numbers it: 12080 is 12.8."""


class Sweep(Struct, tag="sweep", tag_field="kind"):
    """Sweep over all GPUs."""

    samples: tuple[Reading, ...] = ()
    xids: tuple[tuple[str | None, int], ...] = ()
    lists: bool = False
    hosts_pids: bool = True
    host: HostReading | None = None
    """Reading of the host; None in a sweep without lists, and from a probe of an earlier version."""
    clock: float | None = None
    """Time on the clock of the probe's machine, in seconds since 1970; None as for `host`."""


class Failed(Struct, tag="failed", tag_field="kind"):
    """Failure that ends the probe process."""

    code: str
    text: str


class CallLine(Struct, tag="calls", tag_field="kind"):
    """Number of finished calls to the driver, and the call that runs now."""

    done: int = 0
    call: str = ""


DECODER: JsonDecoder[Facts | Sweep | Failed | CallLine] = json_decoder(Facts | Sweep | Failed | CallLine)
RESTART = "Restart"
"""Code of a probe that is to be started anew, as the kernel module drives other GPUs."""
CODES = {str(code): code for code in ProbeCode}
MOST_GPUS = 128
"""Maximum number of GPUs and MIG instances of another machine."""
INVENTED = "its GPUs change all the time"


class ProbeFault(Exception):  # noqa: N818 - most are faults of the machine
    """Reason why a probe process gives no more readings, in words for its status."""

    def __init__(self, code: ProbeCode, text: str, hint: str = "", again_within: float = math.inf) -> None:
        """`again_within` are the seconds until another try at most, where one costs nothing."""
        super().__init__(f"{text} ({hint})" if hint else text)
        self.code = code
        self.hint = hint
        self.again_within = again_within


class AgainError(ProbeFault):
    """A probe process gives no more readings, and the next one is to follow: nothing failed."""


_Number = TypeVar("_Number", int, float)
_Values = TypeVar("_Values", bound=Struct)
MOST_BYTES = 2**50
_MOST_WATTS = 20_000.0
_FIGURES: Mapping[str, float] = {
    "utilization": 1.0,
    "memory_utilization": 1.0,
    "sm_activity": 1.0,
    "memory_activity": 1.0,
    "memory_used": MOST_BYTES,
    "memory_total": MOST_BYTES,
    "temperature": 200.0,
    "power": _MOST_WATTS,
    "sm_clock": 10**5,
    "memory_clock": 10**5,
    "throttle": 2**31,
    "pcie_tx": 1e13,
    "pcie_rx": 1e13,
    "nvlink_tx": 1e14,
    "nvlink_rx": 1e14,
}
"""Highest value of each figure of a sweep: about ten times what boards reach."""
_SLOW_FIGURES: Mapping[str, float] = {
    "ecc_corrected": 2**63,
    "ecc_uncorrected": 2**63,
    "recovery": 1000,
    "power_limit": _MOST_WATTS,
    "fan": 10.0,
}
_FACTS: Mapping[str, float] = {
    "memory_total": MOST_BYTES,
    "numa_node": 4096,
    "minor": 4096,
    "power_limit": _MOST_WATTS,
    "default_power_limit": _MOST_WATTS,
}


_CLOCKS_DIFFER = timedelta(seconds=5)
"""Smallest difference of two clocks that is not the time that a sweep takes to come."""


def _bounded_reading(reading: Reading, ahead: timedelta) -> Reading:
    """Return the reading; `ahead` is the time by which the clock of its machine is ahead."""
    reading = bounded(reading, _FIGURES)
    used, processes = reading.memory_used, reading.processes
    if isinstance(processes, tuple):
        processes = tuple(
            replace(
                each,
                memory=within(each.memory, MOST_BYTES),
                sm=within(each.sm, 1.0),
                started_at=_earlier(each.started_at, ahead),
            )
            for each in processes
        )
    return replace(
        reading,
        memory_used=within(used, reading.memory_total) if reading.memory_total else used,
        slow=reading.slow and bounded(reading.slow, _SLOW_FIGURES),
        processes=processes,
    )


def _earlier(at: datetime | None, by: timedelta) -> datetime | None:
    try:
        return at - by if at and abs(by) > _CLOCKS_DIFFER else at
    except OverflowError:
        return None


def bounded(values: _Values, highest: Mapping[str, float]) -> _Values:
    """Return the values; each figure that is not from 0 to its highest value counts as not read."""
    figures = ((name, getattr(values, name), most) for name, most in highest.items())
    wrong = [
        name for name, value, most in figures if value is not None and value is not UNSET and not 0 <= value <= most
    ]
    return replace(values, **dict.fromkeys(wrong)) if wrong else values


def within(value: _Number | None, most: float) -> _Number | None:
    """Return the value if it is a number from 0 to `most`, else None."""
    return value if value is not None and 0 <= value <= most else None


LOST = Health(HealthCode.LOST, "lost: the driver cannot reach it; reset it or reboot the host")
VANISHED = Health(HealthCode.LOST, "lost: the driver no longer lists it")
FATAL_XIDS = {
    46: "the GPU stopped processing",
    48: "uncorrectable memory error",
    62: "the internal micro-controller halted",
    64: "a faulty memory row could not be remapped",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    95: "uncontained memory error",
    109: "context switch timeout",
    110: "security fault",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor failed",
    136: "NVLink training failed",
    140: "unrecovered memory error",
    143: "GPU initialisation failed",
    155: "NVLink was shut down",
    156: "resource retirement event",
    158: "GPU fatal timeout",
}
"""Xids after which NVIDIA's catalog (docs.nvidia.com/deploy/xid-errors) wants the GPU reset, the host restarted or the
board looked at. Those it leaves to the application (13, 31, 43, 45, 68, 94, ...) say nothing about the GPU."""
_RECOVERY = {
    1: "the driver asks for a GPU reset",
    2: "the driver asks for a reboot of the host",
    3: "the driver asks to drain the GPU's peers",
    4: "the driver asks to drain the GPU and reset it",
    5: "the driver asks to recover the IMEX domain",
    6: "the driver asks for a reset of the bus",
    7: "the driver asks for a reboot of the whole system",
}
"""Recovery actions by nvmlDeviceGpuRecoveryAction_t."""
_SW_POWER_CAP = 0x04
_THROTTLE = {
    _SW_POWER_CAP: CAP,
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "too hot",
    0x40: "too hot (hardware)",
    0x80: "power brake",
    0x100: "display clock",
}
"""Bits of nvmlClocksEventReasons for throttling, without idle clocks and clocks set by hand."""
_WORDS = {
    ProbeCode.OK: "",
    ProbeCode.NO_LIBRARY: "no NVIDIA driver: libnvidia-ml.so.1 was not found; install the driver, or try --probe sim:8",
    ProbeCode.DRIVER_MISMATCH: "the NVIDIA driver's library and kernel module differ, as after an upgrade; "
    "reboot, or reload the module",
    ProbeCode.DRIVER_NOT_LOADED: "the NVIDIA kernel module is not loaded; try modprobe nvidia, then nvidia-smi",
    ProbeCode.NO_PERMISSION: "no permission to talk to the NVIDIA driver; look at /dev/nvidia* and the user's groups",
    ProbeCode.COUNT_FAILED: "the NVIDIA driver cannot count its GPUs ({detail}); look at dmesg, a reboot may be needed",
    ProbeCode.NO_GPUS: "the NVIDIA driver is loaded, but lists no GPU; look at lspci and dmesg",
    ProbeCode.WEDGED_AT_START: "the NVIDIA driver did not answer within {detail}; "
    "look at dmesg, a reboot may be needed",
    ProbeCode.WEDGED: "the NVIDIA driver has stopped answering, for {detail} at least; look at dmesg, "
    "a reboot may be needed",
    ProbeCode.SLOW: "the NVIDIA driver answers slowly: no complete reading within {detail}; look at dmesg, and at "
    "persistence mode (nvidia-smi -pm 1)",
    ProbeCode.DIED: "the GPU probe died ({detail}); it is being restarted",
    ProbeCode.UNKNOWN_ERROR: "the NVIDIA driver reports: {detail}; in a container its access to the GPUs was revoked, "
    "else look at dmesg, a reboot may be needed",
    ProbeCode.BLOCKED: "the operating system blocks access to the GPUs: {detail}; look at the device rules of the "
    "cgroup or container that gputui runs in",
    ProbeCode.RESET_REQUIRED: "the NVIDIA driver wants a GPU reset: {detail}; try nvidia-smi --gpu-reset, or reboot",
    ProbeCode.GPU_LOST: "the NVIDIA driver has lost a GPU and answers no call ({detail}); reboot the host",
    ProbeCode.FAILED: "the NVIDIA driver reports: {detail}",
}


def health_of(slow: SlowReadings, fatal_xid: int | None) -> Health:
    """Return the worst known condition of a GPU that answers."""
    if slow.recovery:
        asked = _RECOVERY.get(slow.recovery, f"the driver asks for recovery action {slow.recovery}")
        return Health(HealthCode.NEEDS_RESET, asked)
    if fatal_xid is not None:
        return Health(HealthCode.XID, f"Xid {fatal_xid}: {FATAL_XIDS.get(fatal_xid, 'fatal error')}")
    if slow.ecc_uncorrected:
        errors = plural(slow.ecc_uncorrected, "uncorrected memory error")
        return Health(HealthCode.ECC, f"{errors} since the driver was loaded; reset the GPU")
    if slow.remap_failed:
        return Health(HealthCode.REMAP_FAILED, "a faulty memory row could not be remapped; the board must be replaced")
    if slow.remap_pending:
        return Health(
            HealthCode.REMAP_PENDING, "a memory row waits to be remapped at the next reset; usable until then"
        )
    return Health()


def unreadable_health(error: str) -> Health:
    """Return the health of a GPU whose reading failed with `error`."""
    return LOST if error == "lost" else Health(HealthCode.UNKNOWN, f"cannot be identified: {error}")


def throttle_reasons(bits: int | None, limit: float | None, default: float | None) -> tuple[str, ...]:
    """Return the reasons for throttled clocks; the power limit only if it is below the board's default, both in watts.

    The driver holds every board that is well used at its limit, and says so by the same bit.
    """
    is_lowered = limit is not None and default is not None and limit < default
    kept = (bits or 0) & (-1 if is_lowered else ~_SW_POWER_CAP)
    return tuple(word for bit, word in _THROTTLE.items() if kept & bit)


class SteadyReasons(Struct, eq=False):
    """Reasons for throttling that hold, so that no screen, list or metric flaps."""

    _of_gpus: defaultdict[str, Steady[str]] = field(default_factory=lambda: defaultdict(Steady))

    def update(self, uuid: str, reasons: Iterable[str], now: datetime) -> tuple[str, ...]:
        """Take the present reasons of a GPU; return those that hold."""
        told = self._of_gpus[uuid].update(reasons, now)
        return tuple(word for word in _THROTTLE.values() if word in told)

    def in_reading(self, reading: ProbeReading) -> ProbeReading:
        """Take the reasons of a reading; return it with those that hold."""
        samples = {
            uuid: replace(sample, throttle=self.update(uuid, sample.throttle, sample.sampled_at))
            for uuid, sample in reading.samples.items()
        }
        return replace(reading, samples=MappingProxyType(samples))


OTHER_PIDS = "GPU processes live in another PID namespace: run gputui with --pid=host to see whose they are"


def describe_failure(code: ProbeCode, detail: str = "") -> str:
    return _WORDS[code].format(detail=detail or "no details given")


class ReadingAssembler(Struct, eq=False):
    """Assembler of readings. It outlives probe processes, so a GPU keeps its index and last readings."""

    _registry: GpuRegistry = field(default_factory=lambda: GpuRegistry())
    _samples: dict[str, GpuSample] = field(default_factory=dict)
    _slow: dict[str, SlowReadings] = field(default_factory=dict)
    _reasons: SteadyReasons = field(default_factory=SteadyReasons)
    _xids: dict[str, int] = field(default_factory=dict)
    _fatal: dict[str, tuple[int, datetime]] = field(default_factory=dict)
    """First fatal Xid since the last reset and the time of its report, by UUID."""
    resumed: Mapping[str, datetime] = field(default_factory=dict)
    """Times by UUID at which an operator last resumed the GPU. Replaced as a whole, by any thread."""
    unanswered: tuple[str, ...] = ()
    """Sentences about calls that the driver does not answer. Replaced as a whole, by any thread."""
    _strays: set[int] = field(default_factory=set)
    _foreign_pids: bool = False
    _driver: str | None = None
    _cuda: str | None = None
    _taken_at: datetime | None = None
    _host: HostAssembler = field(default_factory=lambda: HostAssembler())

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self._registry.gpus

    def ingest(self, line: Facts | Sweep, now: datetime) -> None:
        if isinstance(line, Facts):
            line.cuda = within(line.cuda, 10**6)
            line.gpus = tuple(bounded(gpu, _FACTS) for gpu in line.gpus)
            self._driver = line.driver
            self._cuda = f"{line.cuda // 1000}.{line.cuda % 1000 // 10}" if line.cuda else None
            found_again = self._registry.update(line.gpus)
            for uuid in found_again:  # it was reset or plugged in again: earlier faults no longer count
                self._fatal.pop(uuid, None)
                self._slow.pop(uuid, None)
            for uuid in self._registry.vanished:
                self._fail(uuid, VANISHED, now)
        else:
            for name, code in line.xids:
                if name is None:
                    self._strays.add(code)
                    continue
                uuid = self._registry.known_uuid(name)
                self._xids[uuid] = code
                if code in FATAL_XIDS and self._fatal_xid(uuid) is None:
                    self._fatal[uuid] = (code, now)
            if line.host is not None:
                self._host.ingest(line.host, now)
            clock = within(line.clock, 2**32)
            ahead = timedelta(seconds=round(clock - now.timestamp())) if clock is not None else timedelta()
            for reading in (_bounded_reading(each, ahead) for each in line.samples):
                uuid = self._registry.known_uuid(reading.uuid)
                if reading.error:
                    self._fail(uuid, unreadable_health(reading.error), now)
                else:
                    self._samples[uuid] = self._sample(uuid, reading, now)
            self._taken_at = now if line.samples else self._taken_at
            if line.lists:
                lists = (sample.processes or () for sample in self._samples.values())
                is_any_invisible = any(not process.visible for processes in lists for process in processes)
                self._foreign_pids = not line.hosts_pids and is_any_invisible

    def reading(self, status: ProbeStatus) -> ProbeReading:
        """Return all current data as one reading."""
        gpus = self.gpus
        samples = MappingProxyType({gpu.uuid: self._samples[gpu.uuid] for gpu in gpus if gpu.uuid in self._samples})
        notes = list(self.unanswered)
        if lax := [str(gpu.index) for gpu in gpus if gpu.persistence is False]:
            where = ", ".join(lax)
            notes.append(f"persistence mode is off on GPU {where}: run nvidia-smi -pm 1, or every reading is slow")
        if self._foreign_pids:
            notes.append(OTHER_PIDS)
        unknown = [gpu for gpu in gpus if gpu.uuid.startswith("GPU-unknown-")]
        notes += [f"GPU {gpu.index} was never identified: {gpu.uuid} stands for it" for gpu in unknown]
        notes += [f"Xid {code} came from a GPU that the driver did not name" for code in sorted(self._strays)]
        return ProbeReading(
            status, gpus, samples, self._taken_at, self._driver, tuple(notes), self._cuda, self._host.sample
        )

    def _fail(self, uuid: str, health: Health, now: datetime) -> None:
        """Keep the last sample of a GPU, which ages, with a new health."""
        last = self._samples.get(uuid) or GpuSample(uuid, sampled_at=now)
        self._samples[uuid] = replace(last, health=health, xid=self._xids.get(uuid))

    def _sample(self, uuid: str, reading: Reading, now: datetime) -> GpuSample:
        if reading.slow is not None:
            before, read = self._slow.get(uuid) or SlowReadings(), reading.slow
            # a reset clears the driver's request for recovery and the volatile count of uncorrected memory errors
            if (before.recovery and read.recovery == 0) or (before.ecc_uncorrected and read.ecc_uncorrected == 0):
                self._fatal.pop(uuid, None)
            self._slow[uuid] = reading.slow
        slow = self._slow.get(uuid) or SlowReadings()
        last = self._samples.get(uuid) or GpuSample(uuid, now)
        gpu, host = self._registry.get(uuid), self._host.sample
        limit = slow.power_limit or (gpu.power_limit if gpu else None)
        reasons = throttle_reasons(reading.throttle, limit, gpu.default_power_limit if gpu else None)
        listed = {"lists_processes": last.lists_processes} if reading.processes is UNSET else {"processes_at": now}
        health = health_of(slow, self._fatal_xid(uuid))
        own = {
            "uuid": uuid,
            "sampled_at": now,
            "memory_free": None,
            "throttle": self._reasons.update(uuid, reasons, now),
            "xid": self._xids.get(uuid),
            "health": unreadable_health(reading.unidentified) if reading.unidentified else health,
        }
        told = _shared(slow, GpuSample) | _shared(reading, GpuSample)
        sample = replace(last, **(told | listed | own))
        if gpu is None or not gpu.unified:
            return sample
        each = [process.memory for process in sample.processes] if sample.processes is not None else [None]
        free = None
        if host is not None and host.memory_total is not None and host.memory_used is not None:
            free = host.memory_total - host.memory_used
        used = None if None in each else sum(filter(None, each))
        return replace(sample, memory_used=used, memory_total=gpu.memory_total, memory_free=free)

    def _fatal_xid(self, uuid: str) -> int | None:
        """Return the fatal Xid that still counts: neither a reset nor an operator's resume followed it."""
        code, at = self._fatal.get(uuid, (None, None))
        resumed_at = self.resumed.get(uuid)
        is_forgiven = at is not None and resumed_at is not None and at <= resumed_at
        return None if is_forgiven else code


@cache
def _common(one: type[Struct], other: type[Struct]) -> tuple[str, ...]:
    return tuple(name for name in one.__struct_fields__ if name in other.__struct_fields__)


def _shared(source: Struct, kind: type[Struct]) -> dict[str, Any]:
    """Return the values of the fields that the other type has too, without those that are unset."""
    names = _common(type(source), kind)
    return {name: value for name in names if (value := getattr(source, name)) is not UNSET}


class GpuRegistry(Struct, eq=False):
    """Registry of GPUs by UUID. A lost GPU keeps its index and facts, and the others are not renumbered."""

    _gpus: dict[str, Gpu] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _absent: set[str] = field(default_factory=set)
    vanished: frozenset[str] = frozenset()
    """UUIDs that the driver listed earlier and no longer lists, not even as lost."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """GPUs by index, MIG instances after their parents."""
        return tuple(sorted(self._gpus.values(), key=lambda gpu: (gpu.index, gpu.mig_parent is not None)))

    def get(self, uuid: str) -> Gpu | None:
        return self._gpus.get(uuid)

    def known_uuid(self, uuid: str) -> str:
        """Return the UUID of a known GPU that the driver now lists under a placeholder."""
        return self._names.get(uuid, uuid)

    def update(self, listing: Iterable[GpuFacts]) -> frozenset[str]:
        """Update the registry from a new list; return the UUIDs of GPUs that were lost and are back."""
        listed, before = tuple(listing), self._gpus
        named = {facts.uuid for facts in listed if not facts.error}
        self._names = {}
        for facts in listed:
            if facts.error:  # it may be the GPU with this index that is not listed under its own UUID
                same = (gpu for gpu in before.values() if gpu.index == facts.index and gpu.mig_parent is None)
                if known := next((gpu.uuid for gpu in same if gpu.uuid not in named), None):
                    self._names[facts.uuid] = known
        present = {self.known_uuid(facts.uuid) for facts in listed}

        def stays(gpu: Gpu) -> bool:
            """Return whether it is listed, or lost, rather than identified meanwhile or partitioned differently."""
            is_unknown, is_gone = gpu.uuid.startswith("GPU-unknown-"), gpu.mig_parent in named
            return gpu.uuid in present or not (is_unknown or is_gone)

        self._gpus = {uuid: gpu for uuid, gpu in before.items() if stays(gpu)}
        for facts in listed:
            uuid = self.known_uuid(facts.uuid)
            if uuid in before and facts.error:
                continue
            indices = {gpu.index for gpu in self._gpus.values()}
            index = facts.index if facts.index not in indices else max(indices) + 1
            parent = self._gpus.get(facts.mig_parent) if facts.mig_parent is not None else None
            if (known_gpu := parent or self._gpus.get(uuid)) is not None:
                index = known_gpu.index
            self._gpus[uuid] = Gpu(**_shared(facts, Gpu) | {"uuid": uuid, "index": index, "drivers_uuid": None})
        self.vanished = frozenset(self._gpus) - present
        back = named & self._absent
        self._absent = {uuid for uuid in self._gpus if uuid not in named}
        return frozenset(back)


LOOK_BACK = timedelta(minutes=10)
"""Time over which the fill rate of a disk is measured."""
LEAST = timedelta(minutes=1)
"""Minimum time of that measurement; less would be a guess."""
SOON = timedelta(hours=24)
"""Maximum time until a disk is full that is reported."""


class HostAssembler(Struct, eq=False):
    """Assembles host readings. It keeps the last reading of the disks, which arrive rarely."""

    sample: HostSample | None = None
    _disks: tuple[DiskUse, ...] = ()
    _fillings: dict[str, Filling] = field(default_factory=dict)
    """Fillings of the disks that are there now: another machine may name ever new ones."""

    def ingest(self, reading: HostReading, now: datetime) -> None:
        if reading.disks is not UNSET:
            self._fillings = {disk.mount: self._fillings.get(disk.mount) or Filling() for disk in reading.disks}
            self._disks = tuple(
                replace(disk, full_in=self._fillings[disk.mount].full_in(disk.free, now)) for disk in reading.disks
            )
        self.sample = HostSample(**asdict(reading) | {"disks": self._disks, "sampled_at": now})


_MOST_PAST = 5000
"""Maximum number of readings that a disk's past keeps."""


class Filling(Struct, eq=False):
    """Free space of a disk in the last minutes."""

    _past: deque[tuple[datetime, int]] = field(default_factory=lambda: deque(maxlen=_MOST_PAST))

    def full_in(self, free: int, now: datetime) -> timedelta | None:
        """Add a reading; return the time until the disk is full at the present rate, if that is soon."""
        if self._past and now < self._past[-1][0]:  # the clock was set back
            self._past.clear()
        while self._past and now - self._past[0][0] > LOOK_BACK:
            self._past.popleft()
        self._past.append((now, free))
        begun, first = self._past[0]
        if now - begun < LEAST or free >= first:
            return None
        left = (now - begun) * (free / (first - free))
        return left if left < SOON else None
