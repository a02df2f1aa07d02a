"""The server of the socket: what a client may rely on, and what no client can do to it."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gputui.api.connections import Limits, limits_for
from gputui.api.http import Answer, Handoff, Outlet, Request, Response, Stream
from gputui.api.server import DoorServer
from tests.api.serving import answer_of, rest_of, serving, tell
from tests.cases import cases
from tests.needs import need
from tests.waiting import until

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


def resident() -> int:
    """Return the bytes of memory that this process uses."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def descriptors() -> int:
    gc.collect()  # or what earlier tests left in cycles is closed meanwhile
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_a_request_is_answered_with_what_the_kernel_knows_of_its_client(tmp_path: Path) -> None:
    seen: list[Request] = []

    def handle(request: Request) -> Response:
        seen.append(request)
        return Response(201, b"{}", headers=(("Gputui-Api", "1.0"),))

    with serving(tmp_path, handle) as served:
        head = "POST /v1/jobs/a%20b?dry_run=1&x= HTTP/1.1\r\nHost: x\r\nX-A: 1\r\nX-a: 2\r\nConnection: close\r\n"
        answer = served.ask(head.encode() + b"Content-Length: 4\r\n\r\nbody")
    assert answer.startswith(b"HTTP/1.1 201 Created\r\n")
    assert b"Gputui-Api: 1.0\r\n" in answer
    (request,) = seen
    assert (request.method, request.path, request.query) == ("POST", "/v1/jobs/a b", {"dry_run": "1", "x": ""})
    assert request.body == b"body"
    assert request.headers["x-a"] == "1, 2"
    assert (request.peer.uid, request.peer.gid, request.peer.pid) == (os.geteuid(), os.getegid(), os.getpid())
    assert set(request.peer.groups) == set(os.getgroups())
    assert request.peer.cgroup == Path("/proc/self/cgroup").read_text().strip()


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_talks_to_it(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        big = tmp_path / "body"
        big.write_bytes(b"x" * 1_000_000)
        curl = ["curl", "-sS", "--max-time", "20", "--unix-socket", str(served.path)]
        shown = [
            subprocess.run([*curl, *words], check=True, capture_output=True, text=True).stdout
            for words in (
                ["http://localhost/v1/about"],
                ["-H", "Expect: 100-continue", "--data-binary", f"@{big}", "http://localhost/v1/jobs"],
                ["-H", "Transfer-Encoding: chunked", "-d", "abc", "http://localhost/v1/jobs"],
                ["--head", "-o", "/dev/null", "-w", "%{http_code}", "http://localhost/v1/about"],
            )
        ]
    assert shown == ["GET /v1/about 0", "POST /v1/jobs 1000000", "POST /v1/jobs 3", "200"]


def test_requests_follow_each_other_on_a_connection(tmp_path: Path) -> None:
    with serving(tmp_path) as served, served.connect() as link:
        for _ in range(3):
            link.sendall(GET)
            assert answer_of(link).endswith(b"GET /a 0")
        link.sendall(
            GET.replace(b"/a", b"/b") + GET.replace(b"/a", b"/c").replace(b"Host", b"Connection: close\r\nHost")
        )
        assert [part[-8:] for part in rest_of(link).split(b"HTTP/1.1 200 OK")[1:]] == [b"GET /b 0", b"GET /c 0"]


@cases(
    ("request_", "code"),
    [
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -3\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET / HTTP/9.9\r\nHost: x\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /%ff HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /?a=1&a=2 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /?" + b"&".join(b"a%d=1" % n for n in range(100)) + b" HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: \x00\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\n A: folded into what?\r\nA : 1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n", 400),
        (b"\r\n\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 120_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a:b\r\n" * 5000 + b"\r\n", 431),
        (b"GET /" + b"a" * 120_000, 431),
    ],
)
def test_what_is_no_sound_request_is_refused_and_ends_the_connection(
    tmp_path: Path, request_: bytes, code: int
) -> None:
    handled: list[Request] = []

    def handle(request: Request) -> Response:
        handled.append(request)
        return Response()

    with serving(tmp_path, handle) as served:
        answer = served.ask(request_)
        assert status(answer) == code
        assert b"application/problem+json" in answer
        assert not handled
        served.until_free()
        assert status(served.get("/")) == 200


def test_of_100_mb_it_takes_no_more_than_it_allows(tmp_path: Path) -> None:
    piece = b"x" * (1 << 20)
    with serving(tmp_path) as served:
        served.get("/")
        before = resident()
        for head in (b"Content-Length: 104857600\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n6400000\r\n"):
            with served.connect() as link:
                link.sendall(b"POST / HTTP/1.1\r\nHost: x\r\n" + head)
                for _ in range(100):
                    tell(link, piece)
                assert status(rest_of(link)) == 413
        served.until_free()
        assert resident() - before < 16 << 20


def test_a_body_in_chunks_has_few_small_ones(tmp_path: Path) -> None:
    head = b"POST /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    with serving(tmp_path) as served:
        large = (b"400\r\n" + b"x" * 1024 + b"\r\n") * 900
        assert served.ask(head + b"1\r\nx\r\n" * 900 + large + b"0\r\n\r\n").endswith(b"POST /a 922500")
        with served.connect() as link:
            tell(link, head + b"1\r\nx\r\n" * 1100)
            assert b"chunks that are too small" in rest_of(link)
        served.until_free()


def test_operators_may_send_longer_bodies(tmp_path: Path) -> None:
    body = b"x" * (3 << 20)
    request = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with serving(tmp_path) as served:
        assert status(served.ask(request)) == 413
    with serving(tmp_path, is_operator=True) as served:
        assert served.ask(request).endswith(b"POST / 3145728")


def test_all_bodies_together_have_a_limit(tmp_path: Path) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 900000\r\n\r\n"
    with serving(tmp_path, limits=Limits(bodies=1 << 20)) as served:
        with served.connect() as first:
            first.sendall(head + b"x" * 800_000)
            until(lambda: served.server.bodies == 800_000)
            assert status(served.ask(head + b"x" * 900_000)) == 503
            first.sendall(b"x" * 100_000)
            assert status(rest_of(first)) == 200
        assert served.server.bodies == 0


def test_slow_writers_are_given_up(tmp_path: Path) -> None:
    limits = Limits(head_within=0.2, body_within=0.2, idle=0.2)
    with serving(tmp_path, limits=limits) as served:
        links = [served.connect() for _ in range(3)]
        links[0].sendall(b"GET / HT")
        links[1].sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc")
        assert status(rest_of(links[0])) == 408
        assert status(rest_of(links[1])) == 408
        assert rest_of(links[2]) == b""
        served.until_free()
        for link in links:
            link.close()


def test_byte_by_byte_is_a_request_too(tmp_path: Path) -> None:
    with serving(tmp_path) as served, served.connect() as link:
        for at in range(len(GET)):
            link.sendall(GET[at : at + 1])
        assert answer_of(link).endswith(b"GET /a 0")


def test_a_thousand_half_open_connections_leave_it_quick_and_no_trace(tmp_path: Path) -> None:
    need("root")  # more descriptors than users usually have
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    limits = Limits(connections=2000, of_operator=2000)
    try:
        with serving(tmp_path, limits=limits, is_operator=True) as served:
            served.get("/")
            opened, used = descriptors(), resident()
            links = [served.connect() for _ in range(1000)]
            for link in links:
                link.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 1000)
            until(lambda: served.server.connections == 1000)
            begun = time.monotonic()
            assert status(served.get("/")) == 200
            assert time.monotonic() - begun < 1.0
            for link in links:
                link.close()
            served.until_free()
            assert descriptors() == opened
            assert resident() - used < 32 << 20
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_one_user_does_not_take_all_connections(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        links = [served.connect() for _ in range(16)]
        until(lambda: served.server.connections == 16)
        refused = served.ask(GET)
        assert status(refused) == 429
        assert b"you have 16 connections open" in refused
        for _ in range(200):
            served.connect().close()
        links.pop().close()
        until(lambda: status(served.get("/")) == 200)  # behind those of the 200 that still come
        for link in links:
            link.close()


def test_all_users_in_user_namespaces_count_as_one() -> None:
    need("root", "readers")
    script = "import socket, sys; s = [socket.socket(socket.AF_UNIX) for _ in range(10)]\n"
    script += "[each.connect(sys.argv[1]) for each in s]; print(flush=True); sys.stdin.read()"
    with tempfile.TemporaryDirectory() as place, serving(Path(place)) as served:  # pytest's own are closed to others
        Path(place).chmod(0o755)
        served.path.chmod(0o666)
        command = ["unshare", "--user", sys.executable, "-S", "-c", script, str(served.path)]
        many = [
            subprocess.Popen(
                ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for uid in (100_001, 100_002)
        ]
        for process in many:
            assert process.stdout is not None
            process.stdout.readline()
        until(lambda: served.server.connections == 16)
        assert status(served.get("/")) == 200  # another user
        assert served.server.connections <= 17
        for process in many:
            process.communicate(timeout=30)


def test_plain_users_leave_some_connections_to_operators(tmp_path: Path) -> None:
    limits = Limits(connections=4, of_users=2)
    with serving(tmp_path, limits=limits) as served:
        links = [served.connect() for _ in range(2)]
        until(lambda: served.server.connections == 2)
        assert b"the most for all users" in served.ask(GET)
        for link in links:
            link.close()


def test_a_user_who_asks_fast_waits(tmp_path: Path) -> None:
    with serving(tmp_path, limits=Limits(rate=50, burst=5)) as served, served.connect() as link:
        begun = time.monotonic()
        for _ in range(15):
            link.sendall(GET)
            answer_of(link)
        assert time.monotonic() - begun > 0.15
    with serving(tmp_path, limits=Limits(rate=0.001, burst=5), is_operator=True) as served, served.connect() as link:
        for _ in range(15):
            link.sendall(GET)
            answer_of(link)


def test_two_requests_of_a_user_are_answered_at_a_time(tmp_path: Path) -> None:
    lock, go = threading.Lock(), threading.Event()
    running: list[int] = [0, 0]

    def handle(request: Request) -> Response:
        with lock:
            running[0] += 1
            running[1] = max(running)
        go.wait(30)
        with lock:
            running[0] -= 1
        return Response()

    with serving(tmp_path, handle) as served:
        links = [served.connect() for _ in range(6)]
        for link in links:
            link.sendall(GET)
        until(lambda: running[0] == 2)
        go.set()
        for link in links:
            assert status(answer_of(link)) == 200
            link.close()
    assert running[1] == 2


def test_a_handler_that_fails_is_an_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def handle(request: Request) -> Response:
        if request.path == "/a":
            raise ZeroDivisionError
        return Response(200, b"ok", headers=(("bad", "a\r\nb"),) if request.path == "/bad" else ())

    with serving(tmp_path, handle) as served:
        assert status(served.get("/a")) == 500
        assert "ZeroDivisionError" in caplog.text
        assert served.get("/bad") == b""
        assert status(served.get("/b")) == 200


def test_a_stream_goes_on_until_either_side_ends_it(tmp_path: Path) -> None:
    boxes: list[Outlet] = []
    ended = threading.Event()

    def begin(box: Outlet) -> Callable[[], object]:
        boxes.append(box)
        box.send(b"data: 1\n\n")
        return ended.set

    with serving(tmp_path, lambda request: Stream(begin)) as served:
        with served.connect() as link:
            link.sendall(GET)
            got = b""
            while b"data: 1" not in got:
                got += link.recv(4096)
            assert b"text/event-stream" in got
            assert not ended.is_set()
        assert ended.wait(30)
        assert not boxes[0].send(b"data: 2\n\n")
        with served.connect() as link:
            link.sendall(GET)
            until(lambda: len(boxes) == 2)
            assert boxes[1].send(b"data: 2\n\n")
            boxes[1].close()
            assert rest_of(link).endswith(b"data: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n")


def test_a_client_that_does_not_read_its_stream_is_cut(tmp_path: Path) -> None:
    boxes: list[Outlet] = []
    ended = threading.Event()

    def begin(box: Outlet) -> Callable[[], object]:
        boxes.append(box)
        return ended.set

    limits = Limits(unsent=1 << 20)
    with serving(tmp_path, lambda request: Stream(begin), limits) as served, served.connect() as link:
        link.sendall(GET)
        until(lambda: len(boxes) == 1)
        box, part = boxes[0], b"x" * (300 << 10)
        most = 0
        while box.send(part):
            most = max(most, box.waiting)
        assert most < (1 << 20) + 2 * len(part)
        assert ended.wait(30)
        served.until_free()
        assert not box.send(part)


def test_a_stream_that_is_cut_off_has_no_end(tmp_path: Path) -> None:
    def begin(box: Outlet) -> Callable[[], object]:
        box.send(b"data: 1\n\n")
        box.cut_off()
        return lambda: None

    with serving(tmp_path, lambda request: Stream(begin)) as served:
        got = served.ask(GET)
    assert status(got) == 200
    assert not got.endswith(b"0\r\n\r\n")


def test_one_part_may_be_larger_than_what_may_wait(tmp_path: Path) -> None:
    part = os.urandom(5 << 20)

    def begin(box: Outlet) -> Callable[[], object]:
        assert box.send(part)
        box.close()
        return lambda: None

    with serving(tmp_path, lambda request: Stream(begin), limits=Limits(unsent=1 << 20)) as served:
        got = served.ask(GET)
    assert len(got) > len(part)


def test_a_stream_that_cannot_begin_is_an_answer(tmp_path: Path) -> None:
    def begin(box: Outlet) -> Callable[[], object]:
        raise ZeroDivisionError

    with serving(tmp_path, lambda request: Stream(begin)) as served:
        assert status(served.get("/")) == 500


def test_a_connection_is_given_away_with_what_came_behind_the_request(tmp_path: Path) -> None:
    given: list[socket.socket] = []
    early: list[bytes] = []

    def take(link: socket.socket, data: bytes) -> None:
        early.append(data)
        given.append(link)

    upgrade = b"POST /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: y\r\nContent-Length: 2\r\n\r\n{}"
    with serving(tmp_path, lambda request: Handoff(take)) as served:
        with served.connect() as first, served.connect() as second:
            first.sendall(upgrade + b"early")
            until(lambda: len(given) == 1)
            second.sendall(GET + b"too")
            until(lambda: len(given) == 2)
            served.until_free()
            assert early == [b"early", b"too"]
            assert given[0].getblocking()
            first.sendall(b"late")
            assert given[0].recv(99) == b"late"
            given[0].sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
            given[0].close()
            assert rest_of(first).startswith(b"HTTP/1.1 101")
        given[1].close()


def test_an_error_of_its_loop_begins_a_new_one(tmp_path: Path) -> None:
    failures = [ZeroDivisionError()]

    def beat() -> None:
        if failures:
            raise failures.pop()

    with serving(tmp_path, beat=beat) as served:
        until(lambda: len(served.faults) == 1)
        assert status(served.get("/")) == 200
        assert isinstance(served.faults[0], ZeroDivisionError)


def test_no_descriptors_left_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(tmp_path) as served:
        served.get("/")
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        waiting = socket.socket(socket.AF_UNIX)
        waiting.settimeout(30)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))  # no new descriptor for anybody
        try:
            waiting.connect(str(served.path))
            until(lambda: "no connection can be accepted" in caplog.text)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        waiting.sendall(GET)
        assert status(answer_of(waiting)) == 200
        waiting.close()


