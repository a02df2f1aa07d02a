"""Simulated GPUs and their host: a probe without a driver, whose readings follow the jobs on them; GPUs of the demo."""

from __future__ import annotations

import logging
import math
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.container import ForeignContainer, ProcessRow
from gputui.domain.errors import GputuiError, InputError, NotFoundError
from gputui.domain.gpu import (
    ALL_SHARES,
    CAP,
    DOCKER,
    STATE,
    DiskUse,
    Gpu,
    GpuProcess,
    GpuSample,
    HostSample,
    Link,
    ProbeCode,
    ProbeReading,
    ProbeStatus,
)
from gputui.domain.gpu_history import STEP, TakenStep, mean
from gputui.domain.gpu_processes import ContainerDetail, ProcessTarget, SignalOutcome
from gputui.domain.job import Attempt, Job
from gputui.domain.state import JobState
from gputui.domain.text import shown
from gputui.gpus.readings import FATAL_XIDS, LOST, SlowReadings, SteadyReasons, health_of
from gputui.ports import Clock
from gputui.threads import Watcher

log = logging.getLogger(__name__)

MIB = 1024**2
MOST = 256
DEFAULT = "H100"


class Model(Struct, frozen=True):
    """Properties of a GPU model, from its data sheet; power in watts, clocks in MHz."""

    name: str
    memory: int
    """Memory in bytes as the driver reports it."""
    idle_power: float
    power_limit: float
    idle_clock: int
    boost_clock: int
    memory_clock: int
    lanes: int = 0
    """NVLink lanes to each neighbour."""
    pairs: bool = False
    """True if NVLink bridges join pairs of GPUs instead of a whole board of eight."""
    has_fan: bool = False
    has_counters: bool = False
    """True if the driver reports the activity of multiprocessors and memory; from Hopper on."""


MODELS = {
    "H100": Model("NVIDIA H100 80GB HBM3", 81559 * MIB, 70, 700, 345, 1980, 2619, lanes=18, has_counters=True),
    "H200": Model("NVIDIA H200", 143771 * MIB, 76, 700, 345, 1980, 3201, lanes=18, has_counters=True),
    "A100": Model("NVIDIA A100-SXM4-80GB", 81920 * MIB, 60, 400, 210, 1410, 1593, lanes=12),
    "L40S": Model("NVIDIA L40S", 46068 * MIB, 35, 350, 210, 2520, 9001),
    "A6000": Model("NVIDIA RTX A6000", 49140 * MIB, 22, 300, 210, 1800, 8001, lanes=4, pairs=True, has_fan=True),
    "RTX4090": Model("NVIDIA GeForce RTX 4090", 24564 * MIB, 20, 450, 210, 2520, 10501, has_fan=True),
}


class SimulatedGpus(Struct, frozen=True):
    """Simulated GPUs as requested by `sim:N[:MODEL]`."""

    count: int
    model: str = DEFAULT
    """Key of MODELS."""


def parse_simulated(text: str) -> SimulatedGpus | None:
    """Return the GPUs to simulate; None for `nvml`, the real GPUs. Raises InputError."""
    kind, *rest = text.strip().split(":")
    if kind.lower() == "nvml" and not rest:
        return None
    if kind.lower() != "sim" or not 1 <= len(rest) <= 2:
        raise InputError(f"{shown(text)} is not a probe", where="--probe", hint="write nvml, sim:8 or sim:8:H200")
    number, model = rest if len(rest) == 2 else (rest[0], DEFAULT)
    count = int(number) if number.isascii() and number.isdigit() and len(number) < 6 else 0
    if not 1 <= count <= MOST:
        raise InputError(f"{shown(number)} is not a number of GPUs", where="--probe", hint=f"1 to {MOST}, as in sim:8")
    if model.strip().upper() not in MODELS:
        raise InputError(f"{shown(model)} cannot be simulated", where="--probe", hint=f"one of {', '.join(MODELS)}")
    return SimulatedGpus(count, model.strip().upper())


