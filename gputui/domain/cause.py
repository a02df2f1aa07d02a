"""Causes of an attempt's end, and which of them are retried at whose cost."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from msgspec import Struct


class CauseCode(StrEnum):
    """The distinct ways an attempt can end other than by exit code 0."""

    NON_ZERO_EXIT = "NonZeroExit"
    OUT_OF_MEMORY = "OutOfMemory"
    SIGNALLED = "Signalled"
    GPU_OUT_OF_MEMORY = "GpuOutOfMemory"
    TIME_LIMIT = "TimeLimit"
    CANCELLED = "Cancelled"
    PREEMPTED = "Preempted"
    REQUEUED = "Requeued"
    DEPENDENCY_NEVER_MET = "DependencyNeverMet"
    IMAGE_NOT_FOUND = "ImageNotFound"
    BAD_SPEC = "BadSpec"
    NOT_ALLOWED = "NotAllowed"
    COMMAND_NOT_FOUND = "CommandNotFound"
    COMMAND_NOT_EXECUTABLE = "CommandNotExecutable"
    PULL_FAILED = "PullFailed"
    RUNTIME_UNAVAILABLE = "RuntimeUnavailable"
    RUNTIME_ERROR = "RuntimeError"
    GPU_SETUP_FAILED = "GpuSetupFailed"
    GPU_LOST = "GpuLost"
    CONTAINER_LOST = "ContainerLost"
    END_UNKNOWN = "EndUnknown"
    DISK_FULL = "DiskFull"


class Blame(StrEnum):
    """Party that an end is attributed to, which decides whether the next attempt counts against the retries."""

    SPEC = "spec"
    """The job as written cannot run: not retried."""
    INFRASTRUCTURE = "infrastructure"
    """The machine failed the job: retried free of charge."""
    JOB = "job"
    """The job itself failed: retried as often as its retries allow."""
    OPERATOR = "operator"
    """A user or operator asked for it: never retried automatically."""


_BLAME = {
    CauseCode.NON_ZERO_EXIT: Blame.JOB,
    CauseCode.OUT_OF_MEMORY: Blame.JOB,
    CauseCode.SIGNALLED: Blame.JOB,
    CauseCode.GPU_OUT_OF_MEMORY: Blame.JOB,
    CauseCode.END_UNKNOWN: Blame.JOB,  # it may have done its work: only its user can decide to run it again
    CauseCode.TIME_LIMIT: Blame.OPERATOR,
    CauseCode.CANCELLED: Blame.OPERATOR,
    CauseCode.REQUEUED: Blame.OPERATOR,
    CauseCode.DEPENDENCY_NEVER_MET: Blame.OPERATOR,
    CauseCode.PREEMPTED: Blame.INFRASTRUCTURE,
    CauseCode.IMAGE_NOT_FOUND: Blame.SPEC,
    CauseCode.BAD_SPEC: Blame.SPEC,
    CauseCode.NOT_ALLOWED: Blame.SPEC,
    CauseCode.COMMAND_NOT_FOUND: Blame.SPEC,
    CauseCode.COMMAND_NOT_EXECUTABLE: Blame.SPEC,
    CauseCode.PULL_FAILED: Blame.INFRASTRUCTURE,
    CauseCode.RUNTIME_UNAVAILABLE: Blame.INFRASTRUCTURE,
    CauseCode.RUNTIME_ERROR: Blame.INFRASTRUCTURE,
    CauseCode.GPU_SETUP_FAILED: Blame.INFRASTRUCTURE,
    CauseCode.GPU_LOST: Blame.INFRASTRUCTURE,
    CauseCode.CONTAINER_LOST: Blame.INFRASTRUCTURE,
    CauseCode.DISK_FULL: Blame.INFRASTRUCTURE,
}


PART_OUT_OF_MEMORY = "the kernel ended one of its processes for lack of memory, but the job itself succeeded"
"""Note about an attempt that succeeded although a process in it was out of memory."""


class Cause(Struct, frozen=True):
    """Cause of an attempt's end: a code for programs and a sentence for people."""

    code: CauseCode
    text: str
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs at fault, if known."""

    @property
    def blame(self) -> Blame:
        """Party that pays for the next attempt."""
        return _BLAME[self.code]


def cause_of_exit(exit_code: int, *, oom_killed: bool = False) -> Cause | None:
    """The cause an exit code stands for; None for 0.

    125 to 127 are the codes by which `docker run` and POSIX shells report that a command could not be run;
    128 + n is the shells' convention for death by signal n. A *running* container that exits 126 or 127 has
    a shell inside that failed to find its command, which is the job's own affair, so those two are the job's
    blame here; the runtime reports a missing entry point itself, as COMMAND_NOT_FOUND.
    """
    if exit_code == 0:
        return None
    if oom_killed:
        return Cause(CauseCode.OUT_OF_MEMORY, f"killed by the kernel: over its memory limit (exit code {exit_code})")
    if 128 < exit_code <= 192:
        return Cause(CauseCode.SIGNALLED, f"ended by {signal_name(exit_code - 128)} (exit code {exit_code})")
    words = {
        125: "exit code 125: the container runtime inside the job failed",
        126: "exit code 126: a command inside the job could not be executed",
        127: "exit code 127: a command inside the job was not found",
    }
    return Cause(CauseCode.NON_ZERO_EXIT, words.get(exit_code, f"exit code {exit_code}"))


def end_unknown(after: datetime, before: datetime) -> Cause:
    """Return the cause of an end that nobody saw, between two times, and whose exit code nobody recorded."""
    after, before = after.astimezone(UTC), before.astimezone(UTC) + timedelta(seconds=59)  # to whole minutes, outwards
    day = "%Y-%m-%d " if after.date() != before.date() else ""
    window = f"between {after:{day}%H:%M} and {before:{day}%H:%M} UTC"
    return Cause(CauseCode.END_UNKNOWN, f"ended {window}, exit code not recorded")


def with_error(cause: Cause | None, error: str) -> str:
    """Return the cause with an error line in place of a bare exit code, or after other causes in the job itself.

    Notes that were added to the cause after a semicolon are kept.
    """
    if cause is None:
        return ""
    if not error or error in cause.text or cause.blame is not Blame.JOB:
        return cause.text
    what, semicolon, notes = cause.text.partition("; ")
    told = error if cause.code is CauseCode.NON_ZERO_EXIT else f"{what}: {error}"
    return f"{told}{semicolon}{notes}"


def signal_name(number: int) -> str:
    """Return the name of a signal, `SIGTERM` for 15."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
