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
        """GPU time held by attempts."""
        return math.fsum(self.gpu_time.values())

    @property
    def wasted(self) -> float:
        """GPU time of attempts that failed, were preempted or were cancelled."""
        return math.fsum(self.gpu_time.get(each, 0.0) for each in (FAILED, PREEMPTED, CANCELLED))

    @property
    def unknown(self) -> float:
        """GPU time for which the use of the GPUs is unknown."""
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


class _Whole(Struct, frozen=True, gc=False):
    """A whole attempt; times in seconds."""

    outcome: str
    seconds: float
    """Time from its start to its end, or up to now."""
    width: float
    """Number of its GPUs, times its share of them."""
    stopped: tuple[tuple[float, float], ...]
    """Starts and ends of its suspensions, since the epoch."""
    standing: float
    """Time during which it was suspended."""
    measured: AttemptUse


_Piece: TypeAlias = tuple[str, float, float, float]
"""Part of an attempt in the period: group, start and end since the epoch, and share of the attempt's GPUs."""
_Split: TypeAlias = Callable[[AttemptRecord, float, float], Sequence[_Piece]]


def outcome(attempt: AttemptRecord) -> str:
    """Return the outcome of the attempt: one of OUTCOMES."""
    if attempt.ended_at is None:
        return RUNNING
    return COMPLETED if attempt.cause is None else _OUTCOME.get(attempt.cause.code, FAILED)


def measured(attempt: AttemptRecord, gpu_seconds: float) -> AttemptUse:
    """Return the measured figures of an attempt that held that much GPU time; 0 for unknown ones."""
    told = attempt.telemetry
    if told is None:
        return _of_efficiency(attempt, gpu_seconds)
    known = min(gpu_seconds, told.known or 0.0)
    read = (told.seconds or 0.0) * len(attempt.gpus) * attempt.gpu_share
    powered = 0.0 if told.energy is None else min(gpu_seconds, read)
    return AttemptUse(known, told.busy or 0.0, known * (told.idle or 0.0), powered, told.energy or 0.0)


def _of_efficiency(attempt: AttemptRecord, gpu_seconds: float) -> AttemptUse:
    """Return the figures of an attempt of an older gputui, which measured less."""
    told = attempt.efficiency
    if told is None or told.utilization is None:
        return AttemptUse()
    known = min(gpu_seconds, told.seconds * len(attempt.gpus) * attempt.gpu_share)
    return AttemptUse(known, known * told.utilization, known * (told.idle or 0.0))


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
        """Add a job, or those of an entry."""
        key = self._key(job) or NOTHING if self._key else ""
        count = job.count
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
        if job.state in _ENDS:
            self._add_end(job, count, key, groups)
        for group in groups:
            self.groups[group].jobs += count
        if groups:
            self._overall.jobs += count

    def _pieces(self, attempt: AttemptRecord, low: float, high: float, key: str) -> Sequence[_Piece]:
        return self._split(attempt, low, high) if self._split else ((key, low, high, 1.0),)

    def _add_end(self, job: JobRecord, count: int, key: str, groups: set[str]) -> None:
        moment = job.ended_at or job.submitted_at
        at = moment.timestamp()
        if self._low <= at < self._high:
            is_known = job.cause is None or job.cause.code is not CauseCode.END_UNKNOWN
            end = _ENDS[job.state] if is_known else END_UNKNOWN
            _count(self._overall, end, count)
            last = job.attempts[-1] if job.attempts else AttemptRecord(cause=job.cause, ended_at=moment)
            for piece in self._pieces(last, at, at, key):
                _count(self.groups[piece[0]], end, count)
                groups.add(piece[0])

    def _add_part(self, attempt: AttemptRecord, start: float, end: float, key: str, groups: set[str]) -> None:
        width = attempt.gpu_count * attempt.gpu_share
        stopped = tuple(suspensions(attempt, end)) if attempt.suspended_at or attempt.suspensions else ()
        standing = _overlap(stopped, start, end) if stopped else 0.0
        found = measured(attempt, (end - start) * width)
        part = _Whole(outcome(attempt), end - start, width, stopped, standing, found)
        pieces = self._pieces(attempt, max(start, self._low), min(end, self._high), key)
        for group, low, high, share in pieces:
            _add_piece(self.groups[group], part, low, high, share)
        self._overall.attempts += 1
        for group in {piece[0] for piece in pieces} if len(pieces) > 1 else (pieces[0][0],):
            self.groups[group].attempts += 1
            groups.add(group)


def _count(target: UsageAccount, end: str, jobs: int) -> None:
    target.ended[end] = target.ended.get(end, 0) + jobs


def _add_piece(target: UsageAccount, whole: _Whole, low: float, high: float, share: float) -> None:
    """Add a piece of an attempt, with its share by time of the figures measured for the whole attempt."""
    seconds, figures = high - low, whole.measured
    width = whole.width * share
    target.gpu_time[whole.outcome] = target.gpu_time.get(whole.outcome, 0.0) + seconds * width
    if not whole.seconds:
        return
    standing = _overlap(whole.stopped, low, high) if whole.stopped else 0.0
    of_time = share * seconds / whole.seconds
    of_work = share * _ratio(seconds - standing, whole.seconds - whole.standing)
    target.suspended += standing * width
    target.known += figures.known * of_time
    target.busy_known += figures.busy * of_work
    target.idle_known += max(0.0, figures.idle - whole.standing * whole.width) * of_work
    target.powered += figures.powered * of_time
    target.joules += figures.joules * of_time


def _overlap(times: Iterable[tuple[float, float]], low: float, high: float) -> float:
    """Return the seconds between low and high that lie in one of the periods, which do not overlap."""
    return sum(max(0.0, min(end, high) - max(begin, low)) for begin, end in times)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _by_cause(period: Period, zone: tzinfo | None) -> _Split:
    del period, zone
    return lambda attempt, low, high: ((cause_word(attempt), low, high, 1.0),)


def cause_word(attempt: AttemptRecord) -> str:
    """Return the code of the cause of its end; `completed` if it succeeded, `running` if it still runs."""
    return str(attempt.cause.code) if attempt.ended_at is not None and attempt.cause is not None else outcome(attempt)


def _by_gpu(period: Period, zone: tzinfo | None) -> _Split:
    del period, zone

    def split(attempt: AttemptRecord, low: float, high: float) -> Sequence[_Piece]:
        if not attempt.gpus:
            return ((UNNAMED if attempt.unnamed_gpus else NOTHING, low, high, 1.0),)
        return [(uuid, low, high, 1 / len(attempt.gpus)) for uuid in attempt.gpus]

    return split


def _by_day(period: Period, zone: tzinfo | None) -> _Split:
    """Return the grouping by local days, which have 23 or 25 hours where clocks are set."""
    from bisect import bisect_right

    days = list(_days(period, zone))
    begins = [begin for begin, _ in days]

    def split(attempt: AttemptRecord, low: float, high: float) -> Sequence[_Piece]:
        del attempt
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
    {"gpu": _by_gpu, "day": _by_day, "cause": _by_cause}
)
"""Groupings that may divide attempts."""
GROUPINGS = (*_KEYS, *_SPLITS)
"""Names of the groupings."""