def chance(*key: object) -> float:
    """Return a number from 0 to 1 that depends only on the key."""
    return zlib.crc32(repr(key).encode()) / 0xFFFFFFFF


def wave(key: str, at: float, period: float) -> float:
    """Return a smooth random walk between -1 and 1 at time `at`."""
    step, rest = divmod(at / period, 1)
    smooth = rest * rest * (3 - 2 * rest)
    before, after = chance(key, period, int(step)), chance(key, period, int(step) + 1)
    return 2 * (before + (after - before) * smooth) - 1


_LANE = 25e9
"""Bytes per second of one NVLink 3 or 4 lane in one direction."""
_BOARD = 8
"""Number of GPUs on a board that NVLink joins, as in HGX machines."""
_MOST_PATHS = 16
"""Number of GPUs above which only links within a board are listed: all pairs would be tens of thousands."""
_RAMP = 8.0
"""Seconds in which a job loads its data and reaches full speed."""
_DIP = 4.0
"""Seconds at the end of an epoch in which it validates and saves."""
_ATTEMPT_NAME = re.compile(r"gputui-([a-z0-9]+)-(\d+)-(\d+)")
_DRIVER = "570.86.15"


class SimulatedProbe:
    """GpuProbe whose readings are a function of seed, time and the jobs followed."""

    def __init__(
        self,
        count: int,
        model: str = DEFAULT,
        *,
        clock: Clock,
        seed: int = 0,
        store_id: str = "",
        interval: float = 1.0,
    ) -> None:
        self._model = MODELS[model]
        self._seed = seed
        self._clock = clock
        self._store_id = store_id
        self._interval = interval
        self.gpus = make_gpus(count, self._model, seed)
        self._jobs: dict[str, tuple[Job, ...]] = {}
        """Jobs by the UUID of each GPU they hold."""
        self._foreign: dict[str, tuple[float, tuple[GpuProcess, ...]]] = {}
        """Load and processes that belong to no job, by UUID."""
        self._caps: dict[str, float] = {}
        """Power limits in watts that were set below the board's, by UUID."""
        self._lost: dict[str, datetime] = {}
        self._reasons = SteadyReasons()
        self._xids: dict[str, tuple[int, datetime]] = {}
        self._resumed: Mapping[str, datetime] = {}
        self._pcie: str | None = None
        self._roles: tuple[str, ...] = ()
        """Roles of the disks that are watched."""
        self._status = ProbeStatus(ProbeCode.OK, "", clock.now())
        self._subscribers: tuple[Callable[[ProbeReading], None], ...] = ()
        self._latest: ProbeReading | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        def run() -> None:
            while not self._closed:
                self._wake.clear()
                reading = self._read()
                for tell in self._subscribers:
                    try:
                        tell(reading)
                    except Exception:  # an error in one listener must not affect the others
                        log.exception("a listener of the simulated probe failed")
                self._wake.wait(self._interval)

        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = Watcher("gpu-simulation", run)
                self._thread.start()

    def latest(self) -> ProbeReading:
        """Return the last published reading; without the background thread, a current one."""
        return self._latest or self.reading_at(self._clock.now())

    def subscribe(self, on_reading: Callable[[ProbeReading], None]) -> None:
        with self._lock:
            self._subscribers = (*self._subscribers, on_reading)

    def refresh(self) -> None:
        if self._thread is not None and not self._closed:
            self._read()
            self._wake.set()

    def want_pcie(self, uuid: str | None) -> None:
        self._pcie = uuid

    def watch_disks(self, paths: Mapping[str, str]) -> None:
        self._roles = tuple(paths)

    def forgive(self, resumed: Mapping[str, datetime]) -> None:
        self._resumed = resumed

    def follow(self, jobs: Iterable[Job]) -> None:
        held: dict[str, tuple[Job, ...]] = {}
        for job in jobs:
            for uuid in job.gpus:
                held[uuid] = (*held.get(uuid, ()), job)
        if held != self._jobs:
            self._jobs = held
            self.refresh()

    def close(self) -> None:
        self._closed = True
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(2.0)

    def lose(self, index: int) -> None:
        self._lost[self.gpus[index].uuid] = self._clock.now()
        self.refresh()

    def xid(self, index: int, code: int) -> None:
        self._xids[self.gpus[index].uuid] = code, self._clock.now()
        self.refresh()

    def foreign(self, index: int, *processes: GpuProcess, load: float = 0.35) -> None:
        """Set the foreign processes on this GPU, and the least load of the GPU, 0 to 1."""
        known = tuple(replace(process, started_at=started_at(process)) for process in processes)
        self._foreign[self.gpus[index].uuid] = load if known else 0.0, known
        self.refresh()

    def cap(self, index: int, watts: float) -> None:
        self._caps[self.gpus[index].uuid] = watts
        self.refresh()

    def heal(self, index: int) -> None:
        self._lost.pop(self.gpus[index].uuid, None)
        self._xids.pop(self.gpus[index].uuid, None)
        self.refresh()

    def reading_at(self, now: datetime) -> ProbeReading:
        """Return the reading at that time, given the jobs and the simulated faults."""
        samples = {}
        for gpu in self.gpus:
            lost_at = self._lost.get(gpu.uuid)
            sample = self._healthy(gpu, now if lost_at is None else min(now, lost_at))
            samples[gpu.uuid] = sample if lost_at is None else replace(sample, health=LOST)
        busy = sum(sample.utilization or 0.0 for sample in samples.values())
        host = simulated_host(self._seed, now, busy, self._roles)
        return ProbeReading(self._status, self.gpus, MappingProxyType(samples), now, _DRIVER, host=host)

    def _read(self) -> ProbeReading:
        with self._lock:  # so that a reading begun before `follow` does not replace the one made after it
            self._latest = self._reasons.in_reading(self.reading_at(self._clock.now()))
            return self._latest

    def _healthy(self, gpu: Gpu, now: datetime) -> GpuSample:
        jobs = self._jobs.get(gpu.uuid, ())
        loads, listed = [], []
        for job in jobs:  # those whose containers run by then
            attempt = job.attempt
            if attempt is not None and attempt.started_at is not None and now >= attempt.started_at:
                key = f"{self._seed} {gpu.index} {job.id} {attempt.number}"
                loads.append((job, load := Load(key, (now - attempt.started_at).total_seconds())))
                listed.append(self._process(job, attempt, load))
        others, foreign = self._foreign.get(gpu.uuid, (0.0, ()))
        processes = (*listed, *foreign)
        used = sum(process.memory or 0 for process in processes)
        active = [load for job, load in loads if not job.is_suspended]
        busy = min(1.0, sum(load.utilization for load in active))
        warmth = min(1.0, sum(load.warmth for load in active)) if active else None
        model, tremble = self._model, wave(f"{self._seed} {gpu.uuid}", now.timestamp(), 5)
        busy = max(busy, others)
        limit = self._caps.get(gpu.uuid, model.power_limit)
        watts = power(model, busy, tremble)
        (code, at), resumed_at = self._xids.get(gpu.uuid, (None, None)), self._resumed.get(gpu.uuid)
        is_forgiven = at is not None and resumed_at is not None and at <= resumed_at
        sample = GpuSample(
            uuid=gpu.uuid,
            sampled_at=now,
            utilization=round(busy, 2),
            memory_utilization=round(busy * 0.6, 2),
            sm_activity=round(busy * 0.85, 2) if model.has_counters else None,
            memory_activity=round(busy * 0.45, 2) if model.has_counters else None,
            memory_used=min(used, model.memory),
            memory_total=model.memory,
            temperature=temperature(busy if warmth is None else warmth, tremble),
            power=round(min(limit, watts), 1),
            power_limit=limit,
            sm_clock=round(model.boost_clock * min(1.0, limit / watts)) if busy > 0.02 else model.idle_clock,
            memory_clock=model.memory_clock,
            fan=round(0.3 + 0.4 * busy, 2) if model.has_fan else None,
            throttle=(CAP,) if limit < power(model, busy, 0.0) else (),
            processes=processes,
            processes_at=now,
            ecc_corrected=0,
            ecc_uncorrected=0,
            xid=code,
            health=health_of(SlowReadings(), code if code in FATAL_XIDS and not is_forgiven else None),
        )
        if self._pcie == gpu.uuid:  # with throughput
            lanes = max((link.lanes for link in gpu.links), default=0)
            sent = min(1.0, sum(load.utilization for job, load in loads if len(job.gpus) > 1)) * 0.22 * lanes * _LANE
            sample = replace(
                sample,
                pcie_tx=round(busy, 2) * 2.4e9,
                pcie_rx=round(busy, 2) * 4.1e9,
                nvlink_tx=sent if lanes else None,
                nvlink_rx=sent * (0.97 + 0.06 * chance(gpu.uuid, now)) if lanes else None,
            )
            return replace(sample, processes=_with_shares(processes, round(busy, 2)))
        if self._pcie == ALL_SHARES or len(jobs) > 1:
            return replace(sample, processes=_with_shares(processes, busy))
        return sample

    def _process(self, job: Job, attempt: Attempt, load: Load) -> GpuProcess:
        """Return the job's process, which uses part of the GPU's memory, or of the memory promised to a sharing job."""
        named = _ATTEMPT_NAME.search(attempt.container_id or "")  # a host attempt's name tells the store too
        store = self._store_id or (named[1] if named else "")
        return GpuProcess(
            pid=100_000 + int(3_900_000 * chance(load.key, "pid")),
            memory=int(load.memory * (job.spec.gpus.promised or self._model.memory)),
            user=job.submitted_by or job.spec.tenant or None,
            command=" ".join(job.spec.command)[:200] or job.spec.name or None,
            container_id=None if job.spec.is_host else attempt.container_id,
            attempt=f"{store}:{job.id}:{attempt.number}" if store else None,
            ticks=ticks_of(attempt.started_at),
            started_at=attempt.started_at,
        )


