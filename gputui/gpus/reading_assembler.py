"""Assembles the probe's lines into one ProbeReading: registry of GPUs, readings, and the host's figures."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import cache
from types import MappingProxyType
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import asdict, replace

from gputui.domain.gpu import Gpu, GpuSample, Health, ProbeReading, ProbeStatus
from gputui.domain.host import DiskUse, HostSample
from gputui.gpus import plausible, wire
from gputui.gpus.health import (
    FATAL_XIDS,
    VANISHED,
    SteadyReasons,
    health_of,
    throttle_reasons,
    unreadable_health,
    was_reset,
)


class ReadingAssembler:
    """Assembler of readings. It outlives probe processes, so a GPU keeps its index and last readings."""

    def __init__(self) -> None:
        self._registry = GpuRegistry()
        self._samples: dict[str, GpuSample] = {}
        self._slow: dict[str, wire.SlowReadings] = {}
        self._reasons = SteadyReasons()
        self._xids: dict[str, int] = {}
        self._fatal: dict[str, tuple[int, datetime]] = {}
        """First fatal Xid since the last reset and the time of its report, by UUID."""
        self.resumed: Mapping[str, datetime] = {}
        """Times by UUID at which an operator last resumed the GPU. Replaced as a whole, by any thread."""
        self.unanswered: tuple[str, ...] = ()
        """Sentences about calls that the driver does not answer. Replaced as a whole, by any thread."""
        self._strays: set[int] = set()
        self._foreign_pids = False
        self._driver: str | None = None
        self._cuda: str | None = None
        self._taken_at: datetime | None = None
        self._host = HostAssembler()

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """GPUs in the registry."""
        return self._registry.gpus

    def ingest(self, line: wire.Facts | wire.Sweep, now: datetime) -> None:
        """Add one line of the probe."""
        if isinstance(line, wire.Facts):
            plausible.bound_facts(line)
            self._ingest_facts(line, now)
        else:
            plausible.bound_sweep(line)
            self._ingest_sweep(line, now)

    def reading(self, status: ProbeStatus) -> ProbeReading:
        """Return all current data as one reading."""
        kept = {gpu.uuid: self._samples[gpu.uuid] for gpu in self.gpus if gpu.uuid in self._samples}
        samples = MappingProxyType(kept)
        return ProbeReading(
            status,
            self.gpus,
            samples,
            self._taken_at,
            self._driver,
            tuple(self._notes()),
            self._cuda,
            self._host.sample,
        )

    def _ingest_facts(self, facts: wire.Facts, now: datetime) -> None:
        self._driver = facts.driver
        self._cuda = f"{facts.cuda // 1000}.{facts.cuda % 1000 // 10}" if facts.cuda else None
        found_again = self._registry.update(facts.gpus)
        for uuid in found_again:  # it was reset or plugged in again: earlier faults no longer count
            self._fatal.pop(uuid, None)
            self._slow.pop(uuid, None)
        for uuid in self._registry.vanished:
            self._fail(uuid, VANISHED, now)

    def _ingest_sweep(self, sweep: wire.Sweep, now: datetime) -> None:
        for uuid, code in sweep.xids:
            self._ingest_xid(uuid, code, now)
        if sweep.host is not None:
            self._host.ingest(sweep.host, now)
        for reading in sweep.samples:
            uuid = self._registry.known_uuid(reading.uuid)
            if reading.error:
                self._fail(uuid, unreadable_health(reading.error), now)
            else:
                self._samples[uuid] = self._sample(uuid, reading, now)
        if sweep.samples:
            self._taken_at = now
        if sweep.lists:
            self._foreign_pids = not sweep.hosts_pids and self._any_invisible()

    def _ingest_xid(self, uuid: str | None, code: int, now: datetime) -> None:
        if uuid is None:
            self._strays.add(code)
            return
        uuid = self._registry.known_uuid(uuid)
        self._xids[uuid] = code
        if code in FATAL_XIDS and self._fatal_xid(uuid) is None:
            self._fatal[uuid] = (code, now)

    def _fail(self, uuid: str, health: Health, now: datetime) -> None:
        """Keep the last sample of a GPU, which ages, with a new health."""
        last = self._samples.get(uuid) or GpuSample(uuid, sampled_at=now)
        self._samples[uuid] = replace(last, health=health, xid=self._xids.get(uuid))

    def _sample(self, uuid: str, reading: wire.Reading, now: datetime) -> GpuSample:
        if reading.slow is not None:
            if was_reset(self._slow.get(uuid), reading.slow):
                self._fatal.pop(uuid, None)
            self._slow[uuid] = reading.slow
        slow = self._slow.get(uuid) or wire.SlowReadings()
        last = self._samples.get(uuid) or GpuSample(uuid, now)
        listed = {"lists_processes": last.lists_processes} if reading.processes is UNSET else {"processes_at": now}
        health = health_of(slow, self._fatal_xid(uuid))
        own = {
            "uuid": uuid,
            "sampled_at": now,
            "memory_free": None,
            "throttle": self._throttle(uuid, reading.throttle, slow.power_limit, now),
            "xid": self._xids.get(uuid),
            "health": unreadable_health(reading.unidentified) if reading.unidentified else health,
        }
        told = _shared(slow, GpuSample) | _shared(reading, GpuSample)
        return self._with_memory(replace(last, **(told | listed | own)))

    def _throttle(self, uuid: str, bits: int | None, limit: float | None, now: datetime) -> tuple[str, ...]:
        gpu = self._registry.get(uuid)
        usual = gpu.default_power_limit if gpu else None
        reasons = throttle_reasons(bits, limit or (gpu.power_limit if gpu else None), usual)
        return self._reasons.update(uuid, reasons, now)

    def _with_memory(self, sample: GpuSample) -> GpuSample:
        """Return the sample with the memory of a GPU that uses the machine's: what its processes use there."""
        gpu, host = self._registry.get(sample.uuid), self._host.sample
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

    def _any_invisible(self) -> bool:
        lists = (sample.processes or () for sample in self._samples.values())
        return any(not process.visible for processes in lists for process in processes)

    def _notes(self) -> Iterable[str]:
        yield from self.unanswered
        lax = [str(gpu.index) for gpu in self.gpus if gpu.persistence is False]
        if lax:
            yield f"persistence mode is off on GPU {', '.join(lax)}: run nvidia-smi -pm 1, or every reading is slow"
        if self._foreign_pids:
            yield "GPU processes live in another PID namespace: run gputui with --pid=host to see whose they are"
        for gpu in self.gpus:
            if gpu.uuid.startswith("GPU-unknown-"):
                yield f"GPU {gpu.index} was never identified: {gpu.uuid} stands for it"
        for code in sorted(self._strays):
            yield f"Xid {code} came from a GPU that the driver did not name"


