"""Traces: jobs read from CSV, with submit times stretched to the wanted load, and with time limits."""

from __future__ import annotations

import csv
import hashlib
import io
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple, TypeAlias

from gputui.domain.errors import CauseCode, InputError
from gputui.domain.job import Attempt, Job
from gputui.domain.job_spec import MAX_PRIORITY, NORMAL_PRIORITY, JobId
from gputui.domain.policy.planning_context import run_kind
from gputui.domain.state import JobState
from gputui.domain.text import parse_duration, plain

HOUR = 3600.0
BUCKETS = tuple(hours * HOUR for hours in (0.25, 1, 4, 12, 24, 72))
LIMITS = ("exact", "bucket", "none")
MAX_TIME = 72 * HOUR
REQUIRED = ("submit_time_s", "duration_s", "gpus")
OPTIONAL = ("vc", "priority", "name", "limit", "preemptible", "status")
"""Optional columns; unknown ones are ignored."""
_ALIASES = {"tenant": "vc", "limit_s": "limit", "time_limit_s": "limit"}
_BOOLEANS = {"": False, "0": False, "false": False, "no": False, "1": True, "true": True, "yes": True}
_ENDED_BADLY = ("fail", "kill", "cancel", "timeout", "node_fail", "out_of_memory", "oom", "error", "preempt")
_MAX_FILE = 512 * 1024**2
_MOST = 1e12
"""Maximum of every number; its seconds are 30,000 years."""
_GZIP = b"\x1f\x8b"
_SHOWN = 40
"""Maximum number of characters of a cell that a message quotes."""

TraceRow: TypeAlias = Mapping[str, str]
"""Cells of a line by column; without the columns that the file lacks."""


@dataclass(frozen=True)
class TraceJob:
    """Job of a trace. Times are seconds since the start of the trace."""

    number: int
    submit: float
    duration: float
    gpus: int
    tenant: str
    limit: float = MAX_TIME
    """Limit in seconds that its user would have stated."""
    priority: int = NORMAL_PRIORITY
    nice: int = 0
    stated: float | None = None
    """Limit in seconds that its user set, if known."""
    name: str = ""
    """Name or image, for predictions; empty if unknown."""
    preemptible: bool = False
    """True if a job of a higher class may stop it, when preemption is on."""
    is_limited: bool = True
    """True if its user set `limit`; else that is only the longest planned duration."""
    ended_well: bool = True
    """True if its run time counts for the prediction of the next job of its name."""


@dataclass(frozen=True)
class Site:
    """Machine that the jobs run on."""

    gpus: int
    per_node: int = 8

    @property
    def nodes(self) -> tuple[int, ...]:
        """Number of GPUs of each node; the last may have fewer."""
        whole, rest = divmod(self.gpus, self.per_node)
        return (self.per_node,) * whole + ((rest,) if rest else ())


