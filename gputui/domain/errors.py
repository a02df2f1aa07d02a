"""Errors that gputui reports, in the operator's words.

GputuiError
├── InputError                an option, key or file is wrong            exit code 2
│   └── InputErrors           several of them                            exit code 2
├── NotFoundError             no such job or GPU                         exit code 3
├── TransitionError           a job cannot go from here to there         exit code 1
├── StoreError                the queue cannot be read or written        exit code 1
│   ├── StoreFullError        no space left; nothing was lost
│   ├── StoreAccessError      permissions, or a file system that cannot keep a promise
│   ├── StoreFormatError      not written by gputui
│   │   └── StoreNewerError   written by a newer gputui
│   ├── StoreDamagedError     acknowledged changes are missing: nothing is written until a repair
│   └── StoreBusyError        another process kept the lock for too long
│       └── StoreOwnedError   it owns the queue, and answers requests
├── AccessError               a rule forbids it to this user             exit code 1
├── ParseLocallyError         the caller must read his words himself     exit code 1
├── NotLeaderError            another process holds the scheduler lock   exit code 1
├── NoOwnerError              no process owns the queue                  exit code 1
├── RuntimeFault              the runtime could not do what was asked    exit code 1
│   └── RuntimeUnavailableError   the engine does not answer
│       └── RuntimeAccessError    this user may not speak to it
└── ClusterError              the cluster could not do what was asked    exit code 1
    ├── ClusterUnavailableError   its commands or its server do not answer
    │   └── LostAnswerError       it may have done what it was asked
    ├── ClusterRefusedError       it refused, in its own words
    └── CapabilityError           it has no such function
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import PurePath

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
    text = error if cause.code is CauseCode.NON_ZERO_EXIT else f"{what}: {error}"
    return f"{text}{semicolon}{notes}"


def signal_name(number: int) -> str:
    """Return the name of a signal, `SIGTERM` for 15."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class GputuiError(Exception):
    """Error with `what` happened, `where`, and a `hint` how to fix it."""

    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    @property
    def without_hint(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what

    def __str__(self) -> str:
        return f"{self.without_hint} ({self.hint})" if self.hint else self.without_hint


class InputError(GputuiError):
    """An option, key or file is wrong; `where` names it."""

    exit_code = 2


class InputErrors(InputError):  # noqa: N818 - a plural of them
    """Several errors in one input; acts as the first of them where a single error is expected."""

    def __init__(self, errors: tuple[InputError, ...]) -> None:
        super().__init__(errors[0].what, where=errors[0].where, hint=errors[0].hint)
        self.args = (errors,)
        self.errors = errors

    def __str__(self) -> str:
        return "; ".join(map(str, self.errors))


class NotFoundError(GputuiError):
    """The job or GPU does not exist."""

    exit_code = 3


class TransitionError(GputuiError):
    """A job cannot change from its state to the requested one."""


class StoreError(GputuiError):
    """The queue cannot be read or written."""


class StoreFullError(StoreError):
    """The disk is full. Acknowledged changes are kept; no part of the refused change was made."""


class StoreAccessError(StoreError):
    """Permissions refuse, or the file system cannot keep the promises made (NFS, CIFS, overlay)."""


class StoreFormatError(StoreError):
    """The files were written by a newer gputui, or not by gputui."""


class StoreNewerError(StoreFormatError):
    """The files were written by a newer gputui."""


class StoreDamagedError(StoreError):
    """Acknowledged changes are missing from the files. Nothing is written until `gputui state repair`."""


class StoreBusyError(StoreError):
    """Another process kept the lock for longer than this one was willing to wait."""


class StoreOwnedError(StoreBusyError):
    """The process that keeps the lock answers requests, so nobody else writes."""


class AccessError(GputuiError):
    """A rule forbids this to the user; `rule` names it in a few words with dashes, such as `own-jobs`."""

    def __init__(self, what: str, *, rule: str = "role", where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what, where=where, hint=hint)
        self.rule = rule


class ParseLocallyError(GputuiError):
    """The owner of a queue does not run this command for a caller: its words name a file, or take long to match.

    Nothing was done. The caller runs the command itself, and asks the owner for what is of the queue.
    """


class NotLeaderError(GputuiError):
    """Another process holds the scheduler lock of this state directory."""


class NoOwnerError(GputuiError):
    """No process owns the queue and serves it, or none that this user may ask."""


class RuntimeFault(GputuiError):  # noqa: N818 - RuntimeError is Python's own
    """The runtime could not carry out a command; `cause` classifies it for retries."""

    def __init__(self, cause: Cause, *, hint: str | None = None) -> None:
        super().__init__(cause.text, hint=hint)
        self.args = (cause,)  # pickle passes these to the constructor of the copy
        self.cause = cause

    @property
    def may_pass(self) -> bool:
        """Return whether the same call may succeed soon: the engine or the attempt's streams do not answer."""
        return self.cause.code in {CauseCode.CONTAINER_LOST, CauseCode.RUNTIME_UNAVAILABLE}


class RuntimeUnavailableError(RuntimeFault):
    """The engine does not answer: infrastructure, never the job's fault."""

    def __init__(self, text: str, *, hint: str | None = None) -> None:
        super().__init__(Cause(CauseCode.RUNTIME_UNAVAILABLE, text), hint=hint)
        self.args = (text,)


class OtherEngineError(RuntimeUnavailableError):
    """The engine answers, and is not the one that has the queue's containers."""


class RuntimeAccessError(RuntimeUnavailableError):
    """This user may not speak to the engine."""


class ClusterError(GputuiError):
    """The cluster could not carry out a request."""


class ClusterUnavailableError(ClusterError):
    """The cluster's commands are missing, or it does not answer."""


class LostAnswerError(ClusterUnavailableError):
    """No answer came: the cluster may have done what it was asked."""


class ClusterRefusedError(ClusterError):
    """The cluster refused a request; the text has its own words."""


class CapabilityError(ClusterError):
    """The cluster has no such function; the text is the sentence of `Caps.lacking`."""


def install_line(requirements: Sequence[str], prefix: str, *, has_pip: bool = True) -> str:
    """Return the command that adds packages to the environment at `prefix`; pip would miss one of pipx or uv."""
    quoted = [shlex.quote(requirement) for requirement in requirements]
    kind, name = PurePath(prefix).parts[-3:-1], PurePath(prefix).name
    if kind == ("pipx", "venvs"):
        return f"pipx inject {name} {' '.join(quoted)}"
    if kind == ("uv", "tools"):
        return f"uv tool install {' '.join(f'--with {each}' for each in quoted)} {name}"
    if not has_pip:
        return f"uv pip install --python {shlex.quote(prefix)} {' '.join(quoted)}"
    return f"pip install {' '.join(quoted)}"