def make_gpus(count: int, model: Model, seed: int) -> tuple[Gpu, ...]:
    """Return GPUs of that model on two sockets, the same for the same seed."""
    uuids = []
    for index in range(count):
        a, b, c, d = (int(chance(seed, index, part) * 0xFFFFFFFF) for part in range(4))
        rest = f"{b >> 16:04x}-4{b & 0xFFF:03x}-8{c >> 20:03x}-{c & 0xFFFFF:05x}{d & 0xFFFFFFF:07x}"
        uuids.append(f"GPU-{a:08x}-{rest}")

    def link(index: int, other: int) -> Link:
        joined = other == index ^ 1 if model.pairs else other // _BOARD == index // _BOARD
        if model.lanes and joined:
            return Link(uuids[other], "NVLINK", model.lanes)
        same = _numa(index, count) == _numa(other, count)
        if same and index // 2 == other // 2:
            return Link(uuids[other], "PXB")
        return Link(uuids[other], "NODE" if same else "SYS")

    def near(index: int) -> Iterator[int]:
        is_large = count > _MOST_PATHS
        return (each for each in range(count) if each != index and not (is_large and each // _BOARD != index // _BOARD))

    return tuple(
        Gpu(
            uuid=uuid,
            index=index,
            model=model.name,
            memory_total=model.memory,
            pci_bus_id=f"{index // 32:08X}:{0x10 + index % 32 * 4:02X}:00.0",
            numa_node=_numa(index, count),
            minor=index,
            links=tuple(link(index, other) for other in near(index)),
            power_limit=model.power_limit,
            default_power_limit=model.power_limit,
            persistence=True,
        )
        for index, uuid in enumerate(uuids)
    )


def _numa(index: int, count: int) -> int:
    return int(index >= (count + 1) // 2)


class Load(Struct, frozen=True):
    """Load of a job on one GPU, `elapsed` seconds after its start; a pure function of key and time."""

    key: str
    """Key made of the seed, the GPU and the attempt."""
    elapsed: float

    @property
    def utilization(self) -> float:
        """Utilisation, 0 to 1: rises within seconds, then stays high with a dip at the end of each epoch."""
        return self._at(self.elapsed)

    @property
    def warmth(self) -> float:
        """Mean utilisation of the last half minute, 0 to 1, which the temperature follows."""
        return sum(self._at(self.elapsed - back) for back in (0, 6, 12, 18, 24, 30)) / 6

    @property
    def memory(self) -> float:
        """Used share of the GPU's memory, 0 to 1: rises to a plateau."""
        plateau = 0.42 + 0.5 * chance(self.key, "memory")
        return plateau * min(1.0, 0.08 + max(0.0, self.elapsed) / (1.5 * _RAMP))

    def _at(self, elapsed: float) -> float:
        if elapsed <= 0:
            return 0.0
        busy = 0.84 + 0.13 * chance(self.key, "busy")
        epoch = 45 + 60 * chance(self.key, "epoch")
        if elapsed > epoch and elapsed % epoch > epoch - _DIP:
            busy *= 0.15 + 0.2 * chance(self.key, f"dip {int(elapsed / epoch)}")
        wobble = 0.05 * (wave(self.key, elapsed, 7) + 0.5 * wave(self.key, elapsed, 2))
        return min(1.0, max(0.0, min(1.0, elapsed / _RAMP) * (busy + wobble)))


def power(model: Model, utilization: float, jitter: float) -> float:
    """Return watts at that utilisation: a steep rise at first, close to the limit at the end."""
    span = model.power_limit - model.idle_power
    return min(model.power_limit, model.idle_power + span * 0.93 * math.pow(utilization, 0.75) + 4 * jitter)


def temperature(warmth: float, jitter: float) -> float:
    return float(round(31 + 41 * warmth + 1.5 * jitter))


def _with_shares(processes: tuple[GpuProcess, ...], busy: float) -> tuple[GpuProcess, ...]:
    whole = sum(process.memory or 0 for process in processes)
    return tuple(
        replace(process, sm=round(busy * (process.memory or 0) / whole, 2) if whole else None) for process in processes
    )


_GIB = 1024**3
CORES = 128
MEMORY = 1024 * _GIB
SWAP = 8 * _GIB
_EVERY = 2
"""Seconds between two readings, as of the real probe."""
_DISKS = {STATE: ("/data", 7 * 1024 * _GIB, 0.78), DOCKER: ("/var/lib/docker", 1800 * _GIB, 0.46)}
"""Mount point, size and used share by role."""


def simulated_host(seed: int, now: datetime, busy: float, roles: Iterable[str]) -> HostSample:
    """Return the reading at that time; `busy` is the load of all GPUs, 1 for each fully used one."""
    at = now.timestamp() // _EVERY * _EVERY
    flutter, slow = wave(f"{seed} host", at, 6), wave(f"{seed} host", at, 90)
    cpu = min(0.97, 0.03 + 0.055 * busy * (1 + 0.15 * flutter + 0.1 * slow))
    reading = 1e8 * busy * (1 + 0.5 * wave(f"{seed} received", at, 12))
    disks, day = [], timedelta(days=1).total_seconds()
    for role in sorted(_DISKS.keys() & set(roles), reverse=True):
        mount, total, used = _DISKS[role]
        share = used + 0.04 * (at % day) / day  # it fills up by four points in a day, and is cleaned at midnight
        disks.append(DiskUse(mount, (role,), total, round(total * (1 - share))))
    return HostSample(
        sampled_at=datetime.fromtimestamp(at, UTC),
        cpu=round(cpu, 3),
        cores=CORES,
        load=round(CORES * cpu * (1 + 0.1 * slow), 1),
        memory_total=MEMORY,
        memory_used=round(MEMORY * min(0.95, 0.05 + 0.05 * busy + 0.01 * slow)),
        swap_total=SWAP,
        swap_used=0,
        received=round(reading + 2e6 * (1 + flutter)),
        sent=round(reading / 5 + 1e6 * (1 + slow)),
        disks=tuple(disks),
    )


FOREIGN, DRAINED, CAPPED = 5, 6, 2
"""Indices of the GPU with a foreign container, of the drained one, and of the one with a limit of 65 %."""
_CONTAINER = ("c4a01" + "5ea51de" * 9)[:64]
_TICKS = 100
"""Ticks per second; simulated processes count them from 1970."""


def furnish(probe: SimulatedProbe) -> tuple[ForeignContainer, ...]:
    """Put a foreign container on a GPU, and cap another; return the containers. With few GPUs there is neither."""
    gpus = probe.gpus
    if len(gpus) <= max(FOREIGN, DRAINED, CAPPED):
        return ()
    probe.cap(CAPPED, round(0.65 * (gpus[CAPPED].power_limit or 0)))
    memory = (gpus[FOREIGN].memory_total or 0) // 4
    began = (probe.latest().taken_at or datetime.now(UTC)) - UPTIME
    command = "python -m ipykernel_launcher"
    process = GpuProcess(22_110, memory, "carol", command, _CONTAINER, ticks=ticks_of(began))
    probe.foreign(FOREIGN, process)
    image = "jupyter/pytorch:cuda12"
    return (ForeignContainer(_CONTAINER, "jupyter-carol", "carol", (gpus[FOREIGN].uuid,), image, began),)


def ticks_of(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp() * _TICKS)  # never after it: no process is younger than its job


def started_at(process: GpuProcess) -> datetime | None:
    return None if process.ticks is None else datetime.fromtimestamp(process.ticks / _TICKS, UTC)


def readings_of_past(probe: SimulatedProbe, jobs: Iterable[Job], since: datetime, now: datetime) -> Iterator[TakenStep]:
    """Yield the readings that these ended jobs would have left; changes `probe`, which is then useless."""

    def running(job: Job) -> Job:
        attempt = replace(job.attempts[-1], ended_at=None, cause=None, exit_code=None)
        return job.evolve(attempts=(attempt,), ended_at=None, exit_code=None, cause=None, state=JobState.RUNNING)

    known = [(job, job.started_at, job.ended_at) for job in jobs]
    at = since
    while at < now:
        probe.follow(running(job) for job, began, ended in known if began and ended and began <= at < ended)
        samples: dict[str, GpuSample] = dict(probe.reading_at(at).samples)
        yield TakenStep(at, {uuid: mean([sample]) for uuid, sample in samples.items()})
        at += STEP


_LOADED = timedelta(seconds=20)
"""Age at which a process has loaded its data, and its memory no longer grows."""


class SimulatedProcesses(Struct, eq=False):
    """HostProcesses of simulated GPUs. They get no signals and have no environment."""

    _latest: Callable[[], ProbeReading]
    _clock: Clock

    def rows(self, pids: tuple[int, ...], *, with_parents: bool = False) -> Mapping[int, ProcessRow]:
        """Return a few cores that feed the GPU of each, and memory that grows while it loads its data."""
        samples, now = self._latest().samples.values(), self._clock.now()
        listed = {each.pid: (each, sample) for sample in samples for each in sample.processes or ()}
        at = now.timestamp() // _EVERY * _EVERY
        rows = {}
        for pid in filter(listed.__contains__, pids):
            process, sample = listed[pid]
            began = started_at(process)
            age = None if began is None else max(timedelta(0), now - began)
            loaded = 1.0 if age is None else min(1.0, 0.1 + age / _LOADED)
            cores = 1.1 + 2.5 * chance(pid, "cores") if sample.utilization else 0.0  # none while its job is suspended
            rows[pid] = ProcessRow(
                pid,
                user=process.user or "",
                command=process.command or "",
                cpu=round(cores * (1 + 0.25 * wave(f"{pid} cores", at, 8)), 2),
                memory=round((3 + 15 * chance(pid, "memory")) * loaded * _GIB),
                age=age,
                ticks=process.ticks,
            )
        return rows

    def environment(self, target: ProcessTarget) -> tuple[str, ...]:
        raise GputuiError(f"pid {target.pid} is simulated: it has no environment")

    def signal(self, target: ProcessTarget, number: int, patience: float, before: Callable[[], None]) -> SignalOutcome:
        raise GputuiError(f"pid {target.pid} is simulated: it gets no signals")


UPTIME = timedelta(hours=5, minutes=48)
"""Time for which they have run when the demo begins."""
_LINES = (
    "Entered start.sh with args: start-notebook.py",
    "[ServerApp] Serving notebooks from local directory: /home/jovyan/work",
    "[ServerApp] Jupyter Server 2.14.2 is running at http://localhost:8888/lab",
    "[ServerApp] Kernel started: 5b0c1b1e (python3)",
    "[ServerApp] Saving file at /ablation-attention.ipynb",
)
_APART = timedelta(minutes=7)


class SimulatedContainers:
    """ForeignContainers that exist only here; `removed` is called after one was stopped."""

    def __init__(self, containers: Iterable[ForeignContainer], removed: Callable[[], None], clock: Clock) -> None:
        self._running = tuple(containers)
        self._removed = removed
        self._began = clock.now() - UPTIME
        self._stopped: dict[str, ContainerDetail] = {}

    @property
    def running(self) -> tuple[ForeignContainer, ...]:
        return tuple(each for each in self._running if each.id not in self._stopped)

    def inspect(self, name: str) -> ContainerDetail:
        found = next((each for each in self._running if name in {each.name, each.id}), None)
        if found is None:
            raise NotFoundError(f"there is no container {name[:64]}", hint="the demo has only simulated ones")
        return self._stopped.get(found.id) or ContainerDetail(
            found.id,
            found.name,
            found.image,
            found.user or "",
            "start-notebook.py --ip=0.0.0.0",
            "running",
            started_at=self._began,
            mounts=(f"/home/{found.user} → /home/jovyan/work",),
            ports=("8888/tcp on 127.0.0.1:8888",),
            devices=found.devices,
            stop_signal="SIGTERM",
        )

    def stop(self, container_id: str, patience: int) -> ContainerDetail:
        """Stop the container, which ends at once; return its final state."""
        detail = replace(self.inspect(container_id), state="exited", exit_code=0)
        self._stopped[detail.id] = detail
        self._removed()
        return detail

    def logs(self, container_id: str, *, tail: int | None, follow: bool, stamped: bool) -> SimulatedOutput:
        began = self.inspect(container_id).started_at or self._began
        return SimulatedOutput(began, tail=tail, follow=follow, is_stamped=stamped)

    def close(self) -> None: ...


class SimulatedOutput:
    """LogStream of a few lines, which if followed ends when it is closed."""

    def __init__(self, began: datetime, *, tail: int | None, follow: bool, is_stamped: bool) -> None:
        self._began = began
        self._first = 0 if tail is None else max(0, len(_LINES) - tail)
        self._follow = follow
        self.is_stamped = is_stamped
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        for number, line in enumerate(_LINES[self._first :], self._first):
            at = f"{self._began + number * _APART:%Y-%m-%dT%H:%M:%SZ} " if self.is_stamped else ""
            yield f"{at}{line}".encode()
        if self._follow:
            self._closed.wait()

    def close(self) -> None:
        self._closed.set()