def read(path: Path) -> tuple[list[TraceJob], str]:
    """Return the jobs of a file by submit time, and its SHA-256; raises InputError for an invalid trace."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    if len(raw) > _MAX_FILE:
        raise InputError("is larger than 512 MiB", where=str(path))
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        hint = "it is compressed: gunzip it first" if raw.startswith(_GZIP) else "save it as CSV in UTF-8"
        raise InputError(f"is not UTF-8 text at byte {error.start}", where=str(path), hint=hint) from error
    return parse(text, str(path)), hashlib.sha256(raw).hexdigest()


def parse(text: str, where: str) -> list[TraceJob]:
    """Return the jobs of a CSV text, by submit time; raises InputError with line and column of the error."""
    lines = csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    try:
        columns = _columns(next(lines, []), where)
        jobs = []
        for cells in lines:
            if any(map(str.strip, cells)):
                place = f"{where}: line {lines.line_num}"
                jobs.append(_job(lines.line_num, _row(cells, columns, place), place))
    except csv.Error as error:
        raise InputError(f"is not CSV: {error}", where=f"{where}: line {lines.line_num}") from error
    if not jobs:
        raise InputError("holds no job", where=where)
    return rebased(sorted(jobs, key=lambda job: (job.submit, job.number)))


def _columns(header: Sequence[str], where: str) -> list[str]:
    """Return the columns in order, under the names used here; raises InputError for a missing or duplicate one."""
    written = [cell.strip().lower() for cell in header]
    names = [name if _ALIASES.get(name, name) in written else _ALIASES.get(name, name) for name in written]
    hint = "the first line names the columns: " + ",".join(REQUIRED) + ",vc; it may name " + ",".join(OPTIONAL[1:])
    if missing := [column for column in REQUIRED if column not in names]:
        if len(names) == 1 and any(mark in names[0] for mark in ";\t"):
            hint = "columns are separated by commas"
        raise InputError(f"has no column {missing[0]}", where=where, hint=hint)
    known = Counter(name for name in names if name in (*REQUIRED, *OPTIONAL))
    if twice := [name for name, count in known.items() if count > 1]:
        raise InputError(f"has the column {twice[0]} twice", where=f"{where}: line 1")
    return names


def _row(cells: Sequence[str], columns: Sequence[str], place: str) -> TraceRow:
    """Return the cells by column, empty if the line ends early; raises InputError if there are too many."""
    if len(cells) > len(columns):
        raise InputError(
            f"has {len(cells)} cells, but the first line names {len(columns)} columns",
            where=place,
            hint="a cell that holds a comma is put in double quotes",
        )
    short = len(columns) - len(cells)
    return {name: cell.strip() for name, cell in zip(columns, [*cells, *[""] * short], strict=True)}


def _job(number: int, row: TraceRow, place: str) -> TraceJob:
    duration = _number(row, "duration_s", place)
    gpus = _number(row, "gpus", place)
    if duration < 0 or gpus < 1 or gpus != int(gpus) or gpus > 2**20:
        raise InputError("expected a duration from 0 and a whole number of GPUs from 1", where=place)
    submit = _number(row, "submit_time_s", place)
    priority = row.get("priority", "") or str(NORMAL_PRIORITY)
    if not (priority.isascii() and priority.isdigit() and len(priority) < 9 and int(priority) <= MAX_PRIORITY):
        raise _odd("priority", f"a whole number from 0 to {MAX_PRIORITY}", priority, place)
    stated = _limit(row, place)
    preemptible = row.get("preemptible", "")
    if preemptible.lower() not in _BOOLEANS:
        raise _odd("preemptible", "1 or 0, true or false", preemptible, place)
    return TraceJob(
        number=number,
        submit=submit,
        duration=duration,
        gpus=int(gpus),
        tenant=row.get("vc", ""),
        priority=int(priority),
        stated=stated,
        name=row.get("name", ""),
        preemptible=_BOOLEANS[preemptible.lower()],
        ended_well=not row.get("status", "").lower().startswith(_ENDED_BADLY),
    )


def _number(row: TraceRow, column: str, place: str) -> float:
    text = row[column]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if abs(value) > _MOST and not math.isinf(value):
        raise _odd(column, f"a number of at most {_MOST:,.0f}", text, place)
    if not math.isfinite(value):
        raise _odd(column, "a number", text, place)
    return value


def _limit(row: TraceRow, place: str) -> float | None:
    """Return the user's limit in seconds; None if the cell is empty."""
    text = row.get("limit", "")
    if not text:
        return None
    written = f"{text}s" if text.replace(".", "", 1).isdecimal() else text
    seconds = parse_duration(written, where=f"{place}: limit").total_seconds()
    if not seconds:
        raise _odd("limit", "a duration above 0", text, place)
    return seconds


def _odd(column: str, expected: str, text: str, place: str) -> InputError:
    found = f"{plain(text, _SHOWN)!r}" if text else "an empty cell"
    return InputError(f"{column}: expected {expected}, found {found}", where=place)


def rebased(jobs: Iterable[TraceJob]) -> list[TraceJob]:
    """Return the jobs, given by submit time, numbered from 0 and with times relative to the first."""
    kept = list(jobs)
    first = kept[0].submit if kept else 0.0
    return [replace(job, number=number, submit=job.submit - first) for number, job in enumerate(kept)]


def prepare(
    trace: Sequence[TraceJob],
    site: Site,
    load: float | None = None,
    limits: str = "bucket",
    max_time: float = MAX_TIME,
    unlimited: float | None = None,
) -> list[TraceJob]:
    """Return the jobs for the replay: durations capped, none wider than the site, stretched, with limits.

    A job without a limit is planned to run for at most `unlimited` seconds; None: `max_time`.
    """
    jobs = [replace(job, duration=min(job.duration, max_time), gpus=min(job.gpus, site.gpus)) for job in trace]
    stretch = 1.0
    if load is not None:
        found = offered(jobs, site)
        if not 0 < found < math.inf:
            what = "all jobs arrive at the same time" if found else "no job takes any time"
            raise InputError(f"{what}: no stretch leads to load {load:g}", where="--load", hint="leave out --load")
        stretch = found / load
    return [_limited(replace(job, submit=job.submit * stretch), limits, max_time, unlimited) for job in jobs]