def test_a_server_that_ends_waits_for_who_has_just_come(tmp_path: Path) -> None:
    with serving(tmp_path) as served, served.connect() as link:
        until(lambda: served.server.connections == 1)
        stopping = threading.Thread(target=served.server.stop, args=(20.0,))
        stopping.start()
        link.sendall(GET)
        answer = answer_of(link)
        assert b"connection: close" in answer.lower()
        assert rest_of(link) == b""
        stopping.join(30)


def test_who_connects_while_one_server_ends_is_answered_by_the_next(tmp_path: Path) -> None:
    inside, go = threading.Event(), threading.Event()

    def slow(request: Request) -> Answer:
        if request.path == "/idle":
            return Response(200, b"quick")
        inside.set()
        go.wait(30)
        return Response(200, b"old")

    with serving(tmp_path, slow) as served:
        idle, busy = served.connect(), served.connect()
        idle.sendall(GET.replace(b"/a", b"/idle"))
        assert answer_of(idle).endswith(b"quick")
        busy.sendall(GET)
        assert inside.wait(30)
        stopping = threading.Thread(target=served.server.stop, args=(20.0,))
        stopping.start()
        assert rest_of(idle) == b""
        late = served.connect()
        late.sendall(GET)
        go.set()
        assert answer_of(busy).endswith(b"old")
        stopping.join(30)
        following = DoorServer([served.listener.socket], lambda request: Response(200, b"new"))
        following.start()
        assert answer_of(late).endswith(b"new")
        for link in (idle, busy, late):
            link.close()
        following.stop(0.1)


@cases(("descriptors", "connections", "of_users"), [(-1, 512, 448), (1024, 512, 448), (256, 128, 64)])
def test_half_of_the_descriptors_are_left_to_scheduling(descriptors: int, connections: int, of_users: int) -> None:
    limits = limits_for(descriptors)
    assert (limits.connections, limits.of_users) == (connections, of_users)
