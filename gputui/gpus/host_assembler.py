"""Assembly of host readings: the probe's figures, and how fast each disk fills up."""

from __future__ import annotations

from collections import deque
from datetime import datetime, timedelta

from msgspec import UNSET
from msgspec.structs import asdict

from gputui.domain.host import DiskUse, HostSample
from gputui.gpus import wire

LOOK_BACK = timedelta(minutes=10)
"""Time over which the speed is measured by which a disk fills up."""
LEAST = timedelta(minutes=1)
"""Time over which it is measured at least: less would be a guess."""
SOON = timedelta(hours=24)
"""Times until a disk is full beyond this are not given."""


class HostAssembler:
    """Assembler of host readings. It keeps the last reading of the disks, which come seldom."""

    def __init__(self) -> None:
        self.sample: HostSample | None = None
        self._disks: tuple[DiskUse, ...] = ()
        self._fillings: dict[str, Filling] = {}

    def ingest(self, reading: wire.HostReading, now: datetime) -> None:
        """Add a reading."""
        if reading.disks is not UNSET:
            self._disks = tuple(self._disk(disk, now) for disk in reading.disks)
        self.sample = HostSample(**asdict(reading) | {"disks": self._disks, "sampled_at": now})

    def _disk(self, disk: wire.DiskReading, now: datetime) -> DiskUse:
        filling = self._fillings.setdefault(disk.mount, Filling())
        return DiskUse(disk.mount, disk.roles, disk.total, disk.free, filling.full_in(disk.free, now))


class Filling:
    """Free space of a disk in the last minutes."""

    def __init__(self) -> None:
        self._past: deque[tuple[datetime, int]] = deque()

    def full_in(self, free: int, now: datetime) -> timedelta | None:
        """Add a reading; return the time until the disk is full at the present speed, if that is soon."""
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
