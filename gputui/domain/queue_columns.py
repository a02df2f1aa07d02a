"""Columns of the console's queue, each declared once: its cell, its order, the chooser and the settings follow."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import dropwhile
from types import MappingProxyType
from typing import Literal, TypeAlias

from msgspec import Struct, field

from gputui.domain.arrays import short_id
from gputui.domain.cluster import Capability
from gputui.domain.filter import gpu_count_of
from gputui.domain.job import Job
from gputui.domain.job_spec import GpuRequest, JobId, server_of
from gputui.domain.state import JobState
from gputui.domain.text import UNKNOWN, format_duration, format_limit, minute, plain

Value: TypeAlias = float | str | datetime | timedelta | None
Tone: TypeAlias = Literal["plain", "strong", "dim", "blue", "red"]


class ColumnData(Struct, frozen=True):
    """Data that columns need besides the job."""

    now: datetime
    expected_starts: Mapping[JobId, datetime] = field(default_factory=dict)
    scores: Mapping[JobId, float] = field(default_factory=dict)
    """Scores of waiting jobs; only while a column shows them."""
    gpu_names: Mapping[str, str] = field(default_factory=dict)
    """The index of each GPU, by UUID."""
    id_digits: int = 0
    """First digits of long numbers that are shown; 0: all."""


Get: TypeAlias = Callable[[Job, ColumnData], Value]


class QueueColumn(Struct, frozen=True):
    key: str
    """Its name in the settings."""
    title: str
    width: int
    about: str
    """Its description in the chooser."""
    value: Get | None = None
    """Value by which rows are sorted; None: no sorting. Without `shown` it is also shown, and case does not matter."""
    shown: Get | None = None
    tone: Callable[[Job, ColumnData], Tone] = lambda job, seen: "dim"
    right: bool = False
    flex: int = 0
    rank: int = 0
    most: int = 10_000
    is_down: bool = False
    """True if large values come first."""
    is_moving: bool = False
    """True if values change without a change of any job."""
    capability: Capability | None = None
    """Capability without which a cluster has no values for it."""

    def order(self, job: Job, seen: ColumnData) -> Value:
        found = self.value(job, seen) if self.value else None
        return found.casefold() if isinstance(found, str) and self.shown is None else found

    def text(self, job: Job, seen: ColumnData) -> str:
        get = self.shown or self.value
        found = get(job, seen) if get else None
        if isinstance(found, timedelta):
            return format_duration(found)
        if isinstance(found, datetime):
            return minute(found, seen.now)
        return "" if found is None else plain(str(found), 200)


def elapsed(job: Job, now: datetime) -> timedelta | None:
    if job.started_at is None or job.state is JobState.PENDING:
        return None
    end = job.ended_at if job.state.is_terminal else now
    return max(timedelta(0), (end or now) - job.started_at)


def gpus_wanted(request: GpuRequest) -> str:
    """Return `2`, `2-4`, `all`, `=0,3`, or a dash for none."""
    if request.everything:
        return "all"
    if request.devices:
        return f"={len(request.devices)}"
    if request.maximum == 0:
        return "-"
    low, high = request.minimum, request.maximum
    return str(low) if low == high else f"{low}-{high}"


def more_than_name(job: Job) -> str:
    """Return the command as far as the name does not say it: `… 600` of `sleep 600` for a job `sleep`."""
    words = _command_words(job.spec.command)
    program, _, arguments = words.partition(" ")
    if words == job.name:
        return ""
    return f"… {arguments}" if program == job.name else words


def _command_words(command: Sequence[str]) -> str:
    """Return the command with its program's base name; without `python3 -u` and `python -m`."""
    program, *arguments = command or ("",)
    base = program.rstrip("/").rpartition("/")[2] or program
    if _PYTHON.fullmatch(base):
        rest = list(dropwhile(lambda word: word in _PYTHON_FLAGS, arguments))
        if len(rest) > 1 and rest[0] == "-m":
            return " ".join(rest[1:])
        if rest and not rest[0].startswith("-"):
            return _command_words(rest)
    return " ".join((base, *arguments))


_PYTHON, _PYTHON_FLAGS = re.compile(r"python[\d.]*"), frozenset({"-u", "-I", "-O", "-OO", "-B", "-s", "-E"})


def _live(job: Job, seen: ColumnData) -> Tone:
    return "dim" if job.state.is_terminal else "plain"


def _plain(job: Job, seen: ColumnData) -> Tone:
    return "plain"


def _priority(job: Job, seen: ColumnData) -> str:
    return "top" if job.topped_at is not None and job.state is JobState.PENDING else str(job.priority)


def _server(job: Job, seen: ColumnData) -> str | None:
    return server_of(job.id) or None


def _start(job: Job, seen: ColumnData) -> datetime | None:
    return seen.expected_starts.get(job.id) if job.state is JobState.PENDING else None


def _expected(words: Callable[[datetime, datetime], str]) -> Get:
    """Return what shows the expected start in these words; a dash where unknown, empty where the job does not wait."""

    def shown(job: Job, seen: ColumnData) -> str | None:
        if (at := _start(job, seen)) is None:
            return UNKNOWN if job.state is JobState.PENDING else None
        return f"~{words(at, seen.now)}" if at > seen.now else "now"

    return shown


