"""Traces: jobs as they once came, read from CSV and stretched to the load wanted."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gputui.domain.errors import InputError
from gputui.domain.job import NORMAL_PRIORITY

COLUMNS = ("submit_time_s", "duration_s", "gpus")
HOUR = 3600.0
BUCKETS = tuple(hours * HOUR for hours in (0.25, 1, 4, 12, 24, 72))
LIMITS = ("exact", "bucket", "none")
MAX_TIME = 72 * HOUR
_MAX_FILE = 512 * 1024**2


@dataclass(frozen=True)
class TraceJob:
    """One job of a trace. Times are seconds since the trace begins."""

    number: int
    submit: float
    duration: float
    gpus: int
    tenant: str
    limit: float = MAX_TIME
    """What the user would have said it takes."""
    priority: int = NORMAL_PRIORITY
    nice: int = 0
    stated: float | None = None
    """The limit that its user set, where that is known."""


@dataclass(frozen=True)
class Site:
    """What the jobs run on."""

    gpus: int
    per_node: int = 8

    @property
    def nodes(self) -> tuple[int, ...]:
        """How many GPUs each node has; the last may have fewer."""
        whole, rest = divmod(self.gpus, self.per_node)
        return (self.per_node,) * whole + ((rest,) if rest else ())


def read(path: Path) -> tuple[list[TraceJob], str]:
    """The jobs of a file by submit time, and its SHA-256."""
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
        raise InputError(f"is not UTF-8 text at byte {error.start}", where=str(path)) from error
    return parse(text, str(path)), hashlib.sha256(raw).hexdigest()


def parse(text: str, where: str) -> list[TraceJob]:
    """The jobs of a CSV text, by submit time."""
    reader = csv.DictReader(io.StringIO(text))
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        hint = "the first line names the columns: " + ",".join(COLUMNS) + ",vc"
        raise InputError(f"has no column {missing[0]}", where=where, hint=hint)
    try:
        rows = sorted(_rows(reader, where))
    except csv.Error as error:
        raise InputError(f"is not CSV: {error}", where=f"{where}: line {reader.line_num}") from error
    if not rows:
        raise InputError("holds no job", where=where)
    return rebased(
        TraceJob(line, submit, duration, gpus, tenant, priority=priority)
        for submit, line, duration, gpus, tenant, priority in rows
    )


def rebased(jobs: Iterable[TraceJob]) -> list[TraceJob]:
    """The jobs, given by submit time, numbered from 0 and counted from the first of them."""
    kept = list(jobs)
    first = kept[0].submit if kept else 0.0
    return [replace(job, number=number, submit=job.submit - first) for number, job in enumerate(kept)]


def _rows(reader: csv.DictReader[str], where: str) -> Iterator[tuple[float, int, float, int, str, int]]:
    for row in reader:
        place = f"{where}: line {reader.line_num}"
        submit = _number(row["submit_time_s"], "submit_time_s", place)
        duration = _number(row["duration_s"], "duration_s", place)
        gpus = _number(row["gpus"], "gpus", place)
        if duration < 0 or gpus < 1 or gpus != int(gpus) or gpus > 2**20:
            raise InputError("expected a duration from 0 and a whole number of GPUs from 1", where=place)
        yield submit, reader.line_num, duration, int(gpus), row.get("vc") or "", NORMAL_PRIORITY


def _number(text: str | None, column: str, where: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or abs(value) > 1e12:
        raise InputError(f"{column}: expected a number", where=where)
    return value


def prepare(
    trace: Sequence[TraceJob],
    site: Site,
    load: float | None = None,
    limits: str = "bucket",
    max_time: float = MAX_TIME,
) -> list[TraceJob]:
    """The jobs as they are replayed: durations capped, none wider than the site, stretched to the load, with limits."""
    jobs = [replace(job, duration=min(job.duration, max_time), gpus=min(job.gpus, site.gpus)) for job in trace]
    stretch = 1.0 if load is None else offered(jobs, site) / load
    return [replace(job, submit=job.submit * stretch, limit=_limit(job, limits, max_time)) for job in jobs]


def _limit(job: TraceJob, how: str, max_time: float) -> float:
    return limit(job.duration, how, max_time) if job.stated is None else min(max_time, job.stated)


def offered(jobs: Sequence[TraceJob], site: Site) -> float:
    """The load: GPU-seconds of work for each GPU-second between the first and the last submission."""
    span = jobs[-1].submit - jobs[0].submit
    return sum(job.duration * job.gpus for job in jobs) / (site.gpus * span) if span else math.inf


def limit(duration: float, how: str, max_time: float = MAX_TIME) -> float:
    """What a user says a job takes: the truth, twice that rounded up to a usual figure, or nothing."""
    if how == "exact":
        return duration
    if how == "bucket":
        return min(max_time, next((bucket for bucket in BUCKETS if bucket >= 2 * duration), max_time))
    return max_time
