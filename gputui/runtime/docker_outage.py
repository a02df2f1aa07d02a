"""Which ends of containers were the engine's doing: its restarts, and the machine's."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.container import ContainerRecord

_SIGNALLED = {137, 143, 255}
"""Exit codes an engine leaves that stops its containers, or finds them gone."""
_MARGIN = timedelta(seconds=2)
_KEPT = 32


class Outages:
    """Times in which the engine was not there. Ends by signal inside them are CONTAINER_LOST: no fault of the job.

    An engine that does not answer in time may only hang. That becomes an outage when its events end or nobody
    listens any more, and is forgotten when it answers again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._windows: list[tuple[datetime, datetime | None]] = []
        self._silent_since: datetime | None = None

    def silent(self, now: datetime) -> None:
        """Note that the engine did not answer in time."""
        with self._lock:
            self._silent_since = self._silent_since or now

    def lost(self, now: datetime) -> None:
        """Note that the engine went away: as early as it fell silent."""
        with self._lock:
            if not self._windows or self._windows[-1][1] is not None:
                self._windows = [*self._windows[-_KEPT:], (self._silent_since or now, None)]

    def deny(self) -> None:
        """Forget the last outage: the line was cut, and the engine was there all the time."""
        with self._lock:
            del self._windows[-1:]

    def back(self, now: datetime) -> None:
        """Note that it answers again."""
        with self._lock:
            self._silent_since = None
            if self._windows and self._windows[-1][1] is None:
                self._windows[-1] = (self._windows[-1][0], now)

    def judge(self, record: ContainerRecord, booted_at: datetime | None) -> ContainerRecord:
        """The record, with the cause set right if it was the engine or the machine that ended it."""
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
    """Whether it ended as one does that the engine stops, or finds gone, and nobody knows of another cause."""
    by_itself = {CauseCode.SIGNALLED, CauseCode.NON_ZERO_EXIT}
    return record.exit_code in _SIGNALLED and record.cause is not None and record.cause.code in by_itself


def boot_time() -> datetime | None:
    """When this machine was started."""
    try:
        stat = Path("/proc/stat").read_text()
        return datetime.fromtimestamp(int(stat.partition("\nbtime ")[2].split()[0]), UTC)
    except (OSError, ValueError, IndexError):
        return None
