"""Accounting: GPU time, waits and energy of jobs within a period, in total and by group.

An attempt counts with its part inside the period; a running one counts up to now. Measured figures are known only for a
whole attempt, so a part gets its share by time; of busy and idle time, by the time not suspended.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from types import MappingProxyType
from typing import TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain import runs as arrays
from gputui.domain.decoding import convert
from gputui.domain.errors import CauseCode
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.runs import Run, Spans
from gputui.domain.state import TERMINAL, JobState


# parts of the types of the same names, without what no account needs
class SpecRecord(Struct, frozen=True, gc=False):
    tenant: str = ""
    name: str = ""
    image: str | None = None
    begin_at: datetime | None = None


class CauseRecord(Struct, frozen=True, gc=False):
    code: CauseCode


class EfficiencyRecord(Struct, frozen=True, gc=False):
    seconds: float = 0.0
    utilization: float | None = None
    idle: float | None = None


class UseRecord(Struct, frozen=True, gc=False):
    seconds: float | None = None
    known: float | None = None
    busy: float | None = None
    idle: float | None = None
    energy: float | None = None


class AttemptRecord(Struct, frozen=True):
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
        return len(self.gpus) or self.unnamed_gpus


class JobRecord(Struct, frozen=True):
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
        return arrays.count(self.runs) if self.runs else 1

    @property
    def ids(self) -> Iterator[JobId]:
        return arrays.ids(self.runs) if self.runs else iter((self.id,))

    def without(self, ids: Iterable[JobId] | Spans) -> JobRecord | None:
        if not self.runs:
            return None if self.id in arrays.spans_of(ids) else self
        left = arrays.divided(self.runs, ids)[1]
        return replace(self, id=left[0].id, runs=left) if left else None


def record_of(job: Job) -> JobRecord:
    return convert(job, JobRecord, from_attributes=True)


COMPLETED, FAILED, PREEMPTED, CANCELLED, RUNNING = "completed", "failed", "preempted", "cancelled", "running"
END_UNKNOWN = "end_unknown"
OUTCOMES = (COMPLETED, FAILED, PREEMPTED, CANCELLED, END_UNKNOWN, RUNNING)
"""Outcomes of attempts. Failed, preempted and cancelled ones are wasted."""
NOTHING = "none"
"""Group of jobs without GPU, image, name or user."""
UNNAMED = "unknown"
"""Group of the GPU time on GPUs which their cluster does not name."""
_OUTCOME = {
    CauseCode.END_UNKNOWN: END_UNKNOWN,
    CauseCode.PREEMPTED: PREEMPTED,
    CauseCode.CANCELLED: CANCELLED,
    CauseCode.REQUEUED: CANCELLED,
    CauseCode.DEPENDENCY_NEVER_MET: CANCELLED,
}
_ENDS = dict.fromkeys(TERMINAL, FAILED) | {JobState.COMPLETED: COMPLETED, JobState.CANCELLED: CANCELLED}


class Period(Struct, frozen=True):
    """Period of a report: from `since` up to, but not including, `until`, which is not in the future."""

    since: datetime
    until: datetime


class UsageAccount(Struct):
    """Sums over jobs; times in seconds, GPU time in GPU-seconds."""

    jobs: int = 0
    """Jobs that ran or ended in the period."""
    attempts: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    """Jobs that ended in the period, by `completed`, `failed`, `cancelled` or `end_unknown`."""
    gpu_time: dict[str, float] = field(default_factory=dict)
    """GPU time by the outcome of the attempt."""
    suspended: float = 0.0
    known: float = 0.0
    """GPU time for which the use of the GPUs is known."""
    busy_known: float = 0.0
    idle_known: float = 0.0
    powered: float = 0.0
    """GPU time for which the energy is known."""
    joules: float = 0.0
    waits: list[float] = field(default_factory=list)
    """Waits of the jobs that first started in the period."""

    @property
    def allocated(self) -> float:
        return math.fsum(self.gpu_time.values())

    @property
    def wasted(self) -> float:
        return math.fsum(self.gpu_time.get(each, 0.0) for each in (FAILED, PREEMPTED, CANCELLED))

    @property
    def unknown(self) -> float:
        return max(0.0, self.allocated - self.known)

    @property
    def busy(self) -> float | None:
        """GPU time weighted with utilization; None where none of it is known."""
        return self.busy_known if self._is_known(self.known) else None

    @property
    def idle(self) -> float | None:
        """GPU time of idle GPUs, time of suspension excluded; None where none of it is known."""
        return self.idle_known if self._is_known(self.known) else None

    @property
    def energy(self) -> float | None:
        """Joules; None where none of it is known."""
        return self.joules if self._is_known(self.powered) else None

    @property
    def wait_mean(self) -> float | None:
        """Mean wait; None where no job started."""
        return math.fsum(self.waits) / len(self.waits) if self.waits else None

    @property
    def wait_p95(self) -> float | None:
        """95th percentile of the waits; None where no job started."""
        return sorted(self.waits)[math.ceil(0.95 * len(self.waits)) - 1] if self.waits else None

    def _is_known(self, part: float) -> bool:
        return part > 0 or not self.allocated


class UsageAccounts(Struct, frozen=True):
    """Account of all jobs, and those of the groups."""

    total: UsageAccount
    groups: Mapping[str, UsageAccount]


class AttemptUse(Struct, frozen=True, gc=False):
    """Figures of a whole attempt, in GPU-seconds and joules."""

    known: float = 0.0
    busy: float = 0.0
    idle: float = 0.0
    powered: float = 0.0
    joules: float = 0.0


_Piece: TypeAlias = tuple[str, float, float, float]
"""Part of an attempt in the period: group, start and end since the epoch, and share of the attempt's GPUs."""
_Split: TypeAlias = Callable[[AttemptRecord, float, float], Sequence[_Piece]]


