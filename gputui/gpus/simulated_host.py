"""Readings of the host that simulated GPUs are in: a function of seed, time and their load."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from gputui.domain.host import DOCKER, STATE, DiskUse, HostSample
from gputui.gpus.simulated_wave import wave

_GIB = 1024**3
CORES = 128
MEMORY = 1024 * _GIB
SWAP = 8 * _GIB
_EVERY = 2
"""Seconds between two readings, as of the real probe."""
_DISKS = {STATE: ("/data", 7 * 1024 * _GIB, 0.78), DOCKER: ("/var/lib/docker", 1800 * _GIB, 0.46)}
"""Mount point, size and used share by role."""


def simulated_host(seed: int, now: datetime, busy: float, roles: Iterable[str]) -> HostSample:
    """Return the reading at that time; `busy` is the load of all GPUs, 1 for each that is fully used."""
    at = now.timestamp() // _EVERY * _EVERY
    flutter, slow = wave(f"{seed} host", at, 6), wave(f"{seed} host", at, 90)
    cpu = min(0.97, 0.03 + 0.055 * busy * (1 + 0.15 * flutter + 0.1 * slow))
    reading = 1e8 * busy * (1 + 0.5 * wave(f"{seed} received", at, 12))
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
        disks=tuple(_disk(*_DISKS[role], role, at) for role in sorted(set(roles), reverse=True) if role in _DISKS),
    )


def _disk(mount: str, total: int, used: float, role: str, at: float) -> DiskUse:
    """Return a disk that fills up by four points in a day, and is cleaned at midnight."""
    share = used + 0.04 * (at % timedelta(days=1).total_seconds()) / timedelta(days=1).total_seconds()
    return DiskUse(mount, (role,), total, round(total * (1 - share)))
