"""The life of a job: its states, the allowed transitions, and the reasons for waiting."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, tzinfo
from enum import StrEnum
from types import MappingProxyType

from msgspec import Struct

from gputui.domain.errors import TransitionError


class JobState(StrEnum):
    """States of a job, with Slurm's names."""

    PENDING = "PENDING"
    CONFIGURING = "CONFIGURING"
    RUNNING = "RUNNING"
    COMPLETING = "COMPLETING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    PREEMPTED = "PREEMPTED"

    @property
    def short(self) -> str:
        return _SHORT[self]

    @property
    def is_terminal(self) -> bool:
        """Return whether the job has ended; only a requeue revives it."""
        return self in TERMINAL

    @property
    def is_failure(self) -> bool:
        return self in FAILURES

    @property
    def is_active(self) -> bool:
        return self in ACTIVE


_SHORT = {
    JobState.PENDING: "PD",
    JobState.CONFIGURING: "CF",
    JobState.RUNNING: "R",
    JobState.COMPLETING: "CG",
    JobState.COMPLETED: "CD",
    JobState.FAILED: "F",
    JobState.CANCELLED: "CA",
    JobState.TIMEOUT: "TO",
    JobState.OUT_OF_MEMORY: "OOM",
    JobState.PREEMPTED: "PR",
}

ACTIVE = frozenset({JobState.CONFIGURING, JobState.RUNNING, JobState.COMPLETING})
FAILURES = frozenset({JobState.FAILED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY})
TERMINAL = FAILURES | {JobState.COMPLETED, JobState.CANCELLED}

_ENDS = TERMINAL | {JobState.PREEMPTED}
TRANSITIONS: Mapping[JobState, frozenset[JobState]] = MappingProxyType(
    {
        JobState.PENDING: frozenset({JobState.CONFIGURING, JobState.CANCELLED, JobState.FAILED}),
        # back to PENDING: the start was interrupted, or failed and will be retried
        JobState.CONFIGURING: frozenset({JobState.RUNNING, JobState.COMPLETING, JobState.PENDING}) | _ENDS,
        JobState.RUNNING: frozenset({JobState.COMPLETING, JobState.PENDING}) | _ENDS,
        JobState.COMPLETING: frozenset({JobState.PENDING}) | _ENDS,
        JobState.PREEMPTED: frozenset({JobState.PENDING, JobState.CANCELLED}),
        **{state: frozenset({JobState.PENDING}) for state in TERMINAL},
    }
)
"""Table of allowed transitions. From a terminal state only a requeue leads back, to PENDING."""


def check_transition(before: JobState, after: JobState) -> None:
    """Raise TransitionError unless the transition from `before` to `after` is allowed."""
    if after not in TRANSITIONS[before]:
        raise TransitionError(f"a job that is {before} cannot become {after}")


class PendingReason(StrEnum):
    """Reasons why a job waits."""

    RESOURCES = "Resources"
    PRIORITY = "Priority"
    DEPENDENCY = "Dependency"
    BEGIN_TIME = "BeginTime"
    JOB_HELD_USER = "JobHeldUser"
    RESERVATION = "Reservation"
    QUOTA_EXCEEDED = "QuotaExceeded"
    BACK_OFF = "BackOff"
    SCHEDULER_PAUSED = "SchedulerPaused"
    NODE_UNKNOWN = "NodeUnknown"


HOW_TO_SCHEDULE = "start `gputui` or `gputui serve`"
NO_SCHEDULER = f"no scheduler is running: {HOW_TO_SCHEDULE}"
NO_HOST_JOBS = "host jobs are processes of this machine, and this queue's jobs run on {}"


class Reason(Struct, frozen=True):
    """Reason why a job waits: a code for programs, a sentence with numbers for people."""

    code: PendingReason
    text: str
    """Sentence; its times are in UTC."""
    times: tuple[datetime, ...] = ()
    """Times in the text, in the order in which they occur."""

    @property
    def names_code(self) -> bool:
        """Return whether the text ends with a code, as the words of engines do."""
        return self.text.endswith(")") and self.text.rpartition("(")[2][:-1].isidentifier()

    def mentions(self, at: datetime) -> bool:
        return any(abs(at - other) < _MINUTE for other in self.times)

    def local(self, now: datetime, zone: tzinfo | None = None) -> str:
        """Return the text with its times in that zone; None: in local time."""
        text, local, today = self.text, "", now.astimezone(zone).date()
        for at in self.times:
            words = next((words for words in (f"{at:{_DAY}}", f"{at:{_CLOCK}}") if words in text), None)
            if words is not None:
                here = at.astimezone(zone)
                before, _, text = text.partition(words)
                local += before + (f"{here:%H:%M}" if here.date() == today else f"{here:%Y-%m-%d %H:%M}")
        return local + text


_MINUTE = timedelta(minutes=1)
_CLOCK, _DAY = "%H:%M UTC", "%Y-%m-%d %H:%M UTC"


def utc_moment(at: datetime, now: datetime) -> str:
    """Return `14:32 UTC`, with the date unless it is today: the format of times in reasons."""
    return f"{at:{_CLOCK if at.date() == now.date() else _DAY}}"
