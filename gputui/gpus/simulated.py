"""Simulated GPUs: a probe that needs no driver, whose readings follow the jobs allocated to them."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType

from gputui.domain.gpu import Gpu, GpuProcess, GpuSample, Health, ProbeCode, ProbeReading, ProbeStatus
from gputui.domain.job import Attempt, Job
from gputui.gpus.board import make_gpus
from gputui.gpus.health import FATAL_XIDS, LOST, health_of
from gputui.gpus.load import Load, chance, power, temperature, wave
from gputui.gpus.looked_at import looked_at
from gputui.gpus.models import DEFAULT, MODELS
from gputui.gpus.wire import Slow
from gputui.ports import Clock

log = logging.getLogger(__name__)
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
        """By the UUID of each GPU they hold."""
        self._foreign: dict[str, tuple[GpuProcess, ...]] = {}
        self._lost: dict[str, datetime] = {}
        self._xids: dict[str, int] = {}
        self._xid_at: dict[str, datetime] = {}
        self._resumed: Mapping[str, datetime] = {}
        self._pcie: str | None = None
        self._status = ProbeStatus(ProbeCode.OK, "", clock.now())
        self._subscribers: tuple[Callable[[ProbeReading], None], ...] = ()
        self._latest: ProbeReading | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to publish readings, in the background; once."""
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="gpu-simulation", daemon=True)
                self._thread.start()

    def latest(self) -> ProbeReading:
        """The last reading published; without the background thread, one of now."""
        return self._latest or self.reading_at(self._clock.now())

    def subscribe(self, on_reading: Callable[[ProbeReading], None]) -> None:
        """Call `on_reading`, from the probe's thread, with each new reading."""
        with self._lock:
            self._subscribers = (*self._subscribers, on_reading)

    def refresh(self) -> None:
        """Have the next reading at once."""
        if self._thread is not None and not self._closed:
            self._read()
            self._wake.set()

    def want_pcie(self, uuid: str | None) -> None:
        """Tell of the throughput and the processes' shares of this GPU alone."""
        self._pcie = uuid

    def forgive(self, resumed: Mapping[str, datetime]) -> None:
        """Forget older fatal Xids of these GPUs."""
        self._resumed = resumed

    def follow(self, jobs: Iterable[Job]) -> None:
        """These jobs, and no others, hold GPUs from now on."""
        held: dict[str, tuple[Job, ...]] = {}
        for job in jobs:
            for uuid in job.gpus:
                held[uuid] = (*held.get(uuid, ()), job)
        if held != self._jobs:
            self._jobs = held
            self.refresh()

    def close(self) -> None:
        """Stop publishing."""
        self._closed = True
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(2.0)

    def lose(self, index: int) -> None:
        """Have this GPU fall off the bus now."""
        self._lost[self.gpus[index].uuid] = self._clock.now()
        self.refresh()

    def xid(self, index: int, code: int) -> None:
        """Have this GPU throw an Xid."""
        self._xids[self.gpus[index].uuid] = code
        self._xid_at[self.gpus[index].uuid] = self._clock.now()
        self.refresh()

    def foreign(self, index: int, *processes: GpuProcess) -> None:
        """Put processes of others on this GPU; without any, take them away."""
        self._foreign[self.gpus[index].uuid] = processes
        self.refresh()

    def heal(self, index: int) -> None:
        """Have this GPU well again."""
        self._lost.pop(self.gpus[index].uuid, None)
        self._xids.pop(self.gpus[index].uuid, None)
        self.refresh()

    def reading_at(self, now: datetime) -> ProbeReading:
        """What the GPUs would be like at that time, given the jobs followed and the trouble told of."""
        samples = MappingProxyType({gpu.uuid: self._sample(gpu, now) for gpu in self.gpus})
        return ProbeReading(self._status, self.gpus, samples, now, _DRIVER)

    def _run(self) -> None:
        while not self._closed:
            self._wake.clear()
            self._publish(self._read())
            self._wake.wait(self._interval)

    def _read(self) -> ProbeReading:
        with self._lock:  # or a reading begun before `follow` could replace the one made after it
            self._latest = self.reading_at(self._clock.now())
            return self._latest

    def _publish(self, reading: ProbeReading) -> None:
        for tell in self._subscribers:
            try:
                tell(reading)
            except Exception:  # a border: one listener's trouble is not the others'
                log.exception("a listener of the simulated probe failed")

    def _sample(self, gpu: Gpu, now: datetime) -> GpuSample:
        lost_at = self._lost.get(gpu.uuid)
        if lost_at is not None:
            return replace(self._healthy(gpu, min(now, lost_at)), health=LOST)
        return self._healthy(gpu, now)

    def _healthy(self, gpu: Gpu, now: datetime) -> GpuSample:
        loads = [(job, load) for job in self._jobs.get(gpu.uuid, ()) if (load := self._load(gpu, job, now))]
        processes = (*(self._process(job, load) for job, load in loads), *self._foreign.get(gpu.uuid, ()))
        used = sum(process.memory or 0 for process in processes)
        busy = min(1.0, sum(load.utilization for _, load in loads))
        warmth = min(1.0, sum(load.warmth for _, load in loads)) if loads else None
        busy = max(busy, 0.35 if self._foreign.get(gpu.uuid) else 0.0)
        model, tremble = self._model, wave(f"{self._seed} {gpu.uuid}", now.timestamp(), 5)
        sample = GpuSample(
            uuid=gpu.uuid,
            sampled_at=now,
            utilization=round(busy, 2),
            memory_utilization=round(busy * 0.6, 2),
            memory_used=min(used, model.memory),
            memory_total=model.memory,
            temperature=temperature(busy if warmth is None else warmth, tremble),
            power=round(power(model, busy, tremble), 1),
            power_limit=model.power_limit,
            sm_clock=model.boost_clock if busy > 0.02 else model.idle_clock,
            memory_clock=model.memory_clock,
            fan=round(0.3 + 0.4 * busy, 2) if model.has_fan else None,
            throttle=("power cap",) if busy > 0.97 else (),
            processes=processes,
            processes_at=now,
            ecc_corrected=0,
            ecc_uncorrected=0,
            xid=self._xids.get(gpu.uuid),
            health=self._health(gpu),
        )
        if self._pcie != gpu.uuid:
            return sample
        return looked_at(sample, gpu, min(1.0, sum(load.utilization for job, load in loads if len(job.gpus) > 1)))

    def _health(self, gpu: Gpu) -> Health:
        code, at, resumed_at = self._xids.get(gpu.uuid), self._xid_at.get(gpu.uuid), self._resumed.get(gpu.uuid)
        is_forgiven = at is not None and resumed_at is not None and at <= resumed_at
        return health_of(Slow(), code if code in FATAL_XIDS and not is_forgiven else None)

    def _load(self, gpu: Gpu, job: Job, now: datetime) -> Load | None:
        """What a job on it makes of it; None while its container does not run."""
        attempt = job.attempt
        if attempt is None or attempt.started_at is None or now < attempt.started_at:
            return None
        key = f"{self._seed} {gpu.index} {job.id} {attempt.number}"
        return Load(key, (now - attempt.started_at).total_seconds())

    def _process(self, job: Job, load: Load) -> GpuProcess:
        """Its process, which grows to a part of the GPU's memory, or of what the job was promised where it shares."""
        attempt = job.attempts[-1]
        return GpuProcess(
            pid=100_000 + int(3_900_000 * chance(load.key, "pid")),
            memory=int(load.memory * (job.spec.gpus.promised or self._model.memory)),
            user=job.submitted_by or job.spec.tenant or None,
            command=" ".join(job.spec.command)[:200] or job.spec.name or None,
            container_id=None if job.spec.is_host else attempt.container_id,
            attempt=self._tag(job, attempt),
        )

    def _tag(self, job: Job, attempt: Attempt) -> str | None:
        """What GPUTUI_ATTEMPT is inside: by the store's id, which a host attempt's name tells too."""
        named = _ATTEMPT_NAME.search(attempt.container_id or "")
        store = self._store_id or (named[1] if named else "")
        return f"{store}:{job.id}:{attempt.number}" if store else None
