"""Assembly of the probe's lines into one ProbeReading."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from gputui.domain.gpu import Gpu, GpuSample, Health, ProbeReading, ProbeStatus
from gputui.gpus import wire
from gputui.gpus.gpu_registry import GpuRegistry
from gputui.gpus.health import FATAL_XIDS, VANISHED, health_of, throttle_reasons, unreadable_health, was_reset
from gputui.gpus.host_assembler import HostAssembler


class ReadingAssembler:
    """Assembler of readings. It outlives probe processes, so a GPU keeps its index and last readings."""

    def __init__(self) -> None:
        self._registry = GpuRegistry()
        self._samples: dict[str, GpuSample] = {}
        self._slow: dict[str, wire.SlowReadings] = {}
        self._xids: dict[str, int] = {}
        self._fatal: dict[str, tuple[int, datetime]] = {}
        """First fatal Xid since the last reset and the time of its report, by UUID."""
        self.resumed: Mapping[str, datetime] = {}
        """Times by UUID at which an operator last declared the GPU fit for jobs. Replaced as a whole, by any thread."""
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
            self._ingest_facts(line, now)
        else:
            self._ingest_sweep(line, now)

    def reading(self, status: ProbeStatus) -> ProbeReading:
        """Return all that is known now, as one reading."""
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
        for uuid in found_again:  # it was reset or plugged in again: earlier faults are over
            self._fatal.pop(uuid, None)
            self._slow.pop(uuid, None)
        for uuid in self._registry.vanished:
            self._fail(uuid, VANISHED, now)

    def _ingest_sweep(self, sweep: wire.Sweep, now: datetime) -> None:
        for uuid, code in sweep.xids:
            self._ingest_xid(uuid, code, now)
        for reading in sweep.samples:
            uuid = self._registry.known_uuid(reading.uuid)
            if reading.error:
                self._fail(uuid, unreadable_health(reading.error), now)
            else:
                self._samples[uuid] = self._sample(uuid, reading, now)
        if sweep.samples:
            self._taken_at = now
        if sweep.host is not None:
            self._host.ingest(sweep.host, now)
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
        last = self._samples.get(uuid)
        if reading.slow is not None:
            if was_reset(self._slow.get(uuid), reading.slow):
                self._fatal.pop(uuid, None)
            self._slow[uuid] = reading.slow
        slow = self._slow.get(uuid) or wire.SlowReadings()
        if reading.processes is UNSET:
            processes, processes_at = (last.processes, last.processes_at) if last else (None, None)
        else:
            processes, processes_at = reading.processes, now
        return GpuSample(
            uuid=uuid,
            sampled_at=now,
            utilization=reading.utilization,
            memory_utilization=reading.memory_utilization,
            sm_activity=_newest(reading.sm_activity, last.sm_activity if last else None),
            memory_activity=_newest(reading.memory_activity, last.memory_activity if last else None),
            memory_used=reading.memory_used,
            memory_total=reading.memory_total,
            temperature=reading.temperature,
            power=reading.power,
            power_limit=slow.power_limit,
            sm_clock=reading.sm_clock,
            memory_clock=reading.memory_clock,
            fan=slow.fan,
            throttle=throttle_reasons(reading.throttle),
            processes=processes,
            processes_at=processes_at,
            ecc_corrected=slow.ecc_corrected,
            ecc_uncorrected=slow.ecc_uncorrected,
            xid=self._xids.get(uuid),
            pcie_tx=reading.pcie_tx,
            pcie_rx=reading.pcie_rx,
            nvlink_tx=reading.nvlink_tx,
            nvlink_rx=reading.nvlink_rx,
            health=health_of(slow, self._fatal_xid(uuid)),
        )

    def _fatal_xid(self, uuid: str) -> int | None:
        """Return the fatal Xid that still counts: neither a reset nor an operator's resume came after it."""
        code, at = self._fatal.get(uuid, (None, None))
        resumed_at = self.resumed.get(uuid)
        is_forgiven = at is not None and resumed_at is not None and at <= resumed_at
        return None if is_forgiven else code

    def _any_invisible(self) -> bool:
        lists = (sample.processes or () for sample in self._samples.values())
        return any(not process.visible for processes in lists for process in processes)

    def _notes(self) -> Iterable[str]:
        lax = [str(gpu.index) for gpu in self.gpus if gpu.persistence is False]
        if lax:
            yield f"persistence mode is off on GPU {', '.join(lax)}: run nvidia-smi -pm 1, or every reading is slow"
        if self._foreign_pids:
            yield "GPU processes live in another PID namespace: run gputui with --pid=host to see whose they are"
        for gpu in self.gpus:
            if gpu.uuid.startswith("GPU-unknown-"):
                yield f"GPU {gpu.index} cannot be reached and was never identified: {gpu.uuid} stands for it"
        for code in sorted(self._strays):
            yield f"Xid {code} came from a GPU that the driver did not name"


def _newest(told: float | UnsetType | None, before: float | None) -> float | None:
    """Return a reading that not every sweep has."""
    return before if told is UNSET else told
