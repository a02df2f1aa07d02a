"""Requests and answers between the server of the socket and the handlers behind it; errors as problem documents."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Callable, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any, Protocol, TypeAlias

import msgspec
from msgspec import Raw, Struct

from gputui.domain import errors
from gputui.domain.action import Action
from gputui.domain.as_json import json_text
from gputui.domain.cluster import GPUTUI
from gputui.domain.errors import GputuiError, InputError, InputErrors
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.settings import PolicySettings, SchedulerSettings, Window

API = "1.0"
"""Version of the routes and their bodies: the major one is in the path."""
OLDEST = "1.0"
"""The oldest version that an owner serves, and a client asks."""
OWN = "application/vnd.gputui+json"
"""Type that our own clients accept: jobs, entries and readings as they are stored, in place of the keys of `--json`."""
JOBS, RECORDS = "application/vnd.gputui.jobs+json", "application/vnd.gputui.records+json"
"""Types by which they ask for the whole history: lines of lists of jobs or accounting records; the last is empty."""


class OwnerView(Struct, frozen=True, omit_defaults=True):
    """Process that owns the queue."""

    pid: int
    kind: str
    """console or serve."""
    user: str
    since: datetime | None = None
    silent_for: float = 0.0
    """Seconds without a tick; 0: it ticks."""


class CallerView(Struct, frozen=True, omit_defaults=True):
    """The caller, as the owner knows him."""

    uid: int
    user: str
    role: str
    """viewer, user or operator."""
    groups: tuple[int, ...] = ()
    job: JobId | None = None
    """Job in which the caller runs."""


class AgentLimits(Struct, frozen=True):
    """Limits for programs that ask for a user by `gputui mcp`."""

    priority: int = 50
    """Highest priority."""
    gpus: int | None = None
    """Most GPUs that the jobs of one user may take at once which such programs submitted; None: no limit."""


class AboutView(Struct, frozen=True, omit_defaults=True):
    """The queue, its owner, and who asks."""

    gputui: str
    api: str
    oldest: str
    host: str
    store: str
    owner: OwnerView
    caller: CallerView
    home: str = ""
    """Home directory of the caller, in which paths of his jobs begin that name no other; empty: unknown."""
    lacking: Mapping[str, str] = {}
    """Capabilities that the queue lacks, each with its sentence."""
    engine: str = GPUTUI
    """Name of what schedules, as people write it."""
    lacking_options: Mapping[str, str] = {}
    """Options of jobs that the engine lacks, each with its sentence."""
    scheduler: SchedulerSettings = SchedulerSettings()
    policy: PolicySettings = PolicySettings()
    agents: AgentLimits = AgentLimits()


class StreamHello(Struct, frozen=True):
    """The first message of a stream of events."""

    stream: str
    """Identifier of the stream, for `PUT /v1/focus`."""
    about: AboutView


class NewJobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs to submit: all or none."""

    jobs: tuple[Submission, ...]


class NewIds(Struct, frozen=True, omit_defaults=True):
    """Answer to new jobs; 200 in place of 201 if the key was known already."""

    ids: tuple[JobId, ...]
    expected: tuple[datetime | None, ...] = ()
    """Expected start of each job, with `dry_run`."""


class ChangeNumber(Struct, frozen=True):
    """A change that can be undone, by its number, as long as this owner lives."""

    number: int
    subject: str
    done: str
    """Sentence about the restored state."""


class Acted(Struct, frozen=True, omit_defaults=True):
    """Answer to an action."""

    ids: tuple[JobId, ...] = ()
    """Jobs that it changed, in the order in which it names them."""
    changes: tuple[ChangeNumber, ...] = ()
    jobs: tuple[Raw, ...] = ()
    """Jobs as they would be, with `dry_run`."""
    window: Window | None = None
    """The reservation that it made."""
    sentence: str = ""


class UndoRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Changes to undo, by their numbers."""

    numbers: tuple[int, ...]


class Undone(Struct, frozen=True):
    """Reason for each change why it was not undone; empty if it was."""

    why: tuple[str, ...]


class Forecast(Struct, frozen=True, forbid_unknown_fields=True):
    """Actions whose effect on starts is asked for."""

    actions: tuple[Action, ...]


class StartMove(Struct, frozen=True):
    """Expected start of a job before and after a change; None: not known, or never."""

    id: JobId
    before: datetime | None
    after: datetime | None
    is_stopped: bool = False
    """True if the job runs, is stopped and has to start again."""


class PlaceMove(Struct, frozen=True):
    """Place of a waiting job in the queue, from 1, before and after a change."""

    id: JobId
    before: int
    after: int


class Forecasted(Struct, frozen=True, omit_defaults=True):
    """Answer to a forecast."""

    starts: tuple[StartMove, ...] = ()
    """Jobs that would start earlier or later, in the order after the change."""
    places: tuple[PlaceMove, ...] = ()
    is_cut: bool = False
    """True if the time was not enough for all jobs."""


class Focus(Struct, frozen=True, forbid_unknown_fields=True):
    """GPU whose PCIe and NVLink throughput a subscriber of events wants to see."""

    stream: str
    """Identifier from the `hello` of its events."""
    gpu: str | None = None


class Problem(Struct, frozen=True, omit_defaults=True):
    """An error, as RFC 9457 has it."""

    type: str
    """`urn:gputui:` and the error's name, such as `urn:gputui:not-found`."""
    title: str
    """The error in one sentence."""
    status: int
    detail: str = ""
    """Advice on how to mend it."""
    instance: str = ""
    """Place of the error: an option, a file, a field."""
    kind: str = ""
    """Class of the error in gputui, for its own clients."""
    exit_code: int = 1
    rule: str = ""
    """Name of the rule that refuses it, with status 403."""
    errors: tuple[Problem, ...] = ()
    """All errors, if there are several."""


JsonObject = Mapping[str, Any]


class Peer(Struct, frozen=True):
    """Process at the other end of a connection, as the kernel knows it since it connected."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    pid: int
    cgroup: str = ""
    """Text of its /proc/PID/cgroup, by which the job or container that it runs in is known.

    Empty: unknown, since it has ended, or /proc hides it; it may then only look.
    """
    is_mapped: bool = False
    """True in another user namespace than ours: its uid may be one of those that /etc/subuid lends to a user."""


def credentials(connection: socket.socket) -> tuple[int, int, int]:
    """Return pid, uid and gid of the process at the other end; pid 0: our namespace does not contain it."""
    pid, uid, gid = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid, gid


class Request(Struct, frozen=True):
    method: str
    path: str
    """Path without the query, decoded."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Values by name in lower case."""
    body: bytes
    peer: Peer


class Response(Struct, frozen=True):
    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


class Outlet(Protocol):
    """Takes the parts of an answer without an end. Safe to use from any thread; never blocks."""

    @property
    def waiting(self) -> int:
        """Bytes that the client has not taken yet: one that sends much waits until there are few."""
        ...

    def send(self, data: bytes) -> bool:
        """Send data; return False once the client is gone, or too slow: then nothing more is sent."""
        ...

    def close(self) -> None:
        """End the answer once all of it is sent."""

    def cut_off(self) -> None:
        """End the connection before the answer's end, so that the client does not take it for whole."""


class Stream(Struct, frozen=True):
    """An answer without an end."""

    open: Callable[[Outlet], Callable[[], object]]
    """Begins to send; what it returns is called when the client is gone."""
    content_type: str = "text/event-stream"


class Handoff(Struct, frozen=True):
    """The connection itself is given away, with the bytes that the client has sent behind the request."""

    take: Callable[[socket.socket, bytes], object]
    """Takes a blocking duplicate of the socket, in a thread of the pool; the server then forgets the connection."""


