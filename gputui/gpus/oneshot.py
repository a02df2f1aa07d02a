"""Single reading of all GPUs, for commands that print and exit."""

from __future__ import annotations

import threading

from msgspec.structs import replace

from gputui.domain.gpu import HealthCode, ProbeCode, ProbeReading, ProbeStatus
from gputui.gpus.health import describe_failure
from gputui.ports import GpuProbe


def first_reading(probe: GpuProbe, timeout: float) -> ProbeReading:
    """Start the probe, wait up to `timeout` seconds for a complete reading or a failure, and close it."""
    came = threading.Event()
    probe.subscribe(lambda reading: came.set() if is_whole(reading) else None)
    probe.start()
    try:
        if not is_whole(probe.latest()):
            came.wait(timeout)
        return _in_time(probe.latest(), timeout)
    finally:
        probe.close()


def _in_time(reading: ProbeReading, timeout: float) -> ProbeReading:
    """Return the reading; without one after the time-out, its status says that the driver hangs."""
    if reading.status.code is not ProbeCode.STARTING:
        return reading
    text = describe_failure(ProbeCode.WEDGED_AT_START, f"{timeout:g}s")
    return replace(reading, status=ProbeStatus(ProbeCode.WEDGED_AT_START, text, reading.status.since))


def is_whole(reading: ProbeReading) -> bool:
    """Return whether every readable GPU was read, processes included, or the probe reported a failure."""
    if reading.status.code is not ProbeCode.OK:
        return reading.status.code is not ProbeCode.STARTING
    missing = (HealthCode.LOST, HealthCode.UNKNOWN)
    return all(sample.processes_at or sample.health.code in missing for sample in reading.samples.values())
