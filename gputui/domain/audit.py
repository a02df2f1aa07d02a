"""Who wished what, when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Actor:
    """Who acts."""

    uid: int
    user: str


@dataclass(frozen=True)
class AuditEntry:
    """One wish, as it was carried into the store."""

    at: datetime
    uid: int
    user: str
    verb: str
    """submit, cancel, hold, release, requeue, priority, top, drain, resume, pause, unpause, reserve, unreserve,
    standing, tenant; of recurring jobs add, remove, pause, resume, fire, skip; by the
    scheduler itself preempt."""
    target: str
    """`job 17`, `GPU-…`, `recurring 7`, `reservation r1`, `tenant bob` or `scheduler`."""
    before: str
    after: str
