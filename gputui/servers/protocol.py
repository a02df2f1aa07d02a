"""Messages between a console and `gputui remote` on a server: one JSON object on each line.

The server begins with a `Hello`, then sends a `SnapshotUpdate` whenever its snapshot has changed, and at least every
`ALIVE_EVERY` seconds: the differences from the last one, so that a big queue costs only what changes. The console sends
`ConsoleRequest`s; the server answers each with an `Answer` of the same number.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, get_args

import msgspec
from msgspec import Raw, Struct

from gputui.api.deltas import SnapshotUpdate, json
from gputui.domain import errors
from gputui.domain.action import Action, typed
from gputui.domain.container import ProcessRow
from gputui.domain.decoding import decode_json
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.settings import PolicySettings, SchedulerSettings, Window
from gputui.domain.telemetry_series import Measured

PROTOCOL = 2
"""Version of these messages; a change that an older end would misunderstand raises it."""
OLDEST = 2
"""The oldest version that this end understands."""
ALIVE_EVERY = 2.0
"""Seconds after which a server sends an update even if nothing has changed."""
ASK_EVERY = 10.0
"""Seconds after which a console sends a request even if it wants nothing."""
LONGEST = 64 * 1024**2
"""Maximum number of bytes of a line."""


class Hello(Struct, frozen=True):
    """The first message of a server."""

    gputui: str
    """Version of its gputui."""
    protocol: int = 0
    """Version of its messages; 0: it is no gputui."""
    oldest: int = 1
    """The oldest version that it understands."""
    host: str = ""
    user: str = ""
    """User with whose rights it acts."""
    home: str = ""
    """Directory in which relative paths of jobs begin."""
    calls: tuple[str, ...] = ()
    """Names of the requests and of the actions that it knows."""
    scheduler: SchedulerSettings = SchedulerSettings()
    policy: PolicySettings = PolicySettings()


class Fault(Struct, frozen=True, omit_defaults=True):
    """An error in words."""

    kind: str
    """Name of its class."""
    what: str
    where: str | None = None
    hint: str | None = None

    @classmethod
    def of(cls, error: Exception) -> Fault:
        """Return the fault of an error."""
        if isinstance(error, GputuiError):
            return cls(type(error).__name__, error.what, error.where, error.hint)
        return cls("GputuiError", f"{type(error).__name__}: {error}")

    def error(self, server: str) -> GputuiError:
        """Return the error, with the server's name."""
        kind = getattr(errors, self.kind, GputuiError)
        if kind not in _PLAIN:
            kind = GputuiError
        made: GputuiError = kind(self.what, where=f"{server}: {self.where}" if self.where else server, hint=self.hint)
        return made


_PLAIN = frozenset(
    {GputuiError, InputError, errors.NotFoundError, errors.TransitionError, errors.WarrantError}
    | {errors.StoreError, errors.StoreFullError, errors.StoreAccessError, errors.StoreBusyError}
    | {errors.StoreDamagedError, errors.ClusterError, errors.ClusterRefusedError, errors.CapabilityError}
)
"""Errors that are made again on this side; others become a GputuiError with their words."""


class ChangeNote(Struct, frozen=True):
    """A change that can be undone, as long as the connection lasts."""

    number: int
    subject: str
    done: str


class ConsoleRequest(Struct, frozen=True):
    """A call by a console."""

    id: int
    call: str
    arguments: Raw = Raw(b"[]")


class Answer(Struct, frozen=True, omit_defaults=True):
    """Result of a request, or its error."""

    id: int | None
    """Number of the request; None: it could not be read."""
    result: Raw = Raw(b"null")
    error: Fault | None = None
    changes: tuple[ChangeNote, ...] = ()


class Message(Struct, frozen=True, omit_defaults=True):
    """A line of a server; one of these is set."""

    hello: Hello | None = None
    update: SnapshotUpdate | None = None
    answer: Answer | None = None


class LogPart(Struct, frozen=True, omit_defaults=True):
    """Next lines of an open log."""

    lines: tuple[bytes, ...] = ()
    is_over: bool = False
    rest: bytes = b""
    """Last part of a line that has not ended yet."""


class OpenedLog(Struct, frozen=True):
    """A log that was opened."""

    number: int
    is_stamped: bool = False


class ActionResult(Struct, frozen=True):
    """Result of an action; its changes are in the answer."""

    ids: tuple[JobId, ...] = ()
    window: Window | None = None
    jobs: tuple[Job, ...] = ()


CALLS: Mapping[str, tuple[Any, Any]] = {
    **dict.fromkeys(("act", "foresee"), (tuple[Action], ActionResult)),
    "undo": (tuple[tuple[int, ...]], tuple[str, ...]),
    "alive": (tuple[()], None),
    "job": (tuple[JobId], Job),
    "history": (tuple[datetime | None, int], tuple[Job, ...]),
    "measured": (tuple[JobId], dict[int, Measured]),
    "processes": (tuple[JobId], tuple[ProcessRow, ...]),
    "images": (tuple[()], tuple[str, ...]),
    "log_open": (tuple[JobId, int | None, int | None, bool, bool], OpenedLog),
    "log_read": (tuple[int], LogPart),
    "log_close": (tuple[int], None),
}
"""Types of the arguments and of the result of each request, by its name."""


ACTIONS = tuple(str(kind.__struct_config__.tag) for kind in get_args(Action))
"""Names of the actions that this end knows."""


def encoded(message: object) -> bytes:
    """Return the message as a line."""
    return json(message) + b"\n"


def arguments_of(request: ConsoleRequest) -> tuple[Any, ...]:
    """Return the arguments of a request; raises InputError for an unknown one, and for others than it takes."""
    if request.call not in CALLS:
        raise InputError(f"this gputui knows no request {request.call[:40]!r}", hint="update gputui on the server")
    try:
        found: tuple[Any, ...] = decode_json(request.arguments, CALLS[request.call][0])
        return tuple(typed(each) if isinstance(each, Action) else each for each in found)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InputError(f"{error}", where=request.call) from error
