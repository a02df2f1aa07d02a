"""How much room is left where the queue and the logs are kept."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path

from gputui.domain.snapshot import Notice
from gputui.domain.units import format_size

_LOOK_EVERY = timedelta(seconds=15)


class Disk:
    """Looks every so often; low is what leaves less than `floor` bytes to ordinary users."""

    def __init__(self, directory: Path, floor: int) -> None:
        self.path = str(directory)
        self._floor = floor
        self._looked_at: datetime | None = None
        self.free: int | None = None
        """Bytes; None before the first look, and where nobody can tell."""

    @property
    def is_low(self) -> bool:
        """Whether there is less than there should be."""
        return self.free is not None and self.free < self._floor

    @property
    def words(self) -> str:
        """What is to be said of it."""
        return f"{format_size(self.free)} left on the disk of {self.path}: queue and logs need room"

    def notices(self, now: datetime) -> tuple[Notice, ...]:
        """A warning when it is low."""
        if self._looked_at is None or abs(now - self._looked_at) >= _LOOK_EVERY:
            self._looked_at = now
            self.free = self._measured()
        return (Notice("warning", self.words),) if self.is_low else ()

    def _measured(self) -> int | None:
        try:
            found = os.statvfs(self.path)
        except OSError:  # the store tells of a directory that is gone
            return None
        return found.f_bavail * found.f_frsize
