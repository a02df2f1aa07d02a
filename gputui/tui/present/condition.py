"""A condition that lasts: what it is, since when, and what helps."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

DISK_LOW, FAILED = "disk low", "failed"


@dataclass(frozen=True)
class Condition:
    """Problem or unusual state that lasts until its reason is gone."""

    severity: str
    """Severity of a notice: `error`, `warning` or `information`."""
    text: str
    kind: str = ""
    """Kind of condition, such as `lost`; empty: it has no words in the status line."""
    short: str = ""
    """Words for the status line; empty: made from kind and GPU."""
    subject: str = ""
    """Thing that it concerns, by a name that stays the same while it lasts."""
    since: datetime | None = None
    """Time since when it lasts; None: unknown."""
    is_seen: bool = False
    """True if `since` is the time at which this console saw it first."""
    todo: str = ""
    """Command or key that helps."""
    gpu: str = ""
    """Index of the GPU as shown; empty: it concerns none."""
    count: int = 1
    """Number of jobs that it stands for."""

    @property
    def key(self) -> tuple[str, str]:
        """Identity by which it is recognised in the next snapshot: figures in its text may change."""
        return self.kind, self.subject or self.gpu or ("" if self.kind else self.text)

    @property
    def kind_words(self) -> str:
        """Return the words behind the names of GPUs."""
        return {"intruder": "shared with a foreign process", "foreign": "in foreign use"}.get(self.kind, self.kind)
