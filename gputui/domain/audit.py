"""Audit log: which user asked for what, and when."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from gputui.domain.job import Job
    from gputui.domain.job_spec import JobId


class Actor(Struct, frozen=True):
    """User on whose behalf something is done."""

    uid: int
    user: str
    via: str = ""
    """Program that asks for the user; empty: a command or console of his own."""


class AuditEntry(Struct, frozen=True):
    """Entry of the audit log: one action, as it was written to the store."""

    at: datetime
    uid: int
    user: str
    verb: str
    """submit, cancel, hold, release, requeue, priority, top, drain, resume, pause, unpause, reserve, unreserve,
    standing, tenant, migrate; about processes and containers of others signal, stop-container; of recurring jobs add,
    remove, pause, resume, fire, skip; by the scheduler itself preempt; what a rule forbade refused."""
    target: str
    """`job 17`, `array 5`, `GPU-…`, `recurring 7`, `reservation r1`, `tenant bob`, `scheduler`, `pid 4711` or
    `container jupyter`."""
    before: str
    after: str
    via: str = ""
    """Program that asked for the user, such as `mcp`, or `sudo`; empty: a command or console of his own."""
    key: str = ""
    """Idempotency key of the request, as `domain/keys.py` stores it."""


def targets_of(job: Job) -> tuple[str, ...]:
    """Return the targets of all actions that may concern a job."""
    return (f"job {job.id}", f"array {job.array.id}") if job.array else (f"job {job.id}",)


def job_of(target: str) -> JobId | None:
    """Return the id of the job or array that is the target; None: it is something else."""
    kind, _, number = target.partition(" ")
    return int(number) if kind in {"job", "array"} and number.isdigit() else None
