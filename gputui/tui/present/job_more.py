"""Cells of a job that are shown to who asks for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING

from gputui.domain.job import Job
from gputui.domain.state import JobState
from gputui.domain.text import plain
from gputui.domain.units import format_duration
from gputui.tui.present.cells import UNKNOWN, Cell, cell
from gputui.tui.present.style import DIM, PLAIN, RED
from gputui.tui.present.times import minute

if TYPE_CHECKING:
    from gputui.tui.present.job import JobContext


def moment(at: datetime | None, now: datetime) -> str:
    """As clocks here show it; empty where it did not come yet."""
    return "" if at is None else minute(at, now)


def _eta(job: Job, context: JobContext) -> Cell:
    """When it is expected to start, by the clock on the wall."""
    if job.state is not JobState.PENDING:
        return cell("")
    expected = context.expected_starts.get(job.id)
    if expected is None:
        return cell(UNKNOWN, DIM)
    return cell(f"~{moment(expected, context.now)}" if expected > context.now else "now", PLAIN)


def _left(job: Job, context: JobContext) -> Cell:
    """What its limit leaves it."""
    if job.limit_at is None or not job.state.is_active:
        return cell("")
    left = job.limit_at - context.now
    return cell(format_duration(left) if left.total_seconds() > 0 else "over", PLAIN)


def _where(job: Job, context: JobContext) -> Cell:
    attempt = job.attempt
    held = attempt.gpus if attempt else ()
    names = [context.gpu_names.get(uuid, "?") for uuid in held]
    return cell(",".join(names), PLAIN if job.gpus else DIM)


def _exit(job: Job, context: JobContext) -> Cell:
    return cell("" if job.exit_code is None else str(job.exit_code), RED if job.exit_code else DIM)


def _attempts(job: Job, context: JobContext) -> Cell:
    return cell(str(len(job.attempts)) if job.attempts else "", PLAIN if len(job.attempts) > 1 else DIM)


def _score(job: Job, context: JobContext) -> Cell:
    score = context.scores.get(job.id)
    if score is None:
        return cell(UNKNOWN if job.state is JobState.PENDING else "", DIM)
    return cell(f"{score:.1f}", DIM)


def _started(job: Job) -> datetime | None:
    return None if job.state is JobState.PENDING else job.started_at


MORE_CELLS: Mapping[str, Callable[[Job, JobContext], Cell]] = MappingProxyType(
    {
        "eta": _eta,
        "left": _left,
        "where": _where,
        "exit": _exit,
        "attempts": _attempts,
        "score": _score,
        "user": lambda job, context: cell(plain(job.submitted_by, 40), DIM),
        "image": lambda job, context: cell(plain(job.spec.image or "host", 120), DIM),
        "submitted": lambda job, context: cell(moment(job.submitted_at, context.now), DIM),
        "started": lambda job, context: cell(moment(_started(job), context.now), DIM),
        "ended": lambda job, context: cell(moment(job.ended_at, context.now), DIM),
    }
)
