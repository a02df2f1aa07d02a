"""Answers requests: finds the route and the caller, checks his role and job, decodes, and encodes."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import datetime
from functools import cache
from typing import Any

import msgspec

from gputui.api.handlers import Call, Handlers, OwnerServices
from gputui.api.http import Answer, Handoff, HttpError, Request, Response, Stream, answer_to, encoded
from gputui.api.messages import API, Forecast
from gputui.api.routes import ROUTES, Route, Scope
from gputui.domain.access import Caller, Role, others_job
from gputui.domain.action import Action, Edit, typed
from gputui.domain.decoding import convert, decode_json
from gputui.domain.errors import AccessError, GputuiError, InputError
from gputui.domain.job import Job
from gputui.domain.keys import stored_key

log = logging.getLogger(__name__)

_BOOLEANS = {"": True, "1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_GPUTUI_API = re.compile(r"(\d{1,3})\.\d{1,3}", re.ASCII)
_PART = re.compile(r"\{(\w+)\}")
_CHANGING = frozenset({"POST", "PATCH", "PUT"})


@cache
def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(_PART.sub(r"(?P<\1>[^/]+)", path.replace(".", r"\.")))


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


class Router:
    """Answers requests, in any thread; errors are answers too, and refusals stand in the audit log."""

    def __init__(self, services: OwnerServices, handlers: Handlers) -> None:
        self._services = services
        self._handlers = handlers

    def __call__(self, request: Request) -> Answer:
        caller: Caller | None = None
        try:
            route, parts = find_route(request.method, request.path)
            _check_version(request.headers)
            caller = self._services.caller_of(request.peer, request.headers)
            return self._answer(request, route, parts, caller)
        except AccessError as error:
            if caller is not None:
                asked = f"{request.method} {request.path}"[:200]
                self._services.refused(caller, error.rule, f"{asked}: {error.what}")
            return answer_to(error)
        except GputuiError as error:
            return answer_to(error)
        except msgspec.MsgspecError as error:
            return answer_to(HttpError(400, str(error)[:500]))
        except Exception as error:
            log.exception("cannot answer %s %s", request.method, request.path[:200])
            return answer_to(error)

    def _answer(self, request: Request, route: Route, parts: Mapping[str, str], caller: Caller) -> Answer:
        if caller.role < route.role:
            what = f"{caller.user} is {_NAMES[caller.role]} of this queue: this is for {_NAMES_OF_MANY[route.role]}"
            raise AccessError(what, rule=f"role-{route.role.name.lower()}", hint=_HINTS[route.role])
        caller, body = _keyed(request, caller), _body(route, request)
        known = {each.name: each for each in route.query}
        if unknown := sorted(request.query.keys() - known.keys()):
            hint = f"it takes {', '.join(known)}" if known else "it takes none"
            raise InputError("there is no such parameter", where=unknown[0][:100], hint=hint)
        query = {
            name: _READERS[each.type](name, request.query[name]) if name in request.query else each.default
            for name, each in known.items()
        }
        with closing(self._services.backend(caller)) as backend:
            call = Call(request, route, caller, backend, parts, query, body)
            if route.scope is Scope.JOB:
                call = msgspec.structs.replace(call, job=self._job(call))
            result = getattr(self._handlers, route.handler)(call)
            return result if isinstance(result, Response | Stream | Handoff) else encoded(result, route.status)

    def _job(self, call: Call) -> Job:
        """Return the job that a route is about; raises AccessError if it is one of another user's, and so not open."""
        job = call.backend.job(job_id(call.parts["id"]))
        if call.route.role is not Role.VIEWER:
            is_open = call.route.handler == "log" and self._services.settings.access.show_logs
            if not (is_open or call.caller.may_act_on(job)):
                raise others_job(job, _ON_A_JOB[call.route.handler])
        return job


_NAMES = {Role.VIEWER: "a viewer", Role.USER: "a user", Role.OPERATOR: "an operator"}
_NAMES_OF_MANY = {Role.VIEWER: "viewers", Role.USER: "users and operators", Role.OPERATOR: "operators"}
_HINTS = {
    Role.VIEWER: "",
    Role.USER: "an operator lists users in access.users",
    Role.OPERATOR: "root lists operators in policy.operators",
}


_ON_A_JOB = {
    "edit": "edit it",
    "processes": "see its processes",
    "log": "read its output",
    "attach": "attach to it",
    "execute": "enter it",
}
"""Words for what a route does to a job, by its handler."""


def job_id(text: str) -> int:
    """Return the id of a job in a path; raises InputError."""
    if not _NUMBER.fullmatch(text):
        raise InputError("it is no id of a job", where="id", hint="a number, as `gputui queue` lists it")
    return int(text)


def _check_version(headers: Mapping[str, str]) -> None:
    """Raise HttpError for a client of another major version."""
    if (given := headers.get("gputui-api")) is None:
        return
    match = _GPUTUI_API.fullmatch(given.strip())
    if match is None:
        raise HttpError(400, "it is no version", where="Gputui-Api", hint=f"such as {API}")
    if match[1] != API.partition(".")[0]:
        what = f"the client speaks version {given.strip()} of the interface, the owner of the queue {API}"
        raise HttpError(400, what, where="Gputui-Api", hint="update the older one")


def _keyed(request: Request, caller: Caller) -> Caller:
    """Return the caller with the key of his request, as it is stored."""
    key = request.headers.get("idempotency-key")
    if key is None or request.method not in _CHANGING:
        return caller
    stored = stored_key(key, request.method, request.path, request.query, request.body)
    return msgspec.structs.replace(caller, key=stored)


def _body(route: Route, request: Request) -> Any:
    """Return the decoded body; raises HttpError for what is no JSON of that form."""
    if route.body is None:
        if request.body and route.method == "GET":
            raise HttpError(400, "this takes no body")
        return None
    try:
        found = decode_json(request.body, route.body)
        if isinstance(found, Edit):
            return found.typed()
        if isinstance(found, Forecast):
            return Forecast(tuple(map(typed, found.actions)))
        return typed(found) if isinstance(found, Action) else found
    except msgspec.ValidationError as error:
        raise HttpError(422, str(error)[:500], where="body") from error
    except msgspec.DecodeError as error:
        raise HttpError(400, f"the body is no JSON: {str(error)[:200]}", where="body") from error


def _flag(name: str, text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise InputError("it is neither true nor false", where=name)
    return _BOOLEANS[text.lower()]


def _number(name: str, text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise InputError("it is no whole number from 0", where=name)
    return int(text)


def _moment(name: str, text: str) -> datetime:
    try:
        at: datetime = convert(text, datetime)
    except msgspec.ValidationError:
        at = datetime.min  # noqa: DTZ901 - without a zone, so refused
    if at.tzinfo is None:
        hint = "such as 2026-12-01T09:00:00Z; in a query + is written %2B"
        raise InputError("it is no time with a zone", where=name, hint=hint)
    return at


_READERS: Mapping[Any, Callable[[str, str], Any]] = {
    bool: _flag,
    int: _number,
    datetime: _moment,
    str: lambda name, text: text,
}
