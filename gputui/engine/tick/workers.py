"""Threads beside the tick: pools of workers, observers of runtimes, readers of control groups."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Executor
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.container import ContainerRecord, ForeignContainer, RuntimeStatus
from gputui.domain.errors import RuntimeFault
from gputui.domain.gpu import ProbeReading
from gputui.domain.job import Job
from gputui.domain.state import JobState
from gputui.domain.telemetry import AttemptTelemetry, Consumption
from gputui.engine.telemetry_files import AttemptKey, AttemptTallies, attempt_key
from gputui.ports import Clock, Runtime
from gputui.threads import DaemonExecutor, Watcher

log = logging.getLogger(__name__)
T = TypeVar("T")


class WorkKind(StrEnum):
    """Kinds of work, each with its own pool in each runtime: no kind waits for another."""

    START = "start"
    """Create and start containers."""
    STOP = "stop"
    """Send signals: time limits, cancellations, preemptions, warnings."""
    EXIT = "exit"
    """Read the last lines of an attempt that ended; its end is recorded afterwards."""
    CLEAN = "clean"
    """Save logs and remove containers: a log may have gigabytes."""
    LOOK = "look"
    """Check whether an image is present."""
    PULL = "pull"
    """Pull images from a registry."""
    HISTORY = "history"
    """Read the history for fair share."""
    TELEMETRY = "telemetry"
    """Read control groups, and write what was measured; one thread, so that files are written in order."""


THREADS = {
    WorkKind.START: 8,
    WorkKind.STOP: 8,
    WorkKind.EXIT: 4,
    WorkKind.CLEAN: 4,
    WorkKind.LOOK: 4,
    WorkKind.PULL: 8,
    WorkKind.HISTORY: 1,
    WorkKind.TELEMETRY: 1,
}
"""Maximum threads of each pool; an engine gains nothing from more."""

Pools: TypeAlias = Callable[[WorkKind, str], Executor]
"""Returns the pool for a kind of work in a runtime, by the runtime's name."""


class WorkerPools(Struct, eq=False):
    """Worker pools of one scheduler, created as needed. Their threads are daemons, so they do not delay the exit."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _pools: dict[tuple[WorkKind, str], DaemonExecutor] = field(default_factory=dict)
    _is_closed: bool = False

    def __call__(self, work: WorkKind, runtime: str) -> Executor:
        with self._lock:
            key = (work, runtime)
            if key not in self._pools:
                self._pools[key] = DaemonExecutor(THREADS[work], f"{work}-{runtime}" if runtime else str(work))
                if self._is_closed:
                    self._pools[key].shutdown()
            return self._pools[key]

    def close(self, within: float) -> bool:
        """Start nothing more; return whether current work, except pulls, ended within that many seconds."""
        with self._lock:
            self._is_closed = True
            pools = dict(self._pools)
        for pool in pools.values():
            pool.shutdown()
        deadline = time.monotonic() + within
        awaited = [pool for (work, _), pool in pools.items() if work is not WorkKind.PULL]
        return all(pool.drain(deadline - time.monotonic()) for pool in awaited)


SECOND_LOOK = 0.3
"""Seconds after a poke until a second listing: engines report an end before their listing shows it."""
SILENT_AFTER = 5.0
"""Seconds without an answer after which nobody knows what a runtime runs. It is asked twice as often."""
_NOBODY = "gputui-nobody"
"""Name of no container: the cheapest question that every runtime answers."""


class Observation(Struct, frozen=True):
    """Listing of a runtime. `records` and `foreign` are None if it did not answer."""

    status: RuntimeStatus
    begun: int = 0
    """Sequence number of the listing, which contains all work with lower numbers. 0 before the first listing."""
    records: tuple[ContainerRecord, ...] | None = None
    foreign: tuple[ForeignContainer, ...] | None = None


class Sequence(Struct, eq=False):
    """Source of increasing sequence numbers for events, independent of the clock."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _last: int = 0

    def next(self) -> int:
        with self._lock:
            self._last += 1
            return self._last