def _limited(job: TraceJob, how: str, max_time: float, unlimited: float | None) -> TraceJob:
    if job.stated is not None:
        return replace(job, limit=min(max_time, job.stated), is_limited=True)
    if how == "none" and unlimited is not None:
        return replace(job, limit=unlimited, is_limited=False)
    return replace(job, limit=limit(job.duration, how, max_time), is_limited=how != "none")


def offered(jobs: Sequence[TraceJob], site: Site) -> float:
    """Return the load: GPU-seconds of work for each GPU-second between the first and the last submission."""
    span = jobs[-1].submit - jobs[0].submit
    return sum(job.duration * job.gpus for job in jobs) / (site.gpus * span) if span else math.inf


def limit(duration: float, how: str, max_time: float = MAX_TIME) -> float:
    """Return a user's limit for a job: the exact duration, twice that rounded up to a usual figure, or none."""
    if how == "exact":
        return duration
    if how == "bucket":
        return min(max_time, next((bucket for bucket in BUCKETS if bucket >= 2 * duration), max_time))
    return max_time


class Ran(NamedTuple):
    """Completed run of a job: its start and end in seconds, and its GPUs."""

    job: TraceJob
    start: float
    end: float
    gpus: int
    preemptions: int = 0
    """Number of times it was preempted before, and had to begin again."""
    lost: float = 0.0
    """GPU-seconds of its earlier runs, which were lost."""


WIDTHS = (1, 2, 4, 8, 16)
_OF_JOBS = (93.2, 2.2, 2.3, 2.0, 0.4)
_LOG_DURATION = {1: (6.72, 1.97), 2: (4.52, 3.27), 4: (9.11, 2.78), 8: (9.65, 2.79), 16: (8.94, 3.20)}
"""Mean and deviation of ln(seconds)."""
_DAY = 24 * HOUR
_BURST_LOG_MEAN, _BURST_LOG_DEVIATION = math.log(2.0), 1.8
"""Sizes of sweeps: median 2, one in ten above 14, the largest some hundreds."""
_LONGEST = 60 * _DAY


def generate(
    jobs: int, seed: int = 0, *, tenants: int = 10, days: float = 28.0, widest: int = 16, burst_most: int = 400
) -> list[TraceJob]:
    """Return `jobs` jobs by submit time; the same seed gives the same jobs."""
    rng = random.Random(seed)  # noqa: S311 - the same jobs for the same seed
    widths = [width for width in WIDTHS if width <= widest]
    weights = [1 / (rank + 1) for rank in range(tenants)]
    rows: list[tuple[float, int, float, int, str]] = []
    while len(rows) < jobs:
        tenant = f"tenant{rng.choices(range(tenants), weights)[0]:02}"
        size = round(rng.lognormvariate(_BURST_LOG_MEAN, _BURST_LOG_DEVIATION))
        width = rng.choices(widths, _OF_JOBS[: len(widths)])[0]
        while True:  # a random second of the span; the busiest hour of the day gets three times the quietest one's
            at = rng.uniform(0, days * _DAY)
            if rng.uniform(0, 2) < 1.3 + 0.7 * math.sin(2 * math.pi * (at % _DAY) / _DAY - 2.4):
                break
        for _ in range(min(max(1, size), burst_most, jobs - len(rows))):
            mean, deviation = _LOG_DURATION[width]
            duration = float(round(min(_LONGEST, max(1.0, rng.lognormvariate(mean, deviation)))))
            rows.append((at, len(rows), duration, width, tenant))
            at += rng.expovariate(1 / 60)
            width = width if rng.random() < 0.8 else rng.choices(widths, _OF_JOBS[: len(widths)])[0]
    rows.sort()
    first = rows[0][0]
    return [
        TraceJob(number, round(at - first, 3), duration, width, tenant)
        for number, (at, _, duration, width, tenant) in enumerate(rows)
    ]


def digest(trace: Sequence[TraceJob]) -> str:
    """Return the SHA-256 of the trace as CSV, so that figures name their input."""
    lines = (f"{job.submit:.3f},{job.duration:.0f},{job.gpus},{job.tenant}\n" for job in trace)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