@cache
def _common(one: type[Struct], other: type[Struct]) -> tuple[str, ...]:
    return tuple(name for name in one.__struct_fields__ if name in other.__struct_fields__)


def _shared(source: Struct, kind: type[Struct]) -> dict[str, Any]:
    """Return the values of the fields that the other type has too, without those that are unset."""
    names = _common(type(source), kind)
    return {name: value for name in names if (value := getattr(source, name)) is not UNSET}


class GpuRegistry:
    """Registry of GPUs by UUID. A lost GPU keeps its index and facts, and the others are not renumbered."""

    def __init__(self) -> None:
        self._gpus: dict[str, Gpu] = {}
        self._names: dict[str, str] = {}
        self._absent: set[str] = set()
        self.vanished: frozenset[str] = frozenset()
        """UUIDs that the driver listed earlier and no longer lists, not even as lost."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """GPUs by index, MIG instances after their parents."""
        return tuple(sorted(self._gpus.values(), key=lambda gpu: (gpu.index, gpu.mig_parent is not None)))

    def get(self, uuid: str) -> Gpu | None:
        """Return the GPU with that UUID."""
        return self._gpus.get(uuid)

    def known_uuid(self, uuid: str) -> str:
        """Return the UUID of a known GPU that the driver now lists under a placeholder."""
        return self._names.get(uuid, uuid)

    def update(self, listing: Iterable[wire.GpuFacts]) -> frozenset[str]:
        """Update the registry from a new list; return the UUIDs of GPUs that were lost and are back."""
        listed = tuple(listing)
        named = {facts.uuid for facts in listed if not facts.error}
        self._names = {facts.uuid: known for facts in listed if facts.error and (known := self._identify(facts, named))}
        present = {self.known_uuid(facts.uuid) for facts in listed}
        before = self._gpus
        self._gpus = {uuid: gpu for uuid, gpu in before.items() if uuid in present or self._stays(gpu, present, named)}
        for facts in listed:
            uuid = self.known_uuid(facts.uuid)
            if uuid not in before or not facts.error:
                own = {"uuid": uuid, "index": self._index(facts, uuid), "drivers_uuid": None}
                self._gpus[uuid] = Gpu(**_shared(facts, Gpu) | own)
        self.vanished = frozenset(self._gpus) - present
        back = named & self._absent
        self._absent = {uuid for uuid in self._gpus if uuid not in named}
        return frozenset(back)

    def _identify(self, facts: wire.GpuFacts, named: set[str]) -> str | None:
        """Return the UUID of the GPU with this index that is not listed under its own UUID."""
        same = (gpu for gpu in self._gpus.values() if gpu.index == facts.index and gpu.mig_parent is None)
        return next((gpu.uuid for gpu in same if gpu.uuid not in named), None)

    def _stays(self, gpu: Gpu, present: set[str], named: set[str]) -> bool:
        """Return whether an unlisted GPU is lost, rather than identified meanwhile or partitioned differently."""
        if gpu.uuid.startswith("GPU-unknown-"):
            return False
        return gpu.mig_parent is None or gpu.mig_parent not in named

    def _index(self, facts: wire.GpuFacts, uuid: str) -> int:
        if facts.mig_parent is not None and (parent := self._gpus.get(facts.mig_parent)):
            return parent.index
        if (known := self._gpus.get(uuid)) is not None:
            return known.index
        taken = {gpu.index for gpu in self._gpus.values()}
        return facts.index if facts.index not in taken else max(taken) + 1


LOOK_BACK = timedelta(minutes=10)
"""Time over which the fill rate of a disk is measured."""
LEAST = timedelta(minutes=1)
"""Minimum time of that measurement; less would be a guess."""
SOON = timedelta(hours=24)
"""Maximum time until a disk is full that is reported."""


class HostAssembler:
    """Assembles host readings. It keeps the last reading of the disks, which arrive rarely."""

    def __init__(self) -> None:
        self.sample: HostSample | None = None
        self._disks: tuple[DiskUse, ...] = ()
        self._fillings: dict[str, Filling] = {}

    def ingest(self, reading: wire.HostReading, now: datetime) -> None:
        """Add a reading."""
        if reading.disks is not UNSET:
            self._disks = tuple(self._disk(disk, now) for disk in reading.disks)
        self.sample = HostSample(**asdict(reading) | {"disks": self._disks, "sampled_at": now})

    def _disk(self, disk: DiskUse, now: datetime) -> DiskUse:
        filling = self._fillings.setdefault(disk.mount, Filling())
        return replace(disk, full_in=filling.full_in(disk.free, now))


class Filling:
    """Free space of a disk in the last minutes."""

    def __init__(self) -> None:
        self._past: deque[tuple[datetime, int]] = deque()

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
