"""Logins at the API server: tokens that are renewed, programs that log in, impersonation, passwords, certificates."""

from __future__ import annotations

import base64
import gzip
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from gputui.cluster.kubernetes import kubeconfig
from gputui.cluster.kubernetes.api_server import ApiRefusedError, ApiServer, connect
from gputui.domain.errors import ClusterUnavailableError
from tests.cases import cases
from tests.kubernetes.fake.access import ADMIN
from tests.kubernetes.harness import KubernetesHarness

V1, V1BETA1 = "client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"


class Place:
    """A kubeconfig for the fake server, and a program that logs in."""

    def __init__(self, directory: Path, address: str) -> None:
        self.directory = directory
        self.address = address
        self.program = directory / "log-in"
        self.answers(ADMIN)

    def config(self, user: dict[str, Any], **cluster: Any) -> dict[str, str]:
        """Write a kubeconfig; return the environment that names it."""
        value = {
            "current-context": "a",
            "clusters": [{"name": "a", "cluster": {"server": self.address} | cluster}],
            "users": [{"name": "a", "user": user}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        }
        (self.directory / "config").write_text(json.dumps(value))
        return {**os.environ, "KUBECONFIG": str(self.directory / "config")}

    def open(self, user: dict[str, Any], **cluster: Any) -> ApiServer:
        return connect(None, self.config(user, **cluster), 10.0)

    def by_program(self, version: str = V1, **more: Any) -> ApiServer:
        """Return the server for a user whom the program logs in."""
        return self.open({"exec": {"apiVersion": version, "command": "./log-in"} | more}, **more.pop("cluster", {}))

    def answers(self, token: str, version: str = V1, **status: Any) -> None:
        """Have the program print this token."""
        told = {"kind": "ExecCredential", "apiVersion": version, "status": {"token": token} | status}
        self.runs(f"cat <<'END'\n{json.dumps(told)}\nEND")

    def runs(self, script: str) -> None:
        """Have the program run this, after it has noted that it ran, and what it was told."""
        here = self.directory
        self.program.write_text(
            f"#!/bin/sh\necho run >> {here}/runs\necho $KUBERNETES_EXEC_INFO > {here}/info\n{script}\n"
        )
        self.program.chmod(0o755)

    @property
    def runs_so_far(self) -> int:
        file = self.directory / "runs"
        return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture
def place(harness: KubernetesHarness, tmp_path: Path) -> Place:
    there = tmp_path / "there"
    there.mkdir()
    return Place(there, harness.fake.address)


@pytest.mark.parametrize("version", [V1, V1BETA1])
def test_a_program_logs_in_once_for_many_requests(place: Place, version: str) -> None:
    place.answers(ADMIN, version, clientKeyData=None, expirationTimestamp="2999-01-01T00:00:00.5+01:00")
    server = place.by_program(version)
    assert server.get("/version")
    assert server.get("/api/v1/pods")
    assert place.runs_so_far == 1
    server.close()


def test_a_program_that_answers_for_a_while_is_asked_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeconfig, "_PAUSE", 0.0)
    place.answers(ADMIN, expirationTimestamp="2020-01-01T00:00:00Z")
    server = place.by_program()
    server.get("/version")
    before = place.runs_so_far
    place.answers(ADMIN, expirationTimestamp="2999-01-01T00:00:00Z")
    for _ in range(3):
        server.get("/version")
    assert place.runs_so_far == before + 1
    server.close()


def test_a_login_that_ran_out_is_renewed_in_mid_watch(
    harness: KubernetesHarness, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubeconfig, "_PAUSE", 0.0)
    harness.fake.access.rename_token(ADMIN, "later")
    place.answers("later")
    server = place.by_program()
    stream = iter(server.stream("/api/v1/nodes", {"watch": "1", "resourceVersion": "0", "timeoutSeconds": "60"}, 30.0))
    assert b"gpu1" in next(stream)
    harness.fake.access.rename_token("later", ADMIN)
    place.answers(ADMIN)
    before = place.runs_so_far
    assert b"gpu2" in server.get("/api/v1/nodes")
    assert place.runs_so_far == before + 1
    server.close()