def outcome(attempt: AttemptRecord) -> str:
    if attempt.ended_at is None:
        return RUNNING
    return COMPLETED if attempt.cause is None else _OUTCOME.get(attempt.cause.code, FAILED)


def measured(attempt: AttemptRecord, gpu_seconds: float) -> AttemptUse:
    """Return the measured figures of an attempt that held that much GPU time; 0 for unknown ones.

    Older versions of gputui measured less: an efficiency.
    """
    found, older = attempt.telemetry, attempt.efficiency
    if found is not None:
        known = min(gpu_seconds, found.known or 0.0)
        read = (found.seconds or 0.0) * len(attempt.gpus) * attempt.gpu_share
        powered = 0.0 if found.energy is None else min(gpu_seconds, read)
        return AttemptUse(known, found.busy or 0.0, known * (found.idle or 0.0), powered, found.energy or 0.0)
    if older is None or older.utilization is None:
        return AttemptUse()
    known = min(gpu_seconds, older.seconds * len(attempt.gpus) * attempt.gpu_share)
    return AttemptUse(known, known * older.utilization, known * (older.idle or 0.0))


def suspensions(attempt: AttemptRecord, end: float) -> Iterator[tuple[float, float]]:
    """Yield the periods in which it was suspended; one that still lasts ends at `end`."""
    for begin, until in attempt.suspensions:
        yield begin.timestamp(), until.timestamp()
    if attempt.suspended_at is not None:
        yield attempt.suspended_at.timestamp(), end


def waiting_since(job: JobRecord) -> datetime:
    """Return the start of the job's wait: its submission or `--begin`."""
    begin = job.spec.begin_at
    return job.submitted_at if begin is None else max(begin, job.submitted_at)


def account(
    jobs: Iterable[JobRecord], period: Period, by: str, now: datetime, zone: tzinfo | None = None
) -> UsageAccounts:
    """Return the accounts of the period, grouped by one of GROUPINGS; without a zone, days are in local time."""
    books = _Books(period, by, now, zone)
    for job in jobs:
        books.add(job)
    return UsageAccounts(books.total(), dict(books.groups))