class Observer:
    """Lists the containers of one runtime when poked, at an interval, and as soon as it answers again."""

    def __init__(
        self,
        runtime: Runtime,
        sequence: Sequence,
        changed: Callable[[], None],
        interval: timedelta,
        silent_after: float = SILENT_AFTER,
    ) -> None:
        self.runtime = runtime
        self._sequence = sequence
        self._changed = changed
        self._interval = interval.total_seconds()
        self._silent_after = silent_after
        self._asked_at: float | None = None
        """Second at which the question was asked that waits for an answer."""
        self._poked = threading.Event()
        self._stopped = False
        self._trouble = ""
        """Reason why the last listing failed; each is logged once, since an engine may be away for ever."""
        self._latest = Observation(runtime.status())

    @property
    def latest(self) -> Observation:
        """Latest listing; no containers are known while the runtime does not answer."""
        asked_at, last = self._asked_at, self._latest
        is_known_down = bool(last.begun) and last.records is None
        if asked_at is None or is_known_down or time.monotonic() - asked_at < self._silent_after:
            return last
        who = last.status.text if last.status.up else self.runtime.name
        text = f"{who} has not answered for {self._silent_after:g} s: it hangs, or is very slow"
        return Observation(replace(last.status, up=False, text=text, asked=True, since=None), last.begun or 1)

    def start(self) -> None:
        """Start listing, in a daemon thread: a call that hangs must not keep the process from ending."""
        Watcher(f"observe-{self.runtime.name}", self._run).start()
        self.runtime.watch(self.poke)

    def poke(self) -> None:
        """Request a listing. Never blocks."""
        self._poked.set()

    def stop(self) -> None:
        self._stopped = True
        self._poked.set()

    def observe(self) -> None:
        """List the runtime's containers in this thread; call `changed` if the listing differs."""
        begun, self._asked_at = self._sequence.next(), self._asked_at or time.monotonic()
        try:
            if not self.runtime.status().up:
                self.runtime.check()
            records = self.runtime.containers()
            foreign = self.runtime.foreign()
        except RuntimeFault as fault:
            self._log(str(fault))
            status = self.runtime.status()
            observed = Observation(status if not status.up else self.runtime.check(), begun)
        else:
            self._log("")
            observed = Observation(self.runtime.status(), begun, records, foreign)
        before, self._latest, self._asked_at = self._latest, observed, None
        if (before.status, before.records, before.foreign) != (observed.status, observed.records, observed.foreign):
            self._changed()

    def _log(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            log.warning("%s: %s", self.runtime.name, trouble)
        elif self._trouble and not trouble:
            log.info("%s answers again", self.runtime.name)
        self._trouble = trouble

    def _run(self) -> None:
        poked = False
        while not self._stopped:
            self.observe()
            poked = self._wait(SECOND_LOOK if poked else self._interval)
            self._poked.clear()

    def _wait(self, seconds: float) -> bool:
        """Wait for so long, less once the runtime does not answer, or until poked; return whether it was poked."""
        until, pause = time.monotonic() + seconds, self._silent_after / 2
        while (left := until - time.monotonic()) > 0:
            if self._poked.wait(min(left, pause)):
                return True
            if left > pause:
                if self._latest.records is None:
                    break
                self._asked_at = time.monotonic()
                try:
                    self.runtime.inspect(_NOBODY)
                except RuntimeFault:
                    break
                self._asked_at = None
        return False


_SLOWEST = 10.0
"""Maximum seconds between two readings of a control group."""


class TelemetryRecorder:
    """Tallies of the running attempts' use of GPUs and of the machine.

    GPU readings are those that ticks have anyway. Control groups are read by workers, every second at first and every
    `_SLOWEST` seconds later. Sums are saved beside the logs once a minute and when the scheduler ends, so that the next
    one continues them; the store gets the summary when the attempt ends.
    """

    def __init__(self, directory: Path, store_id: str, pools: Pools, clock: Clock) -> None:
        self._store_id = store_id

        def used(runtime: Runtime, _: AttemptKey, container_id: str) -> tuple[Consumption, float] | None:
            found = runtime.consumption(container_id)
            return None if found is None else (found, clock.now().timestamp())

        self._groups = BackgroundReader(pools, WorkKind.TELEMETRY, used, "the use of the machine by")
        self._tallies = AttemptTallies(directory, lambda: pools(WorkKind.TELEMETRY, ""))
        self.save = self._tallies.save

    def update(
        self, active: Iterable[Job], observers: Mapping[str, Observer], reading: ProbeReading, now: datetime
    ) -> None:
        """Add the new readings of running attempts, and store the series of ended ones."""
        running = {attempt_key(job): job for job in active if job.attempt is not None and not job.attempt.is_over}
        for key in self._tallies.running.keys() - running.keys():
            self._tallies.close(key)
            self._groups.take(key)
        second = now.timestamp()
        due: dict[str, list[tuple[AttemptKey, str]]] = {}
        for key, job in running.items():
            if job.state is not JobState.RUNNING or job.attempts[-1].started_at is None:
                continue
            attempt = job.attempts[-1]
            measurement = self._tallies.of(key, attempt, attempt.container_id or "", second)
            container_id, number = measurement.container_id, job.attempts[-1].number
            own = (container_id, f"{self._store_id}:{job.id}:{number}") if job.spec.gpus.promised else None
            for uuid in job.attempts[-1].gpus:
                if (sample := reading.samples.get(uuid)) is not None:
                    measurement.tally.add(sample, own)
            if (found := self._groups.take(key)) is not None:
                measurement.tally.add_host(*found)
            # early, so that short jobs are read at all
            pause = min(_SLOWEST, max(1.0, (second - measurement.tally.record.began) / 10))
            if abs(second - measurement.asked_at) >= pause:
                measurement.asked_at = second
                due.setdefault(job.spec.runtime_in(observers), []).append((key, measurement.container_id))
            self._tallies.save_if_due(key, second)
        for name, containers in due.items():
            if name in observers:
                self._groups.read(observers[name].runtime, containers, name)

    def result(self, job: Job, now: datetime, record: ContainerRecord | None = None) -> AttemptTelemetry | None:
        """Return the summary of the job's attempt, which ended as the record says; None if nothing was read."""
        measurement = self._tallies.running.get(attempt_key(job))
        if measurement is None:
            return None
        tally, ended_at = measurement.tally, (record.ended_at if record else None) or now
        if record is not None and record.consumption is not None:
            tally.add_host(record.consumption, ended_at.timestamp())
        return tally.summary(ended_at.timestamp(), job.spec.gpus.promised)

    def idle_since(self, job: Job) -> dict[str, tuple[float, float]]:
        """Return for each GPU of the job when it was last used and last read; empty before the first reading."""
        return self._tallies.idle_since(attempt_key(job))


class BackgroundReader(Struct, Generic[T], eq=False):
    """Reads in workers what attempts use or do; the latest of each is there until it is taken."""

    _pools: Pools
    _kind: WorkKind
    _ask: Callable[[Runtime, AttemptKey, str], T | None]
    _words: str
    """Words for what `_ask` reads, before the container's id in log lines."""
    _level: int = logging.DEBUG
    """Level of the log at which it is told that this is not known."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _found: dict[AttemptKey, T] = field(default_factory=dict)
    _reading: set[Hashable] = field(default_factory=set)

    def read(self, runtime: Runtime, containers: list[tuple[AttemptKey, str]], turn: Hashable) -> None:
        """Read of these attempts, one after the other, unless a worker still reads for the same turn."""
        with self._lock:
            if turn in self._reading:
                return
            self._reading.add(turn)
        self._pools(self._kind, runtime.name).submit(self._read, runtime, containers, turn)

    def take(self, key: AttemptKey) -> T | None:
        """Remove and return what was read since the last call; None for nothing."""
        if key not in self._found:
            return None
        with self._lock:
            return self._found.pop(key, None)

    def _read(self, runtime: Runtime, containers: list[tuple[AttemptKey, str]], turn: Hashable) -> None:
        try:
            for key, container_id in containers:
                try:
                    found = self._ask(runtime, key, container_id)
                except RuntimeFault as fault:  # the attempt has ended meanwhile
                    log.log(self._level, "%s %s is not known: %s", self._words, container_id[:12], fault)
                    continue
                except Exception:  # the border of a worker: what cannot be read ends no job
                    log.exception("reading %s job %d", self._words, key[0])
                    continue
                if found is not None:
                    with self._lock:
                        self._found[key] = found
        finally:
            with self._lock:
                self._reading.discard(turn)
