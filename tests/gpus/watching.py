"""Waits for readings, so that tests do not sleep."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from gputui.domain.gpu import GpuSample, ProbeReading
from gputui.domain.settings import GpuSettings
from gputui.ports import GpuProbe

FAST = GpuSettings(
    sample_interval=timedelta(seconds=0.05),
    process_interval=timedelta(seconds=0.05),
    slow_interval=timedelta(seconds=0.1),
    hang_after=timedelta(seconds=20),
)
PATIENCE = 60.0
"""Seconds: only a test that fails waits so long."""


class Watcher:
    """Listener that records every reading of a probe, and waits for a given one."""

    def __init__(self, probe: GpuProbe) -> None:
        self.probe = probe
        self.readings: list[ProbeReading] = []
        self._came = threading.Condition()
        probe.subscribe(self._hear)

    def _hear(self, reading: ProbeReading) -> None:
        with self._came:
            self.readings.append(reading)
            self._came.notify_all()

    def until(self, wanted: Callable[[ProbeReading], object], timeout: float = PATIENCE) -> ProbeReading:
        """Return the first reading from now on, or the latest, that meets the condition."""
        with self._came:
            heard = len(self.readings)
            if wanted(latest := self.probe.latest()):
                return latest
            found: list[ProbeReading] = []

            def there() -> bool:
                found[:] = [reading for reading in self.readings[heard:] if wanted(reading)]
                return bool(found)

            assert self._came.wait_for(there, timeout), f"never came; the last: {self.probe.latest()}"
            return found[0]

    def next(self) -> ProbeReading:
        """Return the next published reading."""
        with self._came:
            heard = len(self.readings)
            assert self._came.wait_for(lambda: len(self.readings) > heard, PATIENCE), "no further reading"
            return self.readings[heard]


def is_whole(reading: ProbeReading) -> bool:
    """Return whether all GPUs, their processes and rarely read values were read."""
    return bool(reading.samples) and all(
        s.processes_at and s.ecc_corrected is not None for s in reading.samples.values()
    )


def sample_of(reading: ProbeReading, index: int) -> GpuSample:
    return reading.samples[next(gpu.uuid for gpu in reading.gpus if gpu.index == index and not gpu.mig_parent)]


def has_ended(pid: int) -> bool:
    """Return whether a process has ended; its parent may be gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
