"""Free disk space of the state directory, where the queue and the logs are."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path

from gputui.domain.snapshot import Notice
from gputui.domain.units import format_size

_MEASURE_EVERY = timedelta(seconds=15)


class Disk:
    """Measures the free space every 15 s; it is low below `floor` bytes for ordinary users."""

    def __init__(self, directory: Path, floor: int) -> None:
        self.path = str(directory)
        self._floor = floor
        self._measured_at: datetime | None = None
        self.free: int | None = None
        """Free bytes; None before the first measurement, and where the system does not tell."""

    @property
    def is_low(self) -> bool:
        """Return whether the free space is below the floor."""
        return self.free is not None and self.free < self._floor

    @property
    def words(self) -> str:
        """Sentence about the free space."""
        return f"{format_size(self.free)} left on the disk of {self.path}: queue and logs need room"

    def notices(self, now: datetime) -> tuple[Notice, ...]:
        """Return a warning when the space is low; measure it if that is due."""
        if self._measured_at is None or abs(now - self._measured_at) >= _MEASURE_EVERY:
            self._measured_at = now
            self.free = self._measure()
        return (Notice("warning", self.words, short="disk low"),) if self.is_low else ()

    def _measure(self) -> int | None:
        try:
            found = os.statvfs(self.path)
        except OSError:  # the store tells of a directory that is gone
            return None
        return found.f_bavail * found.f_frsize
