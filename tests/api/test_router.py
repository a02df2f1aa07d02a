"""Routes, versions, parameters, bodies and errors, before any handler is asked."""

from __future__ import annotations

import inspect

import pytest

from gputui.api.handlers import Handlers
from gputui.api.http import AboutView, Problem
from gputui.api.routes import ROUTES
from tests.api.owner import ALICE, CAROL, TestOwner
from tests.cases import cases


def test_each_route_has_a_handler_and_each_handler_a_route() -> None:
    methods = {name for name, _ in inspect.getmembers(Handlers, inspect.isfunction) if not name.startswith("_")}
    assert methods == {route.handler for route in ROUTES}
    assert len({route.handler for route in ROUTES}) == len(ROUTES)


def test_about_tells_who_asks_and_methods_are_those_of_the_path(owner: TestOwner) -> None:
    about = owner.ask("GET", "/v1/about", uid=ALICE).read(AboutView)
    assert (about.owner.pid, about.owner.kind, about.store) == (4711, "serve", owner.services.store_id)
    assert (about.caller.user, about.caller.role, about.home) == ("alice", "user", f"/home/{ALICE}")
    assert owner.ask("DELETE", "/v1/jobs").headers["Allow"] == "GET, POST"


@cases(
    ("method", "path", "status"),
    [
        ("GET", "/", 404), ("GET", "/v1/nothing", 404), ("GET", "/v1/jobs/", 404), ("DELETE", "/v1/jobs", 405),
        ("GET", "/v1/jobs/x", 422), ("GET", "/v1/jobs/0x1", 422), ("GET", "/v1/jobs/999", 404),
        ("GET", "/openapiXjson", 404),
    ],
)  # fmt: skip
def test_a_wrong_path_or_method_is_told(owner: TestOwner, method: str, path: str, status: int) -> None:
    reply = owner.ask(method, path)
    problem = reply.read(Problem)
    assert (reply.status, problem.status, reply.content_type) == (status, status, "application/problem+json")
    assert problem.type.startswith("urn:gputui:")


@cases(("given", "status"), [("1.0", 200), ("1.99", 200), ("2.0", 400), ("x", 400), ("", 400)])
def test_a_client_of_another_major_version_is_refused(owner: TestOwner, given: str, status: int) -> None:
    assert owner.ask("GET", "/v1/about", headers={"gputui-api": given}).status == status


@cases(
    "query",
    [
        {"limit": "0"},
        {"limit": "x"},
        {"limit": "-1"},
        {"all": "maybe"},
        {"state": "ill"},
        {"unknown": "1"},
        {"filter": "name~x"},
        {"filter": "nofield:"},
    ],
)
def test_wrong_parameters_are_refused_by_name(owner: TestOwner, query: dict[str, str]) -> None:
    reply = owner.whole(owner.answer("GET", "/v1/jobs", query=query))
    assert reply.status == 422
    assert reply.read(Problem).instance in {next(iter(query)), "filter"}


@cases("since", ["yesterday", "2026-01-01", "2026-01-01T00:00:00"])
def test_times_need_a_zone(owner: TestOwner, since: str) -> None:
    assert owner.ask("GET", "/v1/history", since=since).status == 422
    assert owner.ask("GET", "/v1/history", since="2026-01-01T00:00:00Z").status == 200


@cases(
    ("body", "status"),
    [
        (b"", 400), (b"{", 400), (b"\xff", 400), (b'{"jobs": ' + b"[" * 100_000, 422), (b"[]", 422), (b"{}", 422),
        (b'{"jobs": [], "more": 1}', 422), (b'{"jobs": [{"spec": {"command": 1}}]}', 422),
    ],
)  # fmt: skip
def test_a_body_that_is_none_is_refused(owner: TestOwner, body: bytes, status: int) -> None:
    assert owner.ask("POST", "/v1/jobs", body).status == status


def test_a_role_that_is_too_low_is_refused_and_noted(owner: TestOwner) -> None:
    reply = owner.ask("POST", "/v1/jobs", {"jobs": []}, uid=CAROL)
    problem = reply.read(Problem)
    assert (reply.status, problem.rule, problem.kind) == (403, "role-user", "AccessError")
    assert owner.refusals == [("carol", "role-user", f"POST /v1/jobs: {problem.title}")]


def test_a_fault_tells_no_details(owner: TestOwner, monkeypatch: pytest.MonkeyPatch) -> None:
    def about(self: Handlers, call: object) -> None:
        raise ValueError("the secret")

    monkeypatch.setattr(Handlers, "about", about)
    reply = owner.ask("GET", "/v1/about")
    assert reply.status == 500
    assert b"secret" not in reply.body