Answer: TypeAlias = Response | Stream | Handoff
Handle: TypeAlias = Callable[[Request], Answer]
"""Answers a request, in a thread of the server's pool. It turns errors into answers itself; others become a 500."""


def encoded(value: Any, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """Return a value as an answer: dicts and lists of them as `--json` prints them, all else in one line."""
    if isinstance(value, dict) or (isinstance(value, list) and (not value or isinstance(value[0], dict))):
        return Response(status, (json_text(value) + "\n").encode(), headers=headers)
    return Response(status, own_json(value) + b"\n", headers=headers)


def own_json(value: Any) -> bytes:
    """Return a value of our own types as JSON in one line."""
    return _ENCODER.encode(value)


def _plain(value: Any) -> dict[Any, Any] | list[Any]:
    """Return a read-only mapping as a dict, and what yields values as a list; raises TypeError for others."""
    return dict(value) if isinstance(value, Mapping) else list(value)


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)


CONTENT_TYPE = "application/problem+json"
STATUSES: dict[type[GputuiError], int] = {
    InputError: 422,
    errors.NotFoundError: 404,
    errors.AccessError: 403,
    errors.ParseLocallyError: 421,
    errors.StoreFullError: 507,
    errors.StoreBusyError: 503,
    errors.StoreError: 500,
    errors.NotLeaderError: 503,
    errors.RuntimeUnavailableError: 503,
    errors.RuntimeFault: 502,
    errors.CapabilityError: 501,
    errors.ClusterUnavailableError: 503,
    errors.ClusterError: 502,
    GputuiError: 409,
}
"""Statuses by class; that of the nearest base counts. Others than these say that something does not suit a state."""
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


class HttpError(GputuiError):
    """A request that is refused for its form, before anybody looks at what it wants."""

    def __init__(
        self,
        status: int,
        what: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.status = status
        self.headers = headers


def problem_of(error: Exception) -> Problem:
    """Return the document of an error; one that is none of gputui is a fault, of which only the kind is told."""
    if not isinstance(error, GputuiError):
        title = "this should not have happened"
        return Problem("urn:gputui:fault", title, 500, detail=f"{type(error).__name__}; the owner's log has more")
    if isinstance(error, HttpError):
        status, name = error.status, HTTPStatus(error.status).phrase.lower().replace(" ", "-")
    else:  # `not-found` for a NotFoundError
        status = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
        name = name_of(type(error))
    return Problem(
        type=f"urn:gputui:{name}",
        title=error.what,
        status=status,
        detail=error.hint or "",
        instance=error.where or "",
        kind=type(error).__name__,
        exit_code=error.exit_code,
        rule=error.rule if isinstance(error, errors.AccessError) else "",
        errors=tuple(map(problem_of, error.errors)) if isinstance(error, InputErrors) else (),
    )


def name_of(kind: type[GputuiError]) -> str:
    return "refused" if kind is GputuiError else _CAMEL.sub("-", kind.__name__.removesuffix("Error")).lower()


def answer_to(error: Exception) -> Response:
    problem = problem_of(error)
    headers = error.headers if isinstance(error, HttpError) else ()
    return Response(problem.status, msgspec.json.encode(problem) + b"\n", CONTENT_TYPE, headers)


def error_of(problem: Problem) -> GputuiError:
    """Return the error that a document tells; one of an unknown kind is a GputuiError with these words."""
    what, where, hint = problem.title, problem.instance or None, problem.detail or None
    parts = tuple(each for each in map(error_of, problem.errors) if isinstance(each, InputError))
    if parts:
        return InputErrors(parts)
    kind = getattr(errors, problem.kind, GputuiError)
    if kind is errors.AccessError:
        return errors.AccessError(what, rule=problem.rule, where=where, hint=hint)
    is_plain = isinstance(kind, type) and issubclass(kind, GputuiError) and kind.__init__ is GputuiError.__init__
    made: GputuiError = (kind if is_plain else GputuiError)(what, where=where, hint=hint)
    made.exit_code = problem.exit_code
    return made
