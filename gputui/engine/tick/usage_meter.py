"""Measures how running attempts use their GPUs, from the readings that ticks have anyway.

The sums are kept in a file, written at most once a minute and when the scheduler ends, so the next scheduler continues
them. The file may be lost at any time: then the figures cover less time, and say so.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from gputui.domain.efficiency import Efficiency, GpuUseTally
from gputui.domain.gpu import ProbeReading
from gputui.domain.job import Job
from gputui.domain.state import JobState
from gputui.engine.files.file_modes import file_mode, new_file, read_file
from gputui.engine.tick.reconcile import AttemptKey

log = logging.getLogger(__name__)

FILE = "efficiency.json"
_EVERY = timedelta(minutes=1)
_DECODER = msgspec.json.Decoder(dict[str, GpuUseTally])


class UsageMeter:
    """Sums of the running attempts, by job and attempt number."""

    def __init__(self, directory: Path, store_id: str) -> None:
        self._path = directory / FILE
        self._store_id = store_id
        self._tallies = _read(self._path)
        self._written_at: datetime | None = None

    def update(self, active: Iterable[Job], reading: ProbeReading, now: datetime) -> None:
        """Count the new readings of running attempts, and forget those that have ended."""
        running = [job for job in active if job.state.is_active and job.gpus]
        keys = {_name(_key(job)) for job in running}
        if self._tallies.keys() - keys:
            self._tallies = {name: tally for name, tally in self._tallies.items() if name in keys}
        for job in running:
            if job.state is JobState.RUNNING:
                self._count(job, reading)
        if self._written_at is None or abs(now - self._written_at) >= _EVERY:
            self._written_at = now
            self.save()

    def result(self, job: Job) -> Efficiency | None:
        """Return how the job's attempt used its GPUs so far; None where nothing was read."""
        tally = self._tallies.get(_name(_key(job)))
        return tally.result(job.spec.gpus.promised) if tally is not None else None

    def save(self) -> None:
        """Write the sums; an error loses what was measured if this process ends."""
        if not self._tallies and not self._path.exists():
            return
        partial = self._path.with_name(f".{FILE}.{os.getpid()}")
        try:
            with os.fdopen(new_file(partial, file_mode(self._path.parent)), "wb") as file:
                file.write(msgspec.json.encode(self._tallies))
            partial.replace(self._path)
        except OSError as error:
            log.debug("what jobs used of their GPUs is not kept: %s", error)
            with contextlib.suppress(OSError):
                partial.unlink()

    def _count(self, job: Job, reading: ProbeReading) -> None:
        attempt = job.attempts[-1]
        if attempt.started_at is None:
            return
        name = _name(_key(job))
        tally = self._tallies.get(name)
        if tally is None:
            tally = self._tallies[name] = GpuUseTally(len(attempt.gpus))
        own = None
        if job.spec.gpus.promised:
            own = (attempt.container_id or "", f"{self._store_id}:{job.id}:{attempt.number}")
        for uuid in attempt.gpus:
            if (sample := reading.samples.get(uuid)) is not None:
                tally.add(sample, attempt.started_at, own)


def _key(job: Job) -> AttemptKey:
    return (job.id, job.attempts[-1].number)


def _name(key: AttemptKey) -> str:
    return f"{key[0]}:{key[1]}"


def _read(path: Path) -> dict[str, GpuUseTally]:
    try:
        return _DECODER.decode(read_file(path))
    except (OSError, msgspec.MsgspecError):
        return {}