class _Books:
    """Accounts that jobs are added to."""

    def __init__(self, period: Period, by: str, now: datetime, zone: tzinfo | None) -> None:
        self.groups: dict[str, UsageAccount] = defaultdict(UsageAccount)
        self._overall = UsageAccount()
        """Counts that are not sums over the groups, since a job may be in several of them."""
        self._low, self._high = period.since.timestamp(), period.until.timestamp()
        self._key = _KEYS.get(by)
        self._split = _SPLITS[by](period, zone) if by in _SPLITS else None
        self._now = now.timestamp()

    def total(self) -> UsageAccount:
        total = UsageAccount(self._overall.jobs, self._overall.attempts, self._overall.ended, waits=self._overall.waits)
        for each in self.groups.values():
            for name, seconds in each.gpu_time.items():
                total.gpu_time[name] = total.gpu_time.get(name, 0.0) + seconds
            for name in ("suspended", "known", "busy_known", "idle_known", "powered", "joules"):
                setattr(total, name, getattr(total, name) + getattr(each, name))
        return total

    def add(self, job: JobRecord) -> None:
        key = self._key(job) or NOTHING if self._key else ""
        groups: set[str] = set()
        is_first = True
        for attempt in job.attempts:
            if attempt.started_at is None:
                continue
            start = attempt.started_at.timestamp()
            if is_first and self._low <= start < self._high:
                wait = max(0.0, start - waiting_since(job).timestamp())
                self._overall.waits.append(wait)
                for piece in self._pieces(attempt, start, start, key):
                    self.groups[piece[0]].waits.append(wait)
            is_first = False
            end = attempt.ended_at.timestamp() if attempt.ended_at is not None else max(start, self._now)
            if start < self._high and (end > self._low or start >= self._low):
                self._add_part(attempt, start, end, key, groups)
        moment = job.ended_at or job.submitted_at
        if job.state in _ENDS and self._low <= (at := moment.timestamp()) < self._high:
            is_known = job.cause is None or job.cause.code is not CauseCode.END_UNKNOWN
            last = job.attempts[-1] if job.attempts else AttemptRecord(cause=job.cause, ended_at=moment)
            ended = [piece[0] for piece in self._pieces(last, at, at, key)]
            end_name = _ENDS[job.state] if is_known else END_UNKNOWN
            for account in (self._overall, *(self.groups[group] for group in ended)):
                account.ended[end_name] = account.ended.get(end_name, 0) + job.count
            groups.update(ended)
        for group in groups:
            self.groups[group].jobs += job.count
        self._overall.jobs += job.count if groups else 0

    def _pieces(self, attempt: AttemptRecord, low: float, high: float, key: str) -> Sequence[_Piece]:
        return self._split(attempt, low, high) if self._split else ((key, low, high, 1.0),)

    def _add_part(self, attempt: AttemptRecord, start: float, end: float, key: str, groups: set[str]) -> None:
        """Add the part of an attempt in the period, with its share by time of the figures measured for the whole."""
        gpus = attempt.gpu_count * attempt.gpu_share
        stopped = tuple(suspensions(attempt, end)) if attempt.suspended_at or attempt.suspensions else ()
        lasted, standing = end - start, _overlap(stopped, start, end)
        figures, result = measured(attempt, lasted * gpus), outcome(attempt)
        pieces = self._pieces(attempt, max(start, self._low), min(end, self._high), key)
        for group, low, high, share in pieces:
            target, seconds, width = self.groups[group], high - low, gpus * share
            target.gpu_time[result] = target.gpu_time.get(result, 0.0) + seconds * width
            if not lasted:
                continue
            stood = _overlap(stopped, low, high)
            of_time = share * seconds / lasted
            of_work = share * ((seconds - stood) / (lasted - standing) if lasted > standing else 0.0)
            target.suspended += stood * width
            target.known += figures.known * of_time
            target.busy_known += figures.busy * of_work
            target.idle_known += max(0.0, figures.idle - standing * gpus) * of_work
            target.powered += figures.powered * of_time
            target.joules += figures.joules * of_time
        self._overall.attempts += 1
        for group in {piece[0] for piece in pieces}:
            self.groups[group].attempts += 1
            groups.add(group)


def _overlap(times: Iterable[tuple[float, float]], low: float, high: float) -> float:
    """Return the seconds between low and high that lie in one of the periods, which do not overlap."""
    return sum(max(0.0, min(end, high) - max(begin, low)) for begin, end in times)


def _by_cause(attempt: AttemptRecord, low: float, high: float) -> Sequence[_Piece]:
    has_cause = attempt.ended_at is not None and attempt.cause is not None
    return ((str(attempt.cause.code) if has_cause and attempt.cause else outcome(attempt), low, high, 1.0),)


def _by_gpu(attempt: AttemptRecord, low: float, high: float) -> Sequence[_Piece]:
    if not attempt.gpus:
        return ((UNNAMED if attempt.unnamed_gpus else NOTHING, low, high, 1.0),)
    return [(uuid, low, high, 1 / len(attempt.gpus)) for uuid in attempt.gpus]


def _by_day(period: Period, zone: tzinfo | None) -> _Split:
    """Return the grouping by local days, which have 23 or 25 hours where clocks are set."""
    from bisect import bisect_right

    days = list(_days(period, zone))
    begins = [begin for begin, _ in days]

    def split(_: AttemptRecord, low: float, high: float) -> Sequence[_Piece]:
        place = max(0, bisect_right(begins, low) - 1)
        pieces: list[_Piece] = []
        while place < len(days) and (not pieces or begins[place] < high):
            end = min(high, begins[place + 1]) if place + 1 < len(days) else high
            pieces.append((days[place][1], low, end, 1.0))
            low, place = end, place + 1
        return pieces

    return split


def days_of(period: Period, zone: tzinfo | None = None) -> list[str]:
    """Return the dates of the days in the period, as the groups by day have them."""
    return [day for _, day in _days(period, zone)]


def _days(period: Period, zone: tzinfo | None) -> Iterator[tuple[float, str]]:
    day = period.since.astimezone(zone).date()
    since, until = period.since.timestamp(), period.until.timestamp()
    while True:
        # not by `astimezone`, which begins a day an hour early where clocks are put forward at midnight
        begin = datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()
        if begin >= until and begin > since:
            return
        yield begin, day.isoformat()
        day += timedelta(days=1)


_KEYS: Mapping[str, Callable[[JobRecord], str]] = MappingProxyType(
    {
        "tenant": lambda job: job.spec.tenant,
        "user": lambda job: job.submitted_by,
        "image": lambda job: job.spec.image or "host",
        "name": lambda job: job.spec.name,
    }
)
"""Groupings that put a whole job into one group."""
_SPLITS: Mapping[str, Callable[[Period, tzinfo | None], _Split]] = MappingProxyType(
    {"gpu": lambda *_: _by_gpu, "day": _by_day, "cause": lambda *_: _by_cause}
)
"""Groupings that may divide attempts."""
GROUPINGS = (*_KEYS, *_SPLITS)
"""Names of the groupings."""
