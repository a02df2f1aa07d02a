"""The life of a job: its states, which may follow which, and why one still waits."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, tzinfo
from enum import StrEnum
from types import MappingProxyType

from msgspec import Struct

from gputui.domain.errors import TransitionError


class JobState(StrEnum):
    """Slurm's words for where a job stands."""

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
        """The short form squeue prints."""
        return _SHORT[self]

    @property
    def is_terminal(self) -> bool:
        """Return whether only a requeue can wake the job again."""
        return self in TERMINAL

    @property
    def is_active(self) -> bool:
        """Return whether an attempt may be under way."""
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
TERMINAL = frozenset(
    {JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY}
)

_ENDS = TERMINAL | {JobState.PREEMPTED}
TRANSITIONS: Mapping[JobState, frozenset[JobState]] = MappingProxyType(
    {
        JobState.PENDING: frozenset({JobState.CONFIGURING, JobState.CANCELLED, JobState.FAILED}),
        # back to PENDING: the start was interrupted, or failed and will be tried again
        JobState.CONFIGURING: frozenset({JobState.RUNNING, JobState.COMPLETING, JobState.PENDING}) | _ENDS,
        JobState.RUNNING: frozenset({JobState.COMPLETING, JobState.PENDING}) | _ENDS,
        JobState.COMPLETING: frozenset({JobState.PENDING}) | _ENDS,
        JobState.PREEMPTED: frozenset({JobState.PENDING, JobState.CANCELLED}),
        **{state: frozenset({JobState.PENDING}) for state in TERMINAL},
    }
)
"""The one table of legal moves. From a terminal state only a requeue leads on, back to PENDING."""


def check_transition(before: JobState, after: JobState) -> None:
    """Raise TransitionError unless `after` may follow `before`."""
    if after not in TRANSITIONS[before]:
        raise TransitionError(f"a job that is {before} cannot become {after}")


class PendingReason(StrEnum):
    """Reasons for which a job waits."""

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


class Reason(Struct, frozen=True):
    """Reason for which a job waits: a code for programs, a sentence with numbers for people."""

    code: PendingReason
    text: str
    """Sentence; its times are in UTC."""
    times: tuple[datetime, ...] = ()
    """Times in the text, in the order in which they occur."""

    def mentions(self, at: datetime) -> bool:
        """Return whether the text names that minute already."""
        return any(abs(at - told) < _MINUTE for told in self.times)

    def local(self, now: datetime, zone: tzinfo | None = None) -> str:
        """The text with its times as clocks of that zone show them; None: of this machine's."""
        text, told, today = self.text, "", now.astimezone(zone).date()
        for at in self.times:
            words = next((words for words in (_day_words(at), _clock_words(at)) if words in text), None)
            if words is not None:
                here = at.astimezone(zone)
                before, _, text = text.partition(words)
                told += before + (f"{here:%H:%M}" if here.date() == today else f"{here:%Y-%m-%d %H:%M}")
        return told + text


_MINUTE = timedelta(minutes=1)


def moment(at: datetime, now: datetime) -> str:
    """`14:32 UTC`, with the date when it is not today's: how a reason tells of a time."""
    return _clock_words(at) if at.date() == now.date() else _day_words(at)


def _clock_words(at: datetime) -> str:
    return f"{at:%H:%M} UTC"


def _day_words(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"