@dataclass(frozen=True)
class JobHistory:
    """Finished jobs that held GPUs, with facts on how reliable their replay is."""

    jobs: tuple[TraceJob, ...]
    """Jobs in the order of the times at which they could have started, the first at 0."""
    starts: tuple[float, ...]
    """Seconds at which each of them really started."""
    lost: tuple[tuple[int, float], ...]
    """Preemptions of each, and the GPU-seconds lost by them."""
    since: datetime
    until: datetime
    """First possible start, and last end."""
    failed: int
    """Number of jobs that held GPUs and did not complete."""
    left_out: int
    """Number of jobs that never held GPUs."""
    shared: int
    """Number of jobs that shared their GPUs."""
    gpus: int
    """Number of different GPUs that they held."""

    @property
    def span(self) -> timedelta:
        """Time from the first submission to the last."""
        return timedelta(seconds=self.jobs[-1].submit)

    def as_it_was(self, jobs: Sequence[TraceJob]) -> list[Ran]:
        """Return the real schedule of these jobs, with the limits they are replayed with."""
        each = zip(jobs, self.starts, self.lost, strict=True)
        return [Ran(job, at, at + job.duration, job.gpus, *lost) for job, at, lost in each]


def job_history(jobs: Iterable[Job]) -> JobHistory | None:
    """Return the history of these finished jobs; None if none of them ever held a GPU."""
    finished = [job for job in jobs if job.state.is_terminal]
    ends = {job.id: job.ended_at for job in finished if job.ended_at is not None}
    held = [job for job in finished if _held(job)]
    if not held:
        return None
    rows = sorted((could_start(job, ends), job.id, job) for job in held)
    first = rows[0][0]
    trace = rebased(_trace_job(job, (at - first).total_seconds()) for at, _, job in rows)
    starts = [((_kept(job)[0].started_at or at) - first).total_seconds() for at, _, job in rows]
    losses = []
    for _, _, job in rows:
        kept = _kept(job)
        gone = [attempt for attempt in _held(job) if attempt not in kept]
        losses.append((len(gone), sum(attempt.gpu_count * _seconds(attempt) for attempt in gone)))
    return JobHistory(
        jobs=tuple(trace),
        starts=tuple(starts),
        lost=tuple(losses),
        since=first,
        until=max(attempt.ended_at or first for job in held for attempt in _held(job)),
        failed=sum(job.state is not JobState.COMPLETED for job in held),
        left_out=sum(job.count for job in finished) - len(held),
        shared=sum(job.spec.gpus.share for job in held),
        gpus=len({uuid for job in held for attempt in _held(job) for uuid in attempt.gpus}),
    )


def could_start(job: Job, ends: Mapping[JobId, datetime]) -> datetime:
    """Return when the job lacked only GPUs: submitted, begin time reached, dependencies ended; at most its start."""
    moments = [job.submitted_at, *([job.spec.begin_at] if job.spec.begin_at else [])]
    moments += [ends[other] for other in (*job.spec.after, *job.spec.after_any) if other in ends]
    started = _held(job)[0].started_at
    return min(max(moments), started) if started else max(moments)


def _held(job: Job) -> list[Attempt]:
    return [attempt for attempt in job.attempts if attempt.gpu_count and attempt.started_at and attempt.ended_at]


def _kept(job: Job) -> list[Attempt]:
    """Return those that were not preempted; all if there are no others.

    A replay decides for itself which jobs are preempted, and then runs the work again.
    """
    held = _held(job)
    kept = [each for each in held if each.cause is None or each.cause.code is not CauseCode.PREEMPTED]
    return kept or held


def _trace_job(job: Job, submit: float) -> TraceJob:
    """Return the job with the width of its last run, and the duration of all its attempts except preempted ones."""
    attempts = _kept(job)
    gpus = attempts[-1].gpu_count
    work = sum(attempt.gpu_count * _seconds(attempt) for attempt in attempts)
    limit = job.spec.time_limit
    return TraceJob(
        number=0,
        submit=submit,
        duration=max(1.0, work / gpus),
        gpus=gpus,
        tenant=job.spec.tenant,
        priority=job.priority,
        nice=job.spec.nice,
        stated=limit.total_seconds() if limit else None,
        name=run_kind(job)[1],
        preemptible=job.spec.preemptible,
        ended_well=job.state is JobState.COMPLETED,
    )


def _seconds(attempt: Attempt) -> float:
    if attempt.started_at is None or attempt.ended_at is None:
        return 0.0
    return max(0.0, (attempt.ended_at - attempt.started_at).total_seconds())