def test_a_login_that_is_refused_is_not_repeated_again_and_again(harness: KubernetesHarness, place: Place) -> None:
    place.answers("unknown")
    server = place.by_program()
    for _ in range(3):
        with pytest.raises(ApiRefusedError, match="does not know this user"):
            server.get("/api/v1/pods")
    assert place.runs_so_far == 1
    server.close()


def test_a_token_that_another_program_wrote_into_the_kubeconfig_is_found(
    harness: KubernetesHarness, place: Place
) -> None:
    server = place.open({"token": ADMIN})
    server.get("/api/v1/pods")
    harness.fake.access.rename_token(ADMIN, "later")
    with pytest.raises(ApiRefusedError, match="does not know this user"):
        server.get("/api/v1/pods")
    place.config({"token": "later"})
    server.get("/api/v1/pods")
    server.close()


def test_a_token_file_is_read_anew(harness: KubernetesHarness, place: Place) -> None:
    file = place.directory / "token"
    file.write_text(ADMIN)
    server = place.open({"tokenFile": "token"})
    server.get("/api/v1/pods")
    harness.fake.access.rename_token(ADMIN, "later")
    file.write_text("later")
    server.get("/api/v1/pods")
    server.close()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            "echo; echo 'Error: token expired, run aws sso login' >&2; echo usage: x >&2; exit 255",
            "code 255: Error: token",
        ),
        ("echo 'nobody is here' >&2; exit 1", "failed with code 1: nobody is here"),
        ("printf '\\033[31mfailed\\033[0m\\n' >&2; exit 1", "failed with code 1: failed"),
        ("exit 3", "failed with code 3 "),
        ("kill -9 $$", "failed with code -9"),
        ("echo hello", "answers with something else than a credential"),
        ('echo \'{"kind": "ExecCredential"}\'', "answers with something else than a credential of"),
        (f'echo \'{{"kind": "ExecCredential", "apiVersion": "{V1}", "status": {{}}}}\'', "neither a token nor"),
        (
            f'echo \'{{"kind": "ExecCredential", "apiVersion": "{V1}", "status": {{"clientKeyData": "x"}}}}\'',
            "a certificate without its key",
        ),
    ],
)
def test_a_program_that_fails_is_told_and_nothing_goes_on(
    harness: KubernetesHarness, place: Place, script: str, words: str
) -> None:
    place.runs(script)
    server = place.by_program(args=["--region", "eu"])
    for _ in range(2):
        with pytest.raises(ClusterUnavailableError, match=f"the program that logs in {words}|{words}") as refused:
            server.get("/api/v1/pods")
    assert str(refused.value).startswith(str(place.program))
    assert refused.value.hint == f"try it: {place.program} --region eu"
    assert "\x1b" not in str(refused.value)
    assert not harness.fake.requests
    assert place.runs_so_far == 1  # a failure stands for a while, too
    server.close()


def test_a_program_that_hangs_is_ended(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeconfig, "_WITHIN", 0.3)
    place.runs("sleep 60 & wait")
    server = place.by_program()
    with pytest.raises(ClusterUnavailableError, match="did not answer within"):
        server.get("/version")
    server.close()


def test_a_program_that_is_missing_or_of_another_time(place: Place) -> None:
    server = place.open({"exec": {"apiVersion": V1, "command": "no-such", "installHint": "get it\nat example.org"}})
    with pytest.raises(ClusterUnavailableError, match="cannot be found") as missing:
        server.get("/version")
    assert missing.value.hint == "get it at example.org"
    server.close()
    server = place.by_program("client.authentication.k8s.io/v1alpha1")
    with pytest.raises(ClusterUnavailableError, match=r"speaks client\.authentication\.k8s\.io/v1alpha1, not"):
        server.get("/version")
    server.close()
    place.program.write_text("#!/no/such/interpreter\n")
    server = place.by_program()
    with pytest.raises(ClusterUnavailableError, match="cannot be run: No such file"):
        server.get("/version")
    server.close()


