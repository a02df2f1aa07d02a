"""Output of pods: what is told of none, and when the copy on this machine takes its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gputui.cluster.kubernetes import records
from gputui.cluster.kubernetes.api_server import ApiRefusedError
from gputui.cluster.kubernetes.objects import KubeMeta, KubePod
from gputui.cluster.kubernetes.records import KeptLog, LogKeeper, PodLog
from gputui.domain.errors import ClusterUnavailableError, NotFoundError
from tests.cases import cases
from tests.kubernetes.scripted import Answer, Serve

POD = KubePod(KubeMeta("train-x", "team", "u1"))
LINES = b"2026-03-02T12:00:00.1Z one\n2026-03-02T12:00:01.2Z two\n"
ONE, TWO = LINES.splitlines()


def refusal(code: int, words: str = "container is waiting") -> Answer:
    return code, json.dumps({"kind": "Status", "message": words, "code": code}).encode()


@pytest.fixture(autouse=True)
def looks_follow_each_other_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_PAUSE", 0.0)


def kept(tmp_path: Path, tail: int | None = None, data: bytes = LINES) -> KeptLog:
    (tmp_path / "kept").write_bytes(data)
    return KeptLog(tmp_path / "kept", tail)


@cases(
    ("data", "tail", "lines"),
    [
        (LINES, None, [ONE, TWO]),
        (LINES, 1, [TWO]),
        (LINES, 0, []),
        (LINES, 9, [ONE, TWO]),
        (LINES.rstrip(), None, [ONE, TWO]),
        (b"", None, []),
        (b"\n\n", None, [b"", b""]),
    ],
)
def test_a_copy_is_read_by_lines(tmp_path: Path, data: bytes, tail: int | None, lines: list[bytes]) -> None:
    log = kept(tmp_path, tail, data)
    assert list(log) == lines
    log.close()
    assert log.is_stamped


def test_output_without_a_copy_says_so(tmp_path: Path, serve: Serve) -> None:
    with pytest.raises(NotFoundError, match="its output was not kept on this machine"):
        KeptLog(tmp_path / "none", None)
    with pytest.raises(NotFoundError, match="Kubernetes has no pod of it any more"):
        PodLog(serve().api(), None, None, None)


def test_a_pod_is_asked_for_its_last_lines(serve: Serve) -> None:
    server = serve((200, LINES))
    assert list(PodLog(server.api(), POD, 2, None)) == [ONE, TWO]
    assert server.asked == ["/api/v1/namespaces/team/pods/train-x/log?timestamps=true&tailLines=2"]


@cases("code", [400, 404])
def test_a_pod_without_output_says_why(serve: Serve, code: int) -> None:
    with pytest.raises(NotFoundError, match="it has no output: container is waiting"):
        list(PodLog(serve(refusal(code)).api(), POD, None, None))


@cases("following", [False, True])
def test_a_user_without_rights_is_told_so(serve: Serve, *, following: bool) -> None:
    pod_of = (lambda: POD) if following else None
    with pytest.raises(ApiRefusedError, match="alice cannot get pods/log"):
        list(PodLog(serve(refusal(403, "alice cannot get pods/log")).api(), POD, None, pod_of))


@cases("answer", [refusal(404), refusal(403), refusal(503), (200, b"unable to retrieve container logs\n")])
def test_the_copy_takes_the_place_of_output_that_cannot_be_read(tmp_path: Path, serve: Serve, answer: Answer) -> None:
    assert list(PodLog(serve(answer).api(), POD, None, None, kept(tmp_path))) == [ONE, TWO]


def test_the_copy_does_not_follow_lines_that_were_shown(tmp_path: Path, serve: Serve) -> None:
    shown = iter(PodLog(serve((200, ONE + b"\nit is\tgone\n")).api(), POD, None, None, kept(tmp_path)))
    assert next(shown) == ONE
    with pytest.raises(NotFoundError, match="its output cannot be read: it is gone"):
        next(shown)


def test_a_pod_that_has_not_started_is_waited_for(serve: Serve) -> None:
    server = serve(refusal(400), refusal(404), (200, LINES))
    assert list(PodLog(server.api(), POD, None, lambda: POD)) == [ONE, TWO]
    assert len(server.asked) == 3
    assert server.asked[-1].endswith("timestamps=true&follow=true")


def test_ends_of_followed_output(serve: Serve) -> None:
    # a job gets a pod while it is followed
    assert list(PodLog(serve((200, LINES)).api(), None, None, lambda: POD)) == [ONE, TWO]
    # a job that ends without a pod has no lines
    server = serve()
    assert list(PodLog(server.api(), None, None, lambda: None)) == []
    assert server.asked == []
    # a pod that goes before it started ends the output
    assert list(PodLog(serve(refusal(400)).api(), POD, None, lambda: None)) == []
    # a closed log asks nothing
    server = serve((200, LINES))
    log = PodLog(server.api(), POD, None, lambda: POD)
    log.close()
    assert list(log) == []
    assert server.asked == []
    # a server that is away is told
    with pytest.raises(ClusterUnavailableError):
        list(PodLog(serve().api(), POD, None, lambda: POD))


def test_a_log_that_is_closed_while_its_node_is_asked_ends(serve: Serve) -> None:
    def answered() -> tuple[int, bytes]:
        log.close()
        return 200, LINES

    log = PodLog(serve(answered, goes_on=True).api(), POD, None, lambda: POD)
    assert set(log) <= {ONE, TWO}  # what has come already may be shown


@cases("answer", [refusal(404), (200, b"unable to retrieve container logs\n")])
def test_an_earlier_copy_stays_if_the_node_has_no_output(tmp_path: Path, serve: Serve, answer: Answer) -> None:
    keeper = LogKeeper(tmp_path / "logs")
    api = serve(answer, (200, LINES), answer).api()
    assert keeper.keep(api, POD) == ""
    assert keeper.keep(api, POD) == "u1.log"
    assert keeper.keep(api, POD) == "u1.log"
    assert keeper.path("u1.log").read_bytes() == LINES
