"""Writes the generated tables of docs/api.md: the routes, and the errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gputui.api.http import STATUSES, name_of
from gputui.api.routes import AnswerKind, Route, Scope, routes
from gputui.domain.access import Role

END = "<!-- end -->"
_ANSWERS = {
    AnswerKind.JSON: "",
    AnswerKind.TEXT: "Text.",
    AnswerKind.EVENTS: "Server-sent events.",
    AnswerKind.BYTES: "Bytes.",
    AnswerKind.STREAM: "By `Upgrade: gputui-stream/1`.",
}


def updated(text: str) -> str:
    """Return the document with its generated tables up to date."""
    for begin, rows in (("<!-- routes -->", route_rows()), ("<!-- errors -->", error_rows())):
        before, _, rest = text.partition(begin)
        text = "".join((before, begin, "\n\n", "\n".join(rows), "\n\n", END, rest.partition(END)[2]))
    return text


def route_rows() -> Iterator[str]:
    """Yield the rows of the table of routes."""
    yield "| route | for | what |"
    yield "|---|---|---|"
    for route in routes():
        told = " ".join(filter(None, (route.text, _ANSWERS[route.kind], _parameters(route))))
        yield f"| `{route.method} {route.path}` | {_who(route)} | {told} |"


def _who(route: Route) -> str:
    name = {Role.VIEWER: "all", Role.USER: "users", Role.OPERATOR: "operators"}[route.role]
    return f"{name}, of their own jobs" if route.scope is Scope.JOB and route.role is Role.USER else name


def _parameters(route: Route) -> str:
    told = (f"`{each.name}`: {each.text[0].lower()}{each.text[1:].rstrip('.')}" for each in route.query)
    return "; ".join(told) + "." if route.query else ""


_ERRORS = {
    "access": "a rule forbids it to this account",
    "not-found": "there is no such job, attempt or GPU",
    "refused": "the state of a job or of the queue does not allow it",
    "input": "a parameter or a field of the body is wrong",
    "store": "the queue cannot be read or written",
    "capability": "this owner has no such function",
    "runtime-fault": "the engine could not do it",
    "store-busy": "another process keeps the lock of the queue",
    "not-leader": "this process owns the queue no longer",
    "runtime-unavailable": "the engine does not answer",
    "store-full": "the disk is full; nothing was changed",
}
_NOT_TOLD = frozenset({"parse-locally", "cluster", "cluster-unavailable"})
"""Errors that only gputui's own clients meet, and those of clusters, which have no owner."""


def error_rows() -> Iterator[str]:
    """Yield the rows of the table of errors."""
    yield "| status | `type` | means |"
    yield "|---|---|---|"
    for kind, status in sorted(STATUSES.items(), key=lambda pair: pair[1]):
        if (name := name_of(kind)) not in _NOT_TOLD:
            yield f"| {status} | `urn:gputui:{name}` | {_ERRORS[name]} |"


if __name__ == "__main__":
    path = Path(__file__).parent.parent / "docs" / "api.md"
    path.write_text(updated(path.read_text(encoding="utf-8")), encoding="utf-8")