def test_a_program_is_told_what_the_file_says_of_the_cluster(place: Place) -> None:
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "lab"}}
    program = {"apiVersion": V1, "command": "./log-in", "provideClusterInfo": True, "interactiveMode": "Never"}
    authority = base64.b64encode(b"authority").decode()
    variables = [{"name": "EXTRA", "value": "set"}]
    place.runs('echo "$EXTRA" >&2; exit 1')
    data = {"certificate-authority-data": authority, "extensions": [extension, {"name": "x", "extension": None}]}
    server = place.open({"exec": program | {"env": variables}}, **data)
    with pytest.raises(ClusterUnavailableError, match="code 1: set"):
        server.get("/version")
    told = json.loads((place.directory / "info").read_text())
    cluster = {"server": place.address, "certificate-authority-data": authority, "config": {"audience": "lab"}}
    assert told == {"apiVersion": V1, "kind": "ExecCredential", "spec": {"interactive": False, "cluster": cluster}}
    server.close()


PROGRAM = """
import sys, termios, tty
from gputui.cluster.kubernetes.api_server import connect
from gputui.domain.errors import ClusterUnavailableError
import os
if sys.argv[1] == "console":
    tty.setcbreak(0)
try:
    connect(None, dict(os.environ), 10.0).get("/version")
    print("reached", flush=True)
except ClusterUnavailableError as error:
    print(error, flush=True)
"""


@cases(
    ("where", "mode", "seen"),
    [
        ("command", "IfAvailable", b"code? 123\r\nreached"),
        ("command", "Always", b"code? 123\r\nreached"),
        ("command", "Never", b"failed with code 1"),
        ("console", "IfAvailable", b"failed with code 1"),
        ("console", "Always", b"has to ask you something"),
    ],
)
def test_a_program_may_ask_in_the_terminal_of_a_command(place: Place, where: str, mode: str, seen: bytes) -> None:
    answer = json.dumps({"kind": "ExecCredential", "apiVersion": V1, "status": {"token": ADMIN}})
    place.runs(f"printf 'code? ' >&2; read code || exit 1; [ $code = 123 ] && echo '{answer}'")
    environ = place.config({"exec": {"apiVersion": V1, "command": "./log-in", "interactiveMode": mode}})
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, where], env=environ, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        os.write(ours, b"123\n")
        told = b"".join(iter(lambda: _read(ours), b""))
        assert process.wait(60) == 0
    os.close(ours)
    assert seen in told.replace(b"123\r\n123\r\n", b"123\r\n").replace(b"123\r\ncode? ", b"code? 123\r\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side has ended
        return b""


class _Headers(BaseHTTPRequestHandler):
    """A server that tells what it was sent."""

    def do_GET(self) -> None:
        body = json.dumps(self.headers.items()).encode()
        self.send_response(200)
        if self.headers["Accept-Encoding"] == "gzip":
            body = gzip.compress(body)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Write nothing."""


@pytest.fixture
def telling(tmp_path: Path) -> Iterator[Place]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Headers) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield Place(tmp_path, f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join(10)


def test_a_kubeconfig_may_want_no_compression(telling: Place) -> None:
    server = telling.open({}, **{"disable-compression": True})
    assert ["Accept-Encoding", "gzip"] not in json.loads(server.get("/"))
    server.close()


@cases(
    ("user", "sent"),
    [
        ({"token": "t"}, [("Authorization", "Bearer t")]),
        ({"username": "ann", "password": "ü:x"}, [("Authorization", "Basic YW5uOsO8Ong=")]),
        ({"auth-provider": {"name": "oidc", "config": {"id-token": "i"}}}, [("Authorization", "Bearer i")]),
        ({}, []),
        (
            {"token": "t", "as": "bob", "as-uid": "5", "as-groups": ["x", "y"], "as-user-extra": {"a/b": ["c", "d"]}},
            [
                ("Impersonate-User", "bob"),
                ("Impersonate-Uid", "5"),
                ("Impersonate-Group", "x"),
                ("Impersonate-Group", "y"),
                ("Impersonate-Extra-a%2Fb", "c"),
                ("Impersonate-Extra-a%2Fb", "d"),
                ("Authorization", "Bearer t"),
            ],
        ),
    ],
)
def test_what_each_request_carries(telling: Place, user: dict[str, Any], sent: list[tuple[str, str]]) -> None:
    server = telling.open(user)
    carried = [(name, value) for name, value in json.loads(server.get("/"))]
    assert [(name, value) for name, value in carried if name.startswith(("Auth", "Imp"))] == sent
    assert ("Accept-Encoding", "gzip") in carried
    [line] = server.stream("/", {}, 10.0)  # lines come as they are written
    assert json.loads(line)
    server.close()
