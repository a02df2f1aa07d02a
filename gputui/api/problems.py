"""Errors of gputui as problem documents (RFC 9457), for the owner, and back again, for its clients."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http import HTTPStatus

import msgspec

from gputui.api.http import Response
from gputui.api.messages import Problem
from gputui.domain import errors
from gputui.domain.errors import GputuiError, InputError, InputErrors

CONTENT_TYPE = "application/problem+json"
_STATUSES: dict[type[GputuiError], int] = {
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


def names_and_statuses() -> Iterator[tuple[str, int]]:
    """Yield the name of each error that a request may meet, and its status."""
    for kind, status in sorted(_STATUSES.items(), key=lambda pair: pair[1]):
        yield _name_of(kind), status


def problem_of(error: Exception) -> Problem:
    """Return the document of an error; one that is none of gputui is a fault, of which only the kind is told."""
    if not isinstance(error, GputuiError):
        title = "this should not have happened"
        return Problem("urn:gputui:fault", title, 500, detail=f"{type(error).__name__}; the owner's log has more")
    return Problem(
        type=f"urn:gputui:{_name(error)}",
        title=error.what,
        status=_status(error),
        detail=error.hint or "",
        instance=error.where or "",
        kind=type(error).__name__,
        exit_code=error.exit_code,
        rule=error.rule if isinstance(error, errors.AccessError) else "",
        errors=tuple(map(problem_of, error.errors)) if isinstance(error, InputErrors) else (),
    )


def _status(error: GputuiError) -> int:
    if isinstance(error, HttpError):
        return error.status
    return next(_STATUSES[kind] for kind in type(error).__mro__ if kind in _STATUSES)


def _name(error: GputuiError) -> str:
    """Return `not-found` for a NotFoundError."""
    if isinstance(error, HttpError):
        return HTTPStatus(error.status).phrase.lower().replace(" ", "-")
    return _name_of(type(error))


def _name_of(kind: type[GputuiError]) -> str:
    return "refused" if kind is GputuiError else _CAMEL.sub("-", kind.__name__.removesuffix("Error")).lower()


def answer_to(error: Exception) -> Response:
    """Return the answer that tells an error."""
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
