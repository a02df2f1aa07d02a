"""Pinned logs, which are shown together."""

from __future__ import annotations

from msgspec import Struct

from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.server_ids import shown_id
from gputui.tui.present.job import job_title

MOST = 6


class LogOf(Struct, frozen=True):
    """Reference to the log of a job's attempt."""

    job_id: JobId
    attempt: int | None = None
    """Number of the attempt; None: the latest."""

    def heading(self, job: Job | None) -> str:
        """Return `#17 train, attempt 2 of 3` without control characters."""
        if job is None:
            return f"#{shown_id(self.job_id)}" + (f", attempt {self.attempt}" if self.attempt else "")
        count = len(job.attempts)
        number = self.attempt or count
        return job_title(job) + (f", attempt {number} of {count}" if count > 1 else "")

    def beside(self, job: Job, step: int) -> LogOf | None:
        """Return the log of the previous or next attempt; None if there is none."""
        number = (self.attempt or len(job.attempts)) + step
        return LogOf(self.job_id, number) if 1 <= number <= len(job.attempts) else None


class Pinned:
    """Pinned logs, in the order of pinning, for the lifetime of the console."""

    def __init__(self) -> None:
        self.logs: list[LogOf] = []

    def toggle(self, log: LogOf) -> str:
        """Pin or unpin a log, and return the result as text."""
        if log in self.logs:
            self.logs.remove(log)
            return "no longer pinned"
        if len(self.logs) >= MOST:
            return f"not pinned: {MOST} logs are pinned already"
        self.logs.append(log)
        return f"pinned ({len(self.logs)} of {MOST})"


def last_attempts(job: Job) -> list[LogOf]:
    """Return the logs of the job's last two attempts."""
    return [LogOf(job.id, attempt.number) for attempt in job.attempts[-2:]]


def started_attempt(job: Job | None) -> int:
    """Return the number of the job's latest started attempt; 0 if none has started."""
    started = [attempt.number for attempt in job.attempts if attempt.started_at is not None] if job else []
    return max(started, default=0)
