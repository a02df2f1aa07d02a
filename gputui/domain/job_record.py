"""Subset of job fields for accounting, so that a year of jobs is read fast.

Names and layout are those of `Job`, whose documents history contains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain import runs as arrays
from gputui.domain.cause import CauseCode
from gputui.domain.decoding import convert
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.runs import Run, Spans
from gputui.domain.state import JobState


class SpecRecord(Struct, frozen=True, gc=False):
    """Part of a JobSpec."""

    tenant: str = ""
    name: str = ""
    image: str | None = None
    begin_at: datetime | None = None


class CauseRecord(Struct, frozen=True, gc=False):
    """Part of a Cause."""

    code: CauseCode


class EfficiencyRecord(Struct, frozen=True, gc=False):
    """Part of an Efficiency."""

    seconds: float = 0.0
    utilization: float | None = None
    idle: float | None = None


class UseRecord(Struct, frozen=True, gc=False):
    """Part of an AttemptTelemetry."""

    seconds: float | None = None
    known: float | None = None
    busy: float | None = None
    idle: float | None = None
    energy: float | None = None


class AttemptRecord(Struct, frozen=True):
    """Part of an Attempt."""

    gpus: tuple[str, ...] = ()
    started_at: datetime | None = None
    ended_at: datetime | None = None
    cause: CauseRecord | None = None
    gpu_share: float = 1.0
    suspended_at: datetime | None = None
    suspensions: tuple[tuple[datetime, datetime], ...] = ()
    efficiency: EfficiencyRecord | None = None
    telemetry: UseRecord | None = None
    unnamed_gpus: int = 0

    @property
    def gpu_count(self) -> int:
        """Number of GPUs allocated to it."""
        return len(self.gpus) or self.unnamed_gpus


class JobRecord(Struct, frozen=True):
    """Part of a Job."""

    id: JobId
    spec: SpecRecord
    submitted_at: datetime
    state: JobState = JobState.PENDING
    ended_at: datetime | None = None
    cause: CauseRecord | None = None
    attempts: tuple[AttemptRecord, ...] = ()
    submitted_by: str = ""
    runs: tuple[Run, ...] = ()

    @property
    def count(self) -> int:
        """Number of jobs it represents: the elements of an entry, else 1."""
        return arrays.count(self.runs) if self.runs else 1

    @property
    def ids(self) -> Iterator[JobId]:
        """Ids of the jobs it represents, in order."""
        return arrays.ids(self.runs) if self.runs else iter((self.id,))

    def without(self, ids: Iterable[JobId] | Spans) -> JobRecord | None:
        """Return its jobs without these ids; None if none is left."""
        if not self.runs:
            return None if self.id in arrays.spans_of(ids) else self
        left = arrays.divided(self.runs, ids)[1]
        return replace(self, id=left[0].id, runs=left) if left else None


def record_of(job: Job) -> JobRecord:
    return convert(job, JobRecord, from_attributes=True)
