"""The client of an owner: answers, patience, repeats, and whom it trusts."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gputui.api.backend import ApiBackend
from gputui.api.client import ApiClient, Patience, plain_name
from gputui.api.http import JOBS
from gputui.api.wire import Server, check_server, to_command, to_sockets
from gputui.domain.errors import GputuiError, InputErrors, NoOwnerError, NotFoundError, StoreBusyError
from tests.api.scripted_owner import answer_of, fixed, scripted, whole_message
from tests.cases import cases

OK = answer_of(b'{"ok": true}')


_MADE: list[ApiClient] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _MADE:
        _MADE.pop().close()


def client_of(*paths: Path, told: list[str] | None = None, patience: float = 10.0) -> ApiClient:
    client = ApiClient(to_sockets(paths), patience=patience, tell=(told if told is not None else []).append)
    _MADE.append(client)
    return client


def test_a_request_says_what_it_wants_and_an_answer_is_decoded(tmp_path: Path) -> None:
    got: list[bytes] = []
    with scripted(tmp_path / "s", fixed(OK, got)):
        client = client_of(tmp_path / "s")
        assert client.ask(
            "POST", "/v1/jobs", {"jobs": []}, result=dict[str, Any], query={"dry_run": True, "a": "x&y"}, key="k1"
        ) == {"ok": True}
    head, body = got[0].split(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/jobs?dry_run=true&a=x%26y HTTP/1.1\r\nHost: gputui\r\nGputui-Api: 1.")
    assert b"Idempotency-Key: k1" in head
    assert body == b'{"jobs":[]}'


def test_requests_one_after_the_other_use_one_connection(tmp_path: Path) -> None:
    accepted: list[int] = []

    def play(link: socket.socket) -> None:
        accepted.append(link.fileno())
        fixed(OK)(link)

    with scripted(tmp_path / "s", play):
        client = client_of(tmp_path / "s")
        for _ in range(3):
            client.ask("GET", "/v1/about", result=dict[str, Any])
        client.close()
    assert len(accepted) == 1


def test_a_body_in_chunks_is_read(tmp_path: Path) -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n[1\r\n3;x=y\r\n,2]\r\n0\r\n\r\n"
    with scripted(tmp_path / "s", fixed(chunked)):
        assert client_of(tmp_path / "s").ask("GET", "/v1/gpus", result=list[int]) == [1, 2]


@cases(
    ("problem", "kind"),
    [
        (b'{"type":"u","title":"there is no job 7","status":404,"kind":"NotFoundError","exit_code":3}', NotFoundError),
        (b'{"type":"u","title":"no","status":500,"kind":"Exception"}', GputuiError),
        (b'{"type":"u","title":"no","status":500,"kind":"annotations"}', GputuiError),
        (b"<html>no</html>", GputuiError),
        (
            b'{"type":"u","title":"a","status":422,"errors":[{"type":"u","title":"a","status":422,"kind":"InputError"}]}',
            InputErrors,
        ),
    ],
)
def test_an_error_is_raised_as_it_was(tmp_path: Path, problem: bytes, kind: type[GputuiError]) -> None:
    with scripted(tmp_path / "s", fixed(answer_of(problem, "404 Not Found"))), pytest.raises(kind) as caught:
        client_of(tmp_path / "s").ask("GET", "/v1/jobs/7", result=dict[str, Any])
    assert type(caught.value) is kind


def test_a_cut_request_with_a_key_is_sent_again(tmp_path: Path) -> None:
    got: list[bytes] = []

    def cut(link: socket.socket) -> None:
        got.append(whole_message(link))
        link.sendall(OK[:30])

    with scripted(tmp_path / "s", cut, cut, fixed(OK, got)):
        assert client_of(tmp_path / "s").ask("POST", "/v1/jobs", {}, result=dict[str, Any], key="k") == {"ok": True}
    assert len(got) == 3
    assert len(set(got)) == 1


def test_a_cut_request_without_a_key_is_not_repeated(tmp_path: Path) -> None:
    got: list[bytes] = []

    def cut(link: socket.socket) -> None:
        got.append(whole_message(link))

    with scripted(tmp_path / "s", cut), pytest.raises(GputuiError, match="look whether it was done"):
        client_of(tmp_path / "s").ask("POST", "/v1/jobs", {}, result=dict[str, Any])
    assert len(got) == 1


@cases(
    ("answer", "says"),
    [
        (f"Content-Type: {JOBS}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "cut before the whole history"),
        ("Content-Type: application/json\r\nContent-Length: 2\r\n\r\n[]", "does not send its history whole"),
    ],
)
def test_history_that_is_not_whole_is_an_error(tmp_path: Path, answer: str, says: str) -> None:
    with scripted(tmp_path / "s", fixed(f"HTTP/1.1 200 OK\r\n{answer}".encode())):
        backend = ApiBackend(client_of(tmp_path / "s"))
        with pytest.raises(GputuiError, match=says):
            list(backend.history())
        backend.close()


def test_an_owner_who_is_busy_is_asked_again(tmp_path: Path) -> None:
    busy = answer_of(b"{}", "503 Service Unavailable", "Retry-After: 0")

    def refuse(link: socket.socket) -> None:
        whole_message(link)
        link.sendall(busy)

    with scripted(tmp_path / "s", refuse, fixed(OK)):
        assert client_of(tmp_path / "s").ask("GET", "/v1/about", result=dict[str, Any]) == {"ok": True}


def test_nobody_owns_a_queue_without_a_socket_or_with_a_stale_one(tmp_path: Path) -> None:
    with pytest.raises(NoOwnerError):
        client_of(tmp_path / "none").ask("GET", "/v1/about", result=dict[str, Any])
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "stale"))
    with pytest.raises(NoOwnerError):
        client_of(tmp_path / "stale").ask("GET", "/v1/about", result=dict[str, Any])


def test_the_first_socket_with_a_listener_is_asked(tmp_path: Path) -> None:
    long = tmp_path / ("d" * 100) / ("e" * 100)
    long.mkdir(parents=True)
    with scripted(tmp_path / "s", fixed(OK)):
        (tmp_path / "s").rename(long / "s")  # longer than an address may be
        client = client_of(tmp_path / "none", long / "s")
        assert client.ask("GET", "/v1/about", result=dict[str, Any]) == {"ok": True}


def test_a_hung_owner_is_named_after_two_seconds_and_given_up_in_time(tmp_path: Path) -> None:
    """The connect itself waits if the backlog is full."""
    places = [tmp_path / name for name in ("free", "full")]
    for place in places:
        place.mkdir()
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(_hangs, places, (64, 0))) == [None, None]


def _hangs(tmp_path: Path, backlog: int) -> None:
    told: list[str] = []
    with scripted(tmp_path / "s", backlog=backlog), socket.socket(socket.AF_UNIX) as other:
        if not backlog:
            other.connect(str(tmp_path / "s"))  # fills it
        began = time.monotonic()
        with pytest.raises(StoreBusyError) as caught:
            client_of(tmp_path / "s", told=told, patience=2.5).ask("GET", "/v1/about", result=dict[str, Any])
        assert 2.4 < time.monotonic() - began < 10
    assert [text.partition(" (pid")[0] for text in told] == ["the owner of the queue"] or backlog == 0
    assert "has not answered for 2 s" in told[0]
    assert len(told) == 1
    assert "has not answered for" in caught.value.what
    assert backlog == 0 or f"kill -CONT {os.getpid()}" in str(caught.value)


def test_a_server_of_another_user_is_refused(tmp_path: Path) -> None:
    check_server(Server(1000, 1), {0, 1000}, tmp_path)
    with pytest.raises(GputuiError, match="uid 1001, who is neither root nor the owner"):
        check_server(Server(1001, 1), {0, 1000}, tmp_path)


def test_a_stream_is_read_part_by_part_and_closed_from_another_thread(tmp_path: Path) -> None:
    go_on = threading.Event()

    def play(link: socket.socket) -> None:
        whole_message(link)
        link.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        go_on.wait(10)
        link.sendall(b"1\r\nd\r\n")
        link.recv(1)

    with scripted(tmp_path / "s", play):
        stream = client_of(tmp_path / "s").stream("/v1/events", silence=10)
        parts = iter(stream)
        assert next(parts) == b"abc"
        go_on.set()
        assert next(parts) == b"d"
        threading.Timer(0.1, stream.close).start()
        assert list(parts) == []


def test_a_stream_that_was_closed_already_just_ends(tmp_path: Path) -> None:
    def play(link: socket.socket) -> None:
        whole_message(link)
        link.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        link.recv(1)

    with scripted(tmp_path / "s", play):
        stream = client_of(tmp_path / "s").stream("/v1/events", silence=10)
        stream.close()
        assert list(stream) == []


def test_a_silent_stream_ends(tmp_path: Path) -> None:
    def play(link: socket.socket) -> None:
        whole_message(link)
        link.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        link.recv(1)

    with scripted(tmp_path / "s", play):
        stream = client_of(tmp_path / "s").stream("/v1/events", silence=0.2)
        assert list(stream) == [b"abc"]


def test_an_upgraded_connection_is_handed_out_with_what_came_early(tmp_path: Path) -> None:
    def play(link: socket.socket) -> None:
        whole_message(link)
        link.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: gputui-stream/1\r\n\r\nearly")
        link.sendall(link.recv(10).upper())

    with scripted(tmp_path / "s", play):
        link, early = client_of(tmp_path / "s").upgrade("/v1/jobs/1/attach", "gputui-stream/1", {}, key="k")
        with link:
            link.sendall(b"abc")
            while len(early) < 8:
                early += link.recv(10)
    assert early == b"earlyABC"


def words_of(code: int, lines: Sequence[bytes]) -> str:
    return f"{code}: {b' '.join(lines).decode()}" if code else ""


def test_a_command_may_be_the_way_to_an_owner() -> None:
    text = f"echo Welcome; echo HTTP is spoken here; read line; printf '{OK.decode()}'".replace("\r\n", "\\r\\n")
    client = ApiClient(to_command(["sh", "-c", text], words_of))
    assert client.ask("GET", "/v1/about", result=dict[str, Any]) == {"ok": True}
    client.close()


@cases(
    ("text", "words"),
    [
        ("echo one >&2; echo two >&2; exit 7", "7: one two"),
        ("exec <&- >&-; sleep 0.2; exit 7", "7: "),
        ("printf 'no end' >&2; kill -9 $$", "-9: no end"),
        ("sleep 600 2>&2 >/dev/null </dev/null & echo left >&2; exit 3", "3: left"),
        ("while echo nonsense; do :; done", "it sends lines that are not gputui's: 'nonsense"),
        ("exec /nonexistent 2>/dev/null", "127: "),
        ("exit 4", "4: "),
    ],
)
def test_why_a_command_does_not_answer_is_told(text: str, words: str) -> None:
    client = ApiClient(to_command(["sh", "-c", text], words_of))
    with pytest.raises(GputuiError) as told:
        client.ask("GET", "/v1/about", result=dict[str, Any])
    assert str(told.value).startswith(words)


def test_patience_tells_nothing_before_two_seconds() -> None:
    told: list[str] = []
    patience = Patience(60, told.append, plain_name)
    patience.passed()
    assert told == []
    assert 1.5 < patience.step() <= 2


def test_a_next_owner_is_waited_for_once_there_was_one(tmp_path: Path) -> None:
    client = ApiClient(to_sockets([tmp_path / "s"]), absence=10)
    _MADE.append(client)
    with pytest.raises(NoOwnerError):
        client.ask("GET", "/v1/about", result=dict[str, Any])
    closing = answer_of(b"{}", "200 OK", "Connection: close")
    with scripted(tmp_path / "s", fixed(closing)):
        client.ask("GET", "/v1/about", result=dict[str, Any])
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(client.ask("GET", "/v1/about", result=dict[str, Any])))
    thread.start()
    with scripted(tmp_path / "s", fixed(OK)):
        thread.join(10)
    assert answers == [{"ok": True}]
