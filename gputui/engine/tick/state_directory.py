"""Notices about the state directory: free space of its disk, and the last backup."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path

from gputui.domain.snapshot import Notice
from gputui.domain.units import format_size
from gputui.engine.files.backup_file import read_backup_record

_MEASURE_EVERY = timedelta(seconds=15)


class Disk:
    """Measures the free space every 15 s; it is low below `floor` bytes for ordinary users."""

    def __init__(self, directory: Path, floor: int) -> None:
        self.path = str(directory)
        self._floor = floor
        self._measured_at: datetime | None = None
        self.free: int | None = None
        """Free bytes; None before the first measurement, and if the system does not report it."""

    @property
    def is_low(self) -> bool:
        """Return whether the free space is below the floor."""
        return self.free is not None and self.free < self._floor

    @property
    def words(self) -> str:
        """Sentence about the free space."""
        return f"{format_size(self.free)} left on the disk of {self.path}: queue and logs need room"

    def notices(self, now: datetime) -> tuple[Notice, ...]:
        """Return a warning when the space is low; measure it if due."""
        if self._measured_at is None or abs(now - self._measured_at) >= _MEASURE_EVERY:
            self._measured_at = now
            self.free = self._measure()
        return (Notice("warning", self.words, short="disk low"),) if self.is_low else ()

    def _measure(self) -> int | None:
        try:
            found = os.statvfs(self.path)
        except OSError:  # the store reports a missing directory
            return None
        return found.f_bavail * found.f_frsize


_READ_EVERY = timedelta(seconds=15)


class BackupWatch:
    """Reads the result of the last backup every 15 s."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._read_at: datetime | None = None
        self._notices: tuple[Notice, ...] = ()

    def notices(self, now: datetime) -> tuple[Notice, ...]:
        """Return an error if the last backup failed."""
        if self._read_at is None or abs(now - self._read_at) >= _READ_EVERY:
            self._read_at = now
            record = read_backup_record(self._state)
            failed = record is not None and record.problem
            self._notices = (Notice("error", record.sentence, short="backup failed"),) if record and failed else ()
        return self._notices