def _until(at: datetime, now: datetime) -> str:
    """Return `29m` or `1h59m`: seconds of a forecast would be redrawn all the time, and mean nothing."""
    left, least = at - now, timedelta(minutes=1)
    return format_limit(left // least * least if left >= least else left)


def _left(job: Job, seen: ColumnData) -> timedelta | str | None:
    if job.limit_at is None or not job.state.is_active:
        return None
    return job.limit_at - seen.now if job.limit_at > seen.now else "over"


_amount = partial(QueueColumn, right=True, is_down=True)
_forecast = partial(
    QueueColumn,
    value=_start,
    tone=lambda job, seen: "dim" if job.state is JobState.PENDING and job.id not in seen.expected_starts else "plain",
    right=True,
    is_moving=True,
    capability=Capability.TEST_ONLY,
)
_ALL = (
    QueueColumn(
        "id",
        "ID",
        5,
        "its number",
        lambda job, _: job.id,
        lambda job, seen: short_id(job, seen.id_digits),
        lambda job, _: "dim" if job.state.is_terminal else "blue",
        right=True,
    ),
    QueueColumn(
        "state", "ST", 3, "state: a word on wide screens, else squeue's abbreviation", lambda job, _: job.state.short
    ),
    _amount(
        "priority",
        "PRI",
        3,
        "0 to 100, or top",
        lambda job, _: job.priority + (1000 if job.topped_at else 0),
        _priority,
        lambda job, seen: "strong" if _priority(job, seen) == "top" or job.priority > 50 else "dim",
    ),
    QueueColumn(
        "name",
        "NAME",
        14,
        "name",
        lambda job, _: job.name.casefold(),
        lambda job, _: plain(job.name, 120) or job.spec.image or _command_words(job.spec.command[:3]),
        _live,
        flex=2,
        most=40,
    ),
    QueueColumn("tenant", "TENANT", 8, "tenant it is charged to", lambda job, _: job.spec.tenant, flex=1, most=16),
    _amount(
        "gpus",
        "GPUS",
        4,
        "how many GPUs it holds or asks for",
        lambda job, _: gpu_count_of(job),
        lambda job, _: str(len(job.gpus)) if job.gpus else gpus_wanted(job.spec.gpus),
        _live,
    ),
    QueueColumn(
        "progress",
        "PROGRESS",
        13,
        "how long it has run, of its time limit; pulls and arrays; without STARTS, until its start",
        lambda job, seen: elapsed(job, seen.now),
        flex=1,
        most=27,
        is_down=True,
    ),
    _amount("time", "TIME", 6, "how long it has run", lambda job, seen: elapsed(job, seen.now), tone=_live),
    QueueColumn("limit", "LIMIT", 6, "its time limit", lambda job, _: job.spec.time_limit, right=True),
    _amount("age", "AGE", 6, "since it was submitted", lambda job, seen: seen.now - job.submitted_at, rank=3),
    _forecast("start", "STARTS", 7, "time until its expected start", shown=_expected(_until), rank=2),
    QueueColumn("why", "INFO", 18, "why it waits, where it runs, how it ended", flex=5),
    _forecast("eta", "ETA", 12, "expected start, local time", shown=_expected(minute)),
    QueueColumn(
        "left", "LEFT", 6, "remaining time of its limit", lambda job, _: job.limit_at, _left, _plain, right=True
    ),
    QueueColumn(
        "where",
        "ON GPU",
        8,
        "the indices of its GPUs",
        None,
        lambda job, seen: ",".join(seen.gpu_names.get(uuid, "?") for uuid in (job.attempt.gpus if job.attempt else ())),
        lambda job, _: "plain" if job.gpus else "dim",
        capability=Capability.GPU_IDS,
    ),
    QueueColumn("user", "USER", 8, "user who submitted it", lambda job, _: job.submitted_by),
    QueueColumn(
        "server", "SERVER", 6, "server it is on, in a console over several", _server, _server, _plain, flex=1, most=16
    ),
    QueueColumn("image", "IMAGE", 14, "its image", lambda job, _: job.spec.image or None, flex=1, most=40),
    QueueColumn(
        "command",
        "COMMAND",
        16,
        "its program and arguments, as far as its name does not say them",
        shown=lambda job, _: more_than_name(job),
        flex=2,
        most=60,
    ),
    _amount(
        "attempts",
        "TRY",
        3,
        "number of attempts",
        lambda job, _: len(job.attempts),
        lambda job, _: len(job.attempts) or None,
        lambda job, _: "plain" if len(job.attempts) > 1 else "dim",
    ),
    _amount(
        "exit",
        "EXIT",
        4,
        "its exit code",
        lambda job, _: job.exit_code,
        None,
        lambda job, _: "red" if job.exit_code else "dim",
    ),
    _amount("submitted", "SUBMITTED", 11, "when it was submitted, local time", lambda job, _: job.submitted_at),
    _amount(
        "started",
        "STARTED",
        11,
        "when it started, local time",
        lambda job, _: job.started_at,
        lambda job, _: None if job.state is JobState.PENDING else job.started_at,
    ),
    _amount("ended", "ENDED", 11, "when it ended, local time", lambda job, _: job.ended_at),
    _amount(
        "score",
        "SCORE",
        8,
        "score by which the plan orders waiting jobs",
        lambda job, seen: seen.scores.get(job.id),
        lambda job, seen: (
            f"{seen.scores[job.id]:.1f}"
            if job.id in seen.scores
            else UNKNOWN
            if job.state is JobState.PENDING
            else None
        ),
        is_moving=True,
        capability=Capability.WHAT_IF,
    ),
)
QUEUE_COLUMNS: Mapping[str, QueueColumn] = MappingProxyType({column.key: column for column in _ALL})


def absent_columns(lacking: Mapping[Capability, str]) -> Mapping[str, str]:
    """Return the columns for which a cluster has no values, each with the sentence of what it lacks."""
    return {at.key: lacking[at.capability] for at in _ALL if at.capability and at.capability in lacking}
