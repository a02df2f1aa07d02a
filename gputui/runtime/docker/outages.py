"""Outages of the engine, and containers that ended because of them or of a restart of the machine."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec.structs import replace

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.container import ContainerRecord

_SIGNALLED = {137, 143, 255}
"""Exit codes of containers that the engine stopped or found gone."""
_MARGIN = timedelta(seconds=2)
_KEPT = 32


class Outages:
    """Periods without the engine. Containers ended by a signal within them are CONTAINER_LOST, not failures of the job.

    An engine that does not answer in time may only hang. That becomes an outage when its events end or its socket
    closes, and is forgotten when it answers again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._windows: list[tuple[datetime, datetime | None]] = []
        self._silent_since: datetime | None = None

    def silent(self, now: datetime) -> None:
        """Record that the engine did not answer in time."""
        with self._lock:
            self._silent_since = self._silent_since or now

    def lost(self, now: datetime) -> None:
        """Record an outage, from the time the engine fell silent."""
        with self._lock:
            if not self._windows or self._windows[-1][1] is not None:
                self._windows = [*self._windows[-_KEPT:], (self._silent_since or now, None)]

    def deny(self) -> None:
        """Forget the last outage: only the line was cut."""
        with self._lock:
            del self._windows[-1:]

    def back(self, now: datetime) -> None:
        """Record that the engine answers again."""
        with self._lock:
            self._silent_since = None
            if self._windows and self._windows[-1][1] is None:
                self._windows[-1] = (self._windows[-1][0], now)

    def judge(self, record: ContainerRecord, booted_at: datetime | None) -> ContainerRecord:
        """Return the record, with the cause corrected if the engine or the machine ended the container."""
        if not may_be_the_engines(record):
            return record
        words = self._why(record, booted_at)
        return replace(record, cause=Cause(CauseCode.CONTAINER_LOST, words)) if words else record

    def _why(self, record: ContainerRecord, booted_at: datetime | None) -> str | None:
        if booted_at and record.started_at and record.started_at < booted_at:
            return f"ended by a restart of the machine (exit code {record.exit_code})"
        if record.ended_at and self._covers(record.ended_at):
            return f"ended by a restart of the Docker engine (exit code {record.exit_code})"
        return None

    def _covers(self, at: datetime) -> bool:
        with self._lock:
            return any(lost - _MARGIN <= at and (back is None or at <= back + _MARGIN) for lost, back in self._windows)


def may_be_the_engines(record: ContainerRecord) -> bool:
    """Return whether it ended by a signal, as after a stop of the engine, and no other cause is known."""
    by_itself = {CauseCode.SIGNALLED, CauseCode.NON_ZERO_EXIT}
    return record.exit_code in _SIGNALLED and record.cause is not None and record.cause.code in by_itself


def boot_time() -> datetime | None:
    """Return the boot time of this machine; None when /proc does not tell."""
    try:
        stat = Path("/proc/stat").read_text()
        return datetime.fromtimestamp(int(stat.partition("\nbtime ")[2].split()[0]), UTC)
    except (OSError, ValueError, IndexError):
        return None
