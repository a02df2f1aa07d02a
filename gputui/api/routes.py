"""The one table of routes. Checks of roles, the OpenAPI document, tests and docs come from it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from functools import cache, partial
from typing import Any

import msgspec
from msgspec import Struct

from gputui.api import http
from gputui.api.http import API, CONTENT_TYPE, HttpError, JsonObject, Problem
from gputui.domain.access import Role
from gputui.domain.action import Action, Edit
from gputui.domain.container import ExecRequest
from gputui.ports.backend import Attach, CommandLine

UPGRADE = "gputui-stream/1"
"""Protocol of the routes that are streams: frames in both directions, see `domain/frames.py`."""


class Scope(StrEnum):
    """Extent of a route: the queue or a job."""

    QUEUE = "queue"
    """The whole queue: the role alone decides."""
    JOB = "job"
    """A single job: open to its submitter and operators, and to all if the least role is viewer."""


class AnswerKind(StrEnum):
    """Form of an answer."""

    JSON = "json"
    TEXT = "text"
    EVENTS = "events"
    BYTES = "bytes"
    """Output of a job, or a tar archive."""
    STREAM = "stream"
    """Frames in both directions, after an upgrade of the connection to `gputui-stream/1`."""


class Parameter(Struct, frozen=True):
    """A parameter of the query."""

    name: str
    type: Any
    text: str
    default: Any = None


class Route(Struct, frozen=True):
    """A request that may be made, and its answer."""

    method: str
    path: str
    """Path with `{name}` for a part; `{id}` is the number of a job."""
    handler: str
    """Name of its handler, and of its operation in OpenAPI."""
    role: Role
    """Least role."""
    text: str
    """Sentence that says what it does."""
    scope: Scope = Scope.QUEUE
    kind: AnswerKind = AnswerKind.JSON
    body: Any = None
    """Type of the body; None: there is none."""
    result: Any = http.JsonObject
    status: int = 200
    query: tuple[Parameter, ...] = ()
    is_public: bool = True
    """False for our own clients: not in OpenAPI, and free to change."""


_DRY_RUN = Parameter("dry_run", bool, "Tell what would happen, and change nothing.", False)
_AFTER = Parameter("after", int, "Only jobs behind this one, for the next page.")
_LIMIT = Parameter("limit", int, "At most so many.", 1000)
_SINCE = Parameter("since", datetime, "Only what ended, or was done, since this time, ISO 8601 with a zone.")

VIEWER, USER, OPERATOR = Role.VIEWER, Role.USER, Role.OPERATOR
_get, _post = partial(Route, "GET"), partial(Route, "POST")
ROUTES: tuple[Route, ...] = (
    _get("/v1/about", "about", VIEWER, "The queue, its owner, and who asks.", result=http.AboutView),
    _get(
        "/v1/jobs",
        "jobs",
        VIEWER,
        "Live jobs in the order of the queue, then those that ended lately.",
        result=list[dict[str, Any]],
        query=(
            Parameter("state", str, "Only jobs in these states, with commas between."),
            Parameter("tenant", str, "Only jobs of this tenant."),
            Parameter(
                "filter", str, "Only jobs that suit this filter, as `gputui queue --filter` takes it; no patterns."
            ),
            Parameter("all", bool, "With ended jobs.", False),
            _AFTER,
            _LIMIT,
        ),
    ),
    _post(
        "/v1/jobs",
        "submit",
        USER,
        "Submit jobs, all or none. With the header `Idempotency-Key` a repeated request is one submission. "
        "An upgrade to `gputui-stream/1` attaches to the job, of which there is one, from its start.",
        body=http.NewJobs,
        result=http.NewIds,
        status=201,
        query=(
            _DRY_RUN,
            Parameter("anyway", bool, "Also jobs for GPUs that this server does not have.", False),
            Parameter("detach_keys", str, "Keys that detach, as of docker's --detach-keys, with an upgrade.", ""),
        ),
    ),
    _get("/v1/jobs/{id}", "job", VIEWER, "A job, waiting, running or ended.", Scope.JOB),
    Route(
        "PATCH",
        "/v1/jobs/{id}",
        "edit",
        USER,
        "Edit it. With the header `If-Match` and the `ETag` of the job only as it was then.",
        Scope.JOB,
        body=Edit,
        result=http.Acted,
        query=(_DRY_RUN,),
    ),
    _get("/v1/jobs/{id}/explain", "explain", VIEWER, "The reason why it waits, and its expected start.", Scope.JOB),
    _get("/v1/jobs/{id}/telemetry", "telemetry", VIEWER, "Use of GPUs by its attempts.", Scope.JOB),
    _get("/v1/jobs/{id}/processes", "processes", USER, "Its present processes.", Scope.JOB, result=list[Any]),
    _get(
        "/v1/jobs/{id}/attempts/{attempt}/log",
        "log",
        USER,
        "Output of an attempt, by its number or `latest`.",
        Scope.JOB,
        AnswerKind.BYTES,
        query=(
            Parameter("tail", int, "Only the last so many lines."),
            Parameter("stamped", bool, "Begin lines with their times, where they are known.", False),
            Parameter("follow", bool, "Go on to the end of a running attempt.", False),
            Parameter("apart", bool, "With an upgrade, standard error of an ended attempt apart.", False),
        ),
    ),
    _post("/v1/jobs/{id}/attach", "attach", USER, "Attach to its streams.", Scope.JOB, AnswerKind.STREAM, Attach),
    _post("/v1/jobs/{id}/exec", "execute", USER, "Run a command in it.", Scope.JOB, AnswerKind.STREAM, ExecRequest),
    _post(
        "/v1/actions",
        "act",
        USER,
        "Carry out an action, for all of its jobs or none.",
        body=Action,
        result=http.Acted,
        query=(_DRY_RUN,),
    ),
    _post("/v1/undo", "undo", USER, "Undo changes.", body=http.UndoRequest, result=http.Undone),
    _post(
        "/v1/forecast", "forecast", USER, "Starts that actions would move.", body=http.Forecast, result=http.Forecasted
    ),
    _get("/v1/gpus", "gpus", VIEWER, "The GPUs, and the jobs on them.", result=list[dict[str, Any]]),
    _get("/v1/controls", "controls", VIEWER, "Drains, the pause, tenants, reservations."),
    _get("/v1/recurring", "recurring", VIEWER, "Recurring jobs.", result=list[dict[str, Any]]),
    _get(
        "/v1/history",
        "history",
        VIEWER,
        "Ended jobs that are no longer in the queue, the latest month first; `Next` tells the next page.",
        result=list[dict[str, Any]],
        query=(_SINCE, Parameter("cursor", str, "Place from the header `Next`."), _LIMIT),
    ),
    _get(
        "/v1/audit",
        "audit",
        USER,
        "The audit log, the latest entry last; a user reads what he did himself, and what is about his own jobs.",
        result=list[dict[str, Any]],
        query=(Parameter("job", int, "Only what is about this job."), _SINCE, _LIMIT),
    ),
    _get("/v1/images", "images", USER, "Images that the engine has and the caller may run.", result=list[str]),
    _get(
        "/v1/events",
        "events",
        VIEWER,
        "Changes of the queue and the GPUs as they happen. With the header `Last-Event-ID` those since then.",
        kind=AnswerKind.EVENTS,
        query=(Parameter("kinds", str, "Kinds of events: job, gpu, notice, with commas between."),),
    ),
    Route("PUT", "/v1/focus", "focus", VIEWER, "Choose the GPU at which a subscriber looks.", body=http.Focus),
    _post(
        "/v1/backup",
        "backup",
        OPERATOR,
        "A backup of one moment, without logs, as a compressed tar archive.",
        kind=AnswerKind.BYTES,
    ),
    _get("/metrics", "metrics", VIEWER, "Metrics for Prometheus.", kind=AnswerKind.TEXT),
    _get("/openapi.json", "openapi", VIEWER, "This interface as OpenAPI 3.1."),
    _post(
        "/v1/cli",
        "command",
        VIEWER,
        "Run a command of our own thin client; it has the rights of its caller.",
        kind=AnswerKind.BYTES,  # `CommandResult.encoded`
        body=CommandLine,
        is_public=False,
    ),
    _get("/v1/snapshot", "snapshot", VIEWER, "The whole picture, for our own consoles.", is_public=False),
)


_REF = "#/components/schemas/{name}"
_TYPES = {
    AnswerKind.TEXT: "text/plain",
    AnswerKind.EVENTS: "text/event-stream",
    AnswerKind.BYTES: "application/octet-stream",
}
_TYPE_OF = {"backup": "application/gzip"}
"""Types of answers by the names of handlers, where others than `_TYPES`."""
_ID = {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}
_ATTEMPT = {"type": "string", "pattern": "^(latest|[0-9]{1,6})$"}
_HEADERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Idempotency-Key": (
        "A repeated request with the same key is carried out once.",
        {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
    ),
    "If-Match": ("`ETag` of the job as its editor has seen it.", {"type": "string"}),
    "Last-Event-ID": ("Last event that was received.", {"type": "string"}),
    "Range": ("Part of the output, as `bytes=0-1023`.", {"type": "string"}),
}
_HEADERS_OF: Mapping[str, tuple[str, ...]] = {
    "submit": ("Idempotency-Key",),
    "act": ("Idempotency-Key",),
    "edit": ("Idempotency-Key", "If-Match"),
    "events": ("Last-Event-ID",),
    "log": ("Range",),
}
_INTRODUCTION = (
    "HTTP/1.1 and JSON on a Unix socket; the kernel tells the owner of the queue who asks. Times are ISO 8601 in UTC, "
    "durations seconds, sizes bytes. Unknown fields of requests are refused; answers may get new ones. A viewer sees "
    "the queue, a user submits and acts on his own jobs, an operator may do everything."
)


@cache
def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path.replace(".", r"\.")))


def find_route(method: str, path: str) -> tuple[Route, Mapping[str, str]]:
    """Return the route of a request, and the parts of its path; raises HttpError 404, or 405 for another method."""
    methods = []
    for route in ROUTES:
        if match := _pattern(route.path).fullmatch(path):
            if route.method == method:
                return route, match.groupdict()
            methods.append(route.method)
    if methods:
        allow = (("Allow", ", ".join(methods)),)
        raise HttpError(405, f"{path} takes no {method}", hint=f"it takes {' and '.join(methods)}", headers=allow)
    raise HttpError(404, "there is nothing at this path", where=path[:200], hint="GET /openapi.json lists all paths")


def routes() -> Iterable[Route]:
    """Return the routes that programs may use."""
    return (route for route in ROUTES if route.is_public)


@cache
def document() -> bytes:
    return json.dumps(described(), indent=1).encode() + b"\n"


def described() -> dict[str, Any]:
    types = list(dict.fromkeys(kind for route in routes() for kind in (route.body, route.result)))
    # what `--json` prints has no schema: docs/cli.md describes it in words
    types = [kind for kind in types if kind not in {None, JsonObject} and "typing.Any" not in str(kind)]
    schemas, components = msgspec.json.schema_components([Problem, *types], ref_template=_REF)
    schema_of = dict(zip([Problem, *types], schemas, strict=True))
    paths: dict[str, Any] = {}
    for route in routes():
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
    info = {
        "title": "gputui",
        "version": API,
        "description": _INTRODUCTION,
        "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    }
    # the server is whoever listens on the socket; clients that need a name call it localhost
    return {
        "openapi": "3.1.0",
        "info": info,
        "servers": [{"url": "http://localhost"}],
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(route: Route, schema_of: Mapping[Any, Any]) -> dict[str, Any]:
    is_stream = route.kind is AnswerKind.STREAM
    answer: dict[str, Any] = {"description": "The stream begins." if is_stream else "As asked."}
    if route.kind is AnswerKind.JSON:
        otherwise = {"type": "object"} if route.result is JsonObject else {"type": "array"}
        answer["content"] = {"application/json": {"schema": schema_of.get(route.result, otherwise)}}
    elif not is_stream:
        answer["content"] = {_TYPE_OF.get(route.handler, _TYPES[route.kind]): {}}
    status = "101" if is_stream else str(route.status)
    others = {"200": answer} if status == "201" else {}
    refusal = {"description": "Refused.", "content": {CONTENT_TYPE: {"schema": schema_of[Problem]}}}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": _ID if name == "id" else _ATTEMPT}
        for name in re.findall(r"\{(\w+)\}", route.path)
    ]
    for each in route.query:
        default = {} if each.default is None else {"default": each.default}
        schema: Mapping[str, Any] = {**_SCHEMAS[each.type], **default}
        parameters.append({"name": each.name, "in": "query", "description": each.text, "schema": schema})
    for name in _HEADERS_OF.get(route.handler, ()):
        text, schema = _HEADERS[name]
        parameters.append({"name": name, "in": "header", "description": text, "schema": schema})
    operation: dict[str, Any] = {
        "operationId": route.handler,
        "summary": route.text,
        "description": f"For {WHO_MAY[route.role]}{_OWN if route.scope is Scope.JOB and route.role else ''}.",
        "parameters": parameters,
        "responses": {status: answer, **others, "default": refusal},
    }
    if route.body is not None:
        body = {"schema": schema_of[route.body]}
        operation["requestBody"] = {"required": True, "content": {"application/json": body}}
    return operation


_SCHEMAS: Mapping[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer", "minimum": 0},
    str: {"type": "string"},
    datetime: {"type": "string", "format": "date-time"},
}
WHO_MAY = ("everybody who may connect", "users and operators", "operators")
"""Those who may, by the least role."""
_OWN = "; about jobs of others for operators alone"
