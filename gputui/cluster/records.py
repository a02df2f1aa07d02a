"""Records of the jobs of a cluster: what they did with their GPUs, and which of their ends hooks were told of."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from msgspec import Struct, field

from gputui.cluster.journal import Index, write_whole
from gputui.domain.decoding import decode_json
from gputui.domain.job_spec import JobId
from gputui.domain.telemetry import AttemptTelemetry

_LASTS = timedelta(seconds=30)
"""Time after which idle GPUs that nobody has marked again are not marked any more."""
_AGAIN = timedelta(seconds=10)
_MOST_BYTES = 4 * 1024**2


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
        self._records = Index(directory / "telemetry.jsonl", TelemetryRecord, lambda each: (each.job, each.started))
        self._found: Mapping[tuple[JobId, int], TelemetryRecord] = {}
        self._ends = Index(directory / "ends.jsonl", EndNote, lambda each: (each.job, each.started))
        self._ended: Mapping[tuple[JobId, int], EndNote] = {}
        self._marks = directory / "idle.json"
        self._marked: IdleMarks | None = None

    @property
    def is_empty(self) -> bool:
        return not self._found and not self._marks.exists()

    def refresh(self) -> None:
        self._found, self._ended = self._records.all(), self._ends.all()

    def of(self, job_id: JobId, started_at: datetime) -> tuple[AttemptTelemetry, tuple[str, ...]] | None:
        found = self._found.get((job_id, int(started_at.timestamp())))
        return (found.telemetry, found.gpus) if found is not None else None

    def add(self, job_id: JobId, started_at: datetime, found: AttemptTelemetry, gpus: tuple[str, ...]) -> None:
        self._records.add([TelemetryRecord(job_id, int(started_at.timestamp()), found, gpus)])

    def note_end(self, job_id: JobId, started_at: datetime, words: str) -> None:
        self._ends.add([EndNote(job_id, int(started_at.timestamp()), words)])

    def end_of(self, job_id: JobId, started_at: datetime) -> str:
        found = self._ended.get((job_id, int(started_at.timestamp())))
        return found.words if found is not None else ""

    def idle(self, now: datetime) -> Mapping[str, datetime]:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            marks = decode_json(self._marks.read_bytes(), IdleMarks)
            if abs(now - marks.at) <= _LASTS:
                return marks.gpus
        return {}

    def mark(self, gpus: Mapping[str, datetime], now: datetime) -> None:
        before = self._marked
        if before is not None and before.gpus == gpus and (not gpus or now - before.at < _AGAIN):
            return
        self._marked = IdleMarks(now, dict(gpus))
        write_whole(self._marks, msgspec.json.encode(self._marked))


class Told(Struct, frozen=True):
    """An end that was told."""

    event: str
    """Id of the event."""
    at: float
    """Second since 1970."""


class ToldEnds:
    """Ids of the events that were told, as long as the file keeps them."""

    def __init__(self, directory: Path) -> None:
        self._told = Index(directory / "told.jsonl", Told, lambda each: each.event, _MOST_BYTES)

    def events(self) -> Collection[str]:
        return self._told.all().keys()

    def add(self, events: Iterable[str]) -> None:
        now = time.time()
        self._told.add(Told(event, now) for event in events)
