"""The OpenAPI document: valid, complete, and what an owner really does, as schemathesis plays it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

import jsonschema
import pytest
import schemathesis
from hypothesis import Phase, settings
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from gputui.api.http import Handoff, Response, Stream
from gputui.api.routes import ROUTES, described, routes
from tests.api.owner import ROOT, TestOwner
from tests.lane import IS_LONG


def test_the_document_is_valid() -> None:
    document = described()
    OPENAPI_31_VALIDATOR.validate(document)
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_public_route_is_in_it() -> None:
    told = {(method.upper(), path) for path, methods in described()["paths"].items() for method in methods}
    assert told == {(route.method, route.path) for route in ROUTES if route.is_public}
    assert all(route.path.startswith(("/v1/", "/metrics", "/openapi.json")) for route in routes())


class WsgiOwner:
    """An owner as a WSGI application, asked by root."""

    def __init__(self, owner: TestOwner) -> None:
        self._owner = owner

    def __call__(self, environ: dict[str, Any], start: Callable[..., object]) -> Iterable[bytes]:
        size = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(size) if size else b""
        headers = {
            name.removeprefix("HTTP_").replace("_", "-").lower(): value
            for name, value in environ.items()
            if name.startswith("HTTP_")
        }
        answer = self._owner.answer(
            environ["REQUEST_METHOD"],
            unquote(environ["PATH_INFO"]),
            body,
            uid=ROOT,
            query=dict(parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)),
            headers=headers,
        )
        if isinstance(answer, Response):
            start(f"{answer.status} x", [("Content-Type", answer.content_type), *answer.headers])
            return [answer.body]
        if isinstance(answer, Stream):
            start("200 x", [("Content-Type", answer.content_type)])
            return [b""]
        assert isinstance(answer, Handoff)
        start("200 x", [("Content-Type", "application/octet-stream")])
        return [b""]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Any]:
    owner = TestOwner(tmp_path / "state", metrics=lambda: b"# HELP\n", backup=lambda: iter(()))
    yield schemathesis.openapi.from_wsgi("/openapi.json", WsgiOwner(owner))
    owner.close()


# an engine that does not run is a 503, and what has the right form may still not suit a queue
OTHERS = [schemathesis.checks.not_a_server_error, schemathesis.checks.positive_data_acceptance]
LARGE = ["/v1/actions", "/v1/forecast"]
"""Routes whose bodies may be any action: making examples of one takes as long as those of all others.

Those of new jobs take as long as all that remain.
"""
schemas = schemathesis.pytest.from_fixture("api")
played = schemas if IS_LONG else schemas.exclude(path=LARGE).exclude(path="/v1/jobs", method="POST")


@played.parametrize()
@settings(max_examples=10 if IS_LONG else 2, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_an_owner_does_what_the_document_says(case: Any) -> None:
    response = case.call()
    assert response.status_code != 500, response.text
    case.validate_response(response, excluded_checks=OTHERS)
