"""Records of the jobs of a cluster: what they did with their GPUs, and which of their ends hooks were told of."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from msgspec import Struct, field

from gputui.cluster.journal import Journal, write_whole
from gputui.domain.decoding import decode_json
from gputui.domain.job_spec import JobId
from gputui.domain.telemetry import AttemptTelemetry

_LASTS = timedelta(seconds=30)
"""Time after which idle GPUs that nobody has marked again are not marked any more."""
_AGAIN = timedelta(seconds=10)


class TelemetryRecord(Struct, frozen=True):
    """Telemetry of a run of a job."""

    job: JobId
    started: int
    """Second since 1970, which tells runs apart."""
    telemetry: AttemptTelemetry
    gpus: tuple[str, ...] = ()
    """GPUs that it had, as far as they were known."""


class EndNote(Struct, frozen=True):
    """Reason why a run of a job was ended from here."""

    job: JobId
    started: int
    words: str


class IdleMarks(Struct, frozen=True):
    """GPUs that are idle, with the time since which they are."""

    at: datetime
    gpus: Mapping[str, datetime] = field(default_factory=dict)


class TelemetryRecords:
    """Telemetry by job and start, as long as the file keeps it; shared by the processes of one user."""

    def __init__(self, directory: Path) -> None:
        self._journal = Journal(directory / "telemetry.jsonl", TelemetryRecord)
        self._found: dict[tuple[JobId, int], TelemetryRecord] = {}
        self._ends = Journal(directory / "ends.jsonl", EndNote)
        self._ended: dict[tuple[JobId, int], str] = {}
        self._marks = directory / "idle.json"
        self._marked: IdleMarks | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether there is neither a record nor a mark."""
        return not self._found and not self._marks.exists()

    def refresh(self) -> None:
        """Read what other processes have added."""
        is_new, found = self._journal.fresh()
        if is_new:
            self._found = {}
        self._found.update({(each.job, each.started): each for each in found})
        is_new, ends = self._ends.fresh()
        if is_new:
            self._ended = {}
        self._ended.update({(each.job, each.started): each.words for each in ends})

    def of(self, job_id: JobId, started_at: datetime) -> tuple[AttemptTelemetry, tuple[str, ...]] | None:
        """Return what was measured in this run, with its GPUs; None if nothing was, or it has not ended."""
        found = self._found.get((job_id, int(started_at.timestamp())))
        return (found.telemetry, found.gpus) if found is not None else None

    def add(self, job_id: JobId, started_at: datetime, found: AttemptTelemetry, gpus: tuple[str, ...]) -> None:
        """Record durably what was measured in a run that has ended; raises OSError."""
        self._journal.append([TelemetryRecord(job_id, int(started_at.timestamp()), found, gpus)])

    def note_end(self, job_id: JobId, started_at: datetime, words: str) -> None:
        """Record durably why a run of a job is ended; raises OSError."""
        self._ends.append([EndNote(job_id, int(started_at.timestamp()), words)])

    def end_of(self, job_id: JobId, started_at: datetime) -> str:
        """Return why this run was ended from here; empty if it was not."""
        return self._ended.get((job_id, int(started_at.timestamp())), "")

    def idle(self, now: datetime) -> Mapping[str, datetime]:
        """Return the idle GPUs, by the time since which they are."""
        with contextlib.suppress(OSError, msgspec.DecodeError):
            marks = decode_json(self._marks.read_bytes(), IdleMarks)
            if abs(now - marks.at) <= _LASTS:
                return marks.gpus
        return {}

    def mark(self, gpus: Mapping[str, datetime], now: datetime) -> None:
        """Mark these GPUs as idle, and no others; raises OSError."""
        before = self._marked
        if before is not None and before.gpus == gpus and (not gpus or now - before.at < _AGAIN):
            return
        self._marked = IdleMarks(now, dict(gpus))
        write_whole(self._marks, msgspec.json.encode(self._marked))


_MOST_BYTES = 4 * 1024**2


class Told(Struct, frozen=True):
    """An end that was told."""

    event: str
    """Id of the event."""
    at: float
    """Second since 1970."""


class ToldEnds:
    """Ids of the events that were told, as long as the file keeps them."""

    def __init__(self, directory: Path) -> None:
        self._journal = Journal(directory / "told.jsonl", Told, _MOST_BYTES)
        self._events: set[str] = set()

    def events(self) -> Collection[str]:
        """Return the ids of all events that were told."""
        is_new, told = self._journal.fresh()
        if is_new:
            self._events = set()
        self._events.update(each.event for each in told)
        return self._events

    def add(self, events: Iterable[str]) -> None:
        """Record durably that these were told; raises OSError."""
        now = time.time()
        self._journal.append(Told(event, now) for event in events)
