"""Copy of the objects of a kind: pages, changes of its own, and changes that come by the watch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gputui.cluster.kubernetes import mirror
from gputui.cluster.kubernetes.api_server import ApiRefusedError
from gputui.cluster.kubernetes.mirror import Reflector
from gputui.cluster.kubernetes.objects import KubePod
from gputui.domain.errors import ClusterUnavailableError
from tests.cases import cases
from tests.kubernetes.scripted import Answer, ScriptedServer, Serve
from tests.kubernetes.waiting import until

PATH = "/api/v1/pods"


def item(uid: str, version: str = "1", name: str = "") -> dict[str, Any]:
    return {"metadata": {"uid": uid, "name": name or uid, "resourceVersion": version}}


def page(*items: object, version: str = "5", more: str = "") -> Answer:
    """Return a list of objects; `more` continues it."""
    return 200, json.dumps({"metadata": {"resourceVersion": version, "continue": more}, "items": items}).encode()


def changes(*lines: tuple[str, object] | bytes) -> Answer:
    """Return what a watch tells before its server ends it."""
    texts = [
        line if isinstance(line, bytes) else json.dumps({"type": line[0], "object": line[1]}).encode() for line in lines
    ]
    return 200, b"\n".join(texts) + b"\n"


@pytest.fixture(autouse=True)
def watches_follow_each_other_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "_PAUSE", 0.01)


def listed(server: ScriptedServer, removed: list[str] | None = None) -> Reflector[KubePod]:
    """Return a copy that was listed once."""
    gone = removed if removed is not None else []
    copy = Reflector(server.api(), PATH, KubePod, removed=lambda pod, _: gone.append(pod.metadata.uid))
    copy.list()
    return copy


def versions(copy: Reflector[KubePod]) -> dict[str, str]:
    return {uid: pod.metadata.resource_version for uid, pod in copy.items().items()}


def test_lists_of_objects(serve: Serve) -> None:
    # pages are put together
    server = serve(page(item("a"), more="next"), page(item("b")))
    assert set(versions(listed(server))) == {"a", "b"}
    assert server.asked == [f"{PATH}?limit=250", f"{PATH}?limit=250&continue=next"]
    # pages that became too old are asked for at once
    server = serve(page(item("a"), more="next"), (410, b"{}"), page(item("a"), item("b")))
    assert set(versions(listed(server))) == {"a", "b"}
    assert server.asked[-1] == PATH
    # a list that is refused says so
    with pytest.raises(ApiRefusedError, match="access denied"):
        listed(serve((403, b"{}")))
    gateway = b'{"status": 403, "code": "Forbidden", "details": "none", "message": "log in at the gateway"}'
    with pytest.raises(ApiRefusedError, match="access denied: log in at the gateway"):
        listed(serve((403, gateway)))
    with pytest.raises(ClusterUnavailableError, match="is no API server of Kubernetes"):
        listed(serve((200, b"<html>")))
    # an object that cannot be read is left out
    assert set(versions(listed(serve(page({"metadata": 5}, item("a")))))) == {"a"}
    # objects that a later list lacks are gone
    gone: list[str] = []
    copy = listed(serve(page(item("a"), item("b")), page(item("b"))), gone)
    copy.list()
    assert (set(versions(copy)), gone) == ({"b"}, ["a"])


@cases(
    ("known", "answered", "kept"),
    [
        ("5", "6", "6"),
        ("5", "5", "5"),
        ("5", "4", "5"),
        ("9", "10", "10"),
        ("5", "later", "later"),
        ("earlier", "4", "4"),
    ],
)
def test_a_later_state_of_an_object_stays(serve: Serve, known: str, answered: str, kept: str) -> None:
    copy = listed(serve(page(item("a", known))))
    copy.put(json.dumps(item("a", answered)).encode())
    assert versions(copy) == {"a": kept}


@cases("data", [b"", b"{}", b"[]", b"\xff", b'{"metadata": {"name": "a"}}'])
def test_an_answer_that_is_no_object_changes_nothing(serve: Serve, data: bytes) -> None:
    copy = listed(serve(page(item("a"))))
    before = copy.changes
    copy.put(data)
    assert (versions(copy), copy.changes) == ({"a": "1"}, before)


def test_an_object_that_was_dropped_does_not_come_back(serve: Serve) -> None:
    copy = listed(serve(page(item("a"), item("b"))))
    copy.drop("a")
    copy.drop("never seen")
    copy.put(json.dumps(item("a", "9")).encode())
    assert set(versions(copy)) == {"b"}


def test_only_the_latest_of_very_many_dropped_objects_are_remembered(serve: Serve) -> None:
    copy = listed(serve(page()))
    for number in range(1001):
        copy.drop(str(number))
    for number in (0, 1, 1000):
        copy.put(json.dumps(item(str(number))).encode())
    assert set(versions(copy)) == {"0"}


def test_changes_come_by_the_watch(serve: Serve) -> None:
    told = changes(
        ("ADDED", item("c", "6")),
        ("MODIFIED", item("a", "7")),
        ("DELETED", item("b", "8")),
        ("ADDED", {"metadata": "no object"}),
        ("BOOKMARK", item("", "9")),
        ("DELETED", item("never seen", "10")),
        ("STRANGE", item("d", "11")),
    )
    server, gone = serve(page(item("a"), item("b")), told), list[str]()
    copy = listed(server, gone)
    copy.start()
    copy.start()
    try:
        until(lambda: len(gone), lambda count: count == 2, "the last end is told")
        until(lambda: server.asked, lambda asked: len(asked) > 2, "it is watched anew")
    finally:
        copy.close()
    assert (versions(copy), gone) == ({"a": "7", "c": "6"}, ["b", "never seen"])
    assert "resourceVersion=5&" in server.asked[1]
    assert "resourceVersion=11&" in server.asked[2]
    assert not copy.is_watching


@cases(
    "answer",
    [
        changes(b"{"),
        changes(b"\xff\xfe"),
        changes(("ERROR", {"kind": "Status", "code": 410})),
        (410, b"{}"),
    ],
)
def test_a_watch_that_cannot_go_on_lists_anew(serve: Serve, answer: Answer) -> None:
    copy = listed(serve(page(item("a")), answer, page(item("b"), version="7")))
    copy.start()
    try:
        until(lambda: versions(copy), lambda found: set(found) == {"b"}, "it is listed anew")
    finally:
        copy.close()


@cases("answer", [(403, b"{}"), (503, b"{}")])
def test_a_copy_that_is_out_of_date_says_why_and_is_listed_anew(serve: Serve, answer: Answer) -> None:
    seen: list[object] = []

    def relisted() -> tuple[int, bytes]:
        seen.append(copy.error)
        return 200, json.dumps({"metadata": {"resourceVersion": "7"}, "items": [item("b")]}).encode()

    copy = listed(serve(page(item("a")), answer, relisted))
    copy.start()
    try:
        until(lambda: versions(copy), lambda found: set(found) == {"b"}, "it is listed anew")
    finally:
        copy.close()
    assert len(seen) == 1
    assert isinstance(seen[0], (ApiRefusedError, ClusterUnavailableError))


def test_a_copy_that_was_never_watched_is_closed_at_once(serve: Serve) -> None:
    copy = listed(serve(page(item("a"))))
    assert not copy.is_watching
    copy.close()
    assert set(versions(copy)) == {"a"}
