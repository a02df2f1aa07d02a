"""The interface as an OpenAPI 3.1 document, from the table of routes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache
from typing import Any

import msgspec

from gputui.api.messages import API, JsonObject, Problem
from gputui.api.problems import CONTENT_TYPE
from gputui.api.routes import ROUTES, AnswerKind, Parameter, Route, Scope

_REF = "#/components/schemas/{name}"
_TYPES = {
    AnswerKind.JSON: "application/json",
    AnswerKind.TEXT: "text/plain",
    AnswerKind.EVENTS: "text/event-stream",
    AnswerKind.BYTES: "application/octet-stream",
    AnswerKind.STREAM: "application/octet-stream",
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


def routes() -> Iterable[Route]:
    """Return the routes that programs may use."""
    return (route for route in ROUTES if route.is_public)


@cache
def document() -> bytes:
    """Return the document as JSON."""
    return json.dumps(described(), indent=1).encode() + b"\n"


def described() -> dict[str, Any]:
    """Return the document."""
    types = list(dict.fromkeys(kind for route in routes() for kind in (route.body, route.result) if _is_own(kind)))
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


def _is_own(kind: Any) -> bool:
    """Return whether a type has a schema; what `--json` prints is described in words by docs/cli.md."""
    return kind is not None and kind is not JsonObject and "typing.Any" not in str(kind)


def _operation(route: Route, schema_of: Mapping[Any, Any]) -> dict[str, Any]:
    is_stream = route.kind is AnswerKind.STREAM
    answer: dict[str, Any] = {"description": "The stream begins." if is_stream else "As asked."}
    if route.kind is AnswerKind.JSON:
        answer["content"] = {"application/json": {"schema": _schema(route.result, schema_of)}}
    elif not is_stream:
        answer["content"] = {_TYPE_OF.get(route.handler, _TYPES[route.kind]): {}}
    status = "101" if is_stream else str(route.status)
    others = {"200": answer} if status == "201" else {}
    refusal = {"description": "Refused.", "content": {CONTENT_TYPE: {"schema": schema_of[Problem]}}}
    operation: dict[str, Any] = {
        "operationId": route.handler,
        "summary": route.text,
        "description": f"For {_ROLES[route.role]}{_OWN if _is_for_own(route) else ''}.",
        "parameters": [*_path_parameters(route), *map(_parameter, route.query), *_header_parameters(route)],
        "responses": {status: answer, **others, "default": refusal},
    }
    if route.body is not None:
        body = {"schema": schema_of[route.body]}
        operation["requestBody"] = {"required": True, "content": {"application/json": body}}
    return operation


_ROLES = ("everybody who may connect", "users and operators", "operators")
_OWN = "; about jobs of others for operators alone"


def _is_for_own(route: Route) -> bool:
    return route.scope is Scope.JOB and bool(route.role)


def _schema(kind: Any, schema_of: Mapping[Any, Any]) -> Any:
    if kind in schema_of:
        return schema_of[kind]
    return {"type": "object"} if kind is JsonObject else {"type": "array"}


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    names = re.findall(r"\{(\w+)\}", route.path)
    return [
        {"name": name, "in": "path", "required": True, "schema": _ID if name == "id" else _ATTEMPT} for name in names
    ]


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schemas: Mapping[Any, dict[str, Any]] = {
        bool: {"type": "boolean"},
        int: {"type": "integer", "minimum": 0},
        str: {"type": "string"},
        datetime: {"type": "string", "format": "date-time"},
    }
    schema = schemas[parameter.type]
    if parameter.default is not None:
        schema = {**schema, "default": parameter.default}
    return {"name": parameter.name, "in": "query", "description": parameter.text, "schema": schema}


def _header_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "header", "description": _HEADERS[name][0], "schema": _HEADERS[name][1]}
        for name in _HEADERS_OF.get(route.handler, ())
    ]
