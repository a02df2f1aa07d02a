"""Recorder of the running attempts' use of GPUs and of the machine.

GPU readings are those that ticks have anyway. Control groups are read by workers, every second at first and every
`_SLOWEST` seconds later. Sums are saved beside the logs once a minute and when the scheduler ends, so that the next one
continues them; the store gets the summary when the attempt ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

from gputui.domain.container import ContainerRecord
from gputui.domain.errors import RuntimeFault
from gputui.domain.gpu import ProbeReading
from gputui.domain.job import Job, JobState
from gputui.domain.telemetry import AttemptTelemetry, Consumption
from gputui.engine.files.telemetry_files import AttemptKey, AttemptTallies, Measurement
from gputui.engine.tick.observer import Observer
from gputui.engine.tick.worker_pools import Pools, WorkKind
from gputui.ports import Clock, Runtime

log = logging.getLogger(__name__)

_SLOWEST = 10.0
"""Maximum seconds between two readings of a control group."""


class TelemetryRecorder:
    """Tallies of the running attempts; `save` writes the sums of all."""

    def __init__(self, directory: Path, store_id: str, pools: Pools, clock: Clock) -> None:
        self._store_id = store_id
        self._groups = GroupReader(pools, clock)
        self._tallies = AttemptTallies(directory, lambda: pools(WorkKind.TELEMETRY, ""))
        self.save = self._tallies.save

    def update(
        self, active: Iterable[Job], observers: Mapping[str, Observer], reading: ProbeReading, now: datetime
    ) -> None:
        """Add the new readings of running attempts, and store the series of ended ones."""
        running = {_key(job): job for job in active if job.attempt is not None and not job.attempt.is_over}
        for key in self._tallies.keys - running.keys():
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
            if _is_due(measurement, second):
                due.setdefault(job.spec.runtime_in(observers), []).append((key, measurement.container_id))
            self._tallies.save_if_due(key, second)
        for name, containers in due.items():
            if name in observers:
                self._groups.read(observers[name].runtime, containers)

    def result(self, job: Job, now: datetime, record: ContainerRecord | None = None) -> AttemptTelemetry | None:
        """Return the summary of the job's attempt, which ended as the record says; None if nothing was read."""
        measurement = self._tallies.get(_key(job))
        if measurement is None:
            return None
        tally, ended_at = measurement.tally, (record.ended_at if record else None) or now
        if record is not None and record.consumption is not None:
            tally.add_host(record.consumption, ended_at.timestamp())
        return tally.summary(ended_at.timestamp(), job.spec.gpus.promised)

    def idle_since(self, job: Job) -> dict[str, tuple[float, float]]:
        """Return for each GPU of the job when it was last used and last read; empty before the first reading."""
        return self._tallies.idle_since(_key(job))


def _is_due(measurement: Measurement, second: float) -> bool:
    """Return whether to read the control group; early, so that short jobs are read at all."""
    pause = min(_SLOWEST, max(1.0, (second - measurement.tally.record.began) / 10))
    if abs(second - measurement.asked_at) < pause:
        return False
    measurement.asked_at = second
    return True


class GroupReader:
    """Reads control groups in workers, those of one runtime one after the other."""

    def __init__(self, pools: Pools, clock: Clock) -> None:
        self._pools = pools
        self._clock = clock
        self._lock = threading.Lock()
        self._found: dict[AttemptKey, tuple[Consumption, float]] = {}
        self._reading: set[str] = set()

    def read(self, runtime: Runtime, containers: list[tuple[AttemptKey, str]]) -> None:
        """Read the control groups of these attempts, unless a worker is still busy with the last request."""
        with self._lock:
            if runtime.name in self._reading:
                return
            self._reading.add(runtime.name)
        self._pools(WorkKind.TELEMETRY, runtime.name).submit(self._read, runtime, containers)

    def take(self, key: AttemptKey) -> tuple[Consumption, float] | None:
        """Remove and return what was read since the last call, with its time; None for nothing."""
        if key not in self._found:
            return None
        with self._lock:
            return self._found.pop(key, None)

    def _read(self, runtime: Runtime, containers: list[tuple[AttemptKey, str]]) -> None:
        try:
            for key, container_id in containers:
                self._read_one(runtime, key, container_id)
        finally:
            with self._lock:
                self._reading.discard(runtime.name)

    def _read_one(self, runtime: Runtime, key: AttemptKey, container_id: str) -> None:
        try:
            found = runtime.consumption(container_id)
        except RuntimeFault as fault:  # the attempt has ended meanwhile
            log.debug("the use of the machine by %s is not known: %s", container_id[:12], fault)
            return
        except Exception:  # the border of a worker
            log.exception("reading the control group of job %d", key[0])
            return
        if found is not None:
            with self._lock:
                self._found[key] = (found, self._clock.now().timestamp())


def _key(job: Job) -> AttemptKey:
    return (job.id, job.attempts[-1].number)
