"""Ways to the API server: TLS, certificates of users, and proxies, for requests and for commands in pods alike."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from urllib3.util import parse_url

from gputui.cluster.kubernetes.api_server import ApiServer, connect, is_direct
from gputui.cluster.kubernetes.cluster import KubernetesCluster
from gputui.domain.container import ExecRequest
from gputui.domain.errors import ClusterUnavailableError
from gputui.domain.job_spec import Submission
from gputui.domain.settings import Settings
from gputui.domain.state import JobState
from tests.cases import cases
from tests.cluster.talk import Talk
from tests.factories import spec
from tests.kubernetes.fake.access import ADMIN
from tests.kubernetes.fake.server import FakeKubernetes
from tests.kubernetes.waiting import until
from tests.needs import need

_V1 = "client.authentication.k8s.io/v1"


def openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


class Certificates:
    """An authority, a server's certificate for the name kube.test, and a user's."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._signed = ("-CA", directory / "ca.crt", "-CAkey", directory / "ca.key")
        self._make("ca", "/CN=ca")
        self._make("server", "/CN=kubernetes", "-addext", "subjectAltName=DNS:kube.test", *self._signed)
        self._make("user", "/CN=ann", *self._signed)

    def _make(self, name: str, subject: str, *more: str | Path) -> None:
        new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30")
        place = self.directory / name
        openssl(*new, "-keyout", f"{place}.key", "-out", f"{place}.crt", "-subj", subject, *more)

    def data(self, name: str) -> str:
        return base64.b64encode((self.directory / name).read_bytes()).decode()

    def context(self, *, wants_users: bool) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.directory / "server.crt", self.directory / "server.key")
        if wants_users:
            context.load_verify_locations(self.directory / "ca.crt")
            context.verify_mode = ssl.CERT_REQUIRED
        return context


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    need("openssl")
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def fake(made: Certificates, request: pytest.FixtureRequest) -> Iterator[FakeKubernetes]:
    fake = FakeKubernetes(tls=made.context(wants_users=getattr(request, "param", False)))
    yield fake
    fake.close()


def config(made: Certificates, fake: FakeKubernetes, user: dict[str, Any], **cluster: Any) -> Path:
    """Write a kubeconfig beside the certificates."""
    file = made.directory / "config"
    there = {"server": fake.address, "tls-server-name": "kube.test", "certificate-authority": "ca.crt"}
    value = {
        "current-context": "a",
        "clusters": [{"name": "a", "cluster": there | cluster}],
        "users": [{"name": "a", "user": user}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    }
    file.write_text(json.dumps(value))
    return file


def opened(made: Certificates, fake: FakeKubernetes, user: dict[str, Any] | None = None, **cluster: Any) -> ApiServer:
    return connect(None, {"KUBECONFIG": str(config(made, fake, user or {"token": ADMIN}, **cluster))}, 10.0)


@cases(
    "cluster",
    [
        {},
        {"certificate-authority": "no such file", "certificate-authority-data": "ca.crt"},
        {"certificate-authority": None, "insecure-skip-tls-verify": True, "tls-server-name": None},
    ],
)
def test_a_server_is_known_by_its_certificate(
    made: Certificates, fake: FakeKubernetes, cluster: dict[str, Any]
) -> None:
    if "certificate-authority-data" in cluster:
        cluster = cluster | {"certificate-authority-data": made.data("ca.crt")}
    server = opened(made, fake, **cluster)
    assert server.get("/api/v1/nodes")
    server.close()


@cases(
    ("cluster", "words"),
    [
        ({"tls-server-name": None}, "Hostname mismatch|IP address mismatch|doesn't match"),
        ({"certificate-authority": None}, "CERTIFICATE_VERIFY_FAILED"),
        ({"certificate-authority": "ca.key"}, "the certificate-authority is no certificate"),
        ({"certificate-authority": "nowhere.crt"}, "the certificate-authority cannot be read: No such file"),
    ],
)
def test_another_server_gets_nothing(
    made: Certificates, fake: FakeKubernetes, cluster: dict[str, Any], words: str
) -> None:
    server = opened(made, fake, **cluster)
    with pytest.raises(ClusterUnavailableError, match=words):
        server.get("/version")
    assert not fake.requests
    server.close()


@pytest.mark.parametrize("fake", [True], indirect=True)
def test_a_user_has_a_certificate(made: Certificates, fake: FakeKubernetes) -> None:
    pair = {"client-certificate": "user.crt", "client-key-data": made.data("user.key")}
    server = opened(made, fake, pair | {"token": ADMIN})
    assert server.get("/api/v1/nodes")
    server.close()
    without = opened(made, fake)
    with pytest.raises(ClusterUnavailableError, match="Kubernetes does not answer"):
        without.get("/api/v1/nodes")
    without.close()


@pytest.mark.parametrize("fake", [True], indirect=True)
def test_a_program_that_logs_in_gives_a_certificate(made: Certificates, fake: FakeKubernetes) -> None:
    pair = {
        "clientCertificateData": (made.directory / "user.crt").read_text(),
        "clientKeyData": (made.directory / "user.key").read_text(),
    }
    told = {"kind": "ExecCredential", "apiVersion": _V1, "status": pair | {"token": ADMIN}}
    (made.directory / "answer").write_text(json.dumps(told))
    program = {"apiVersion": _V1, "command": "cat", "args": [str(made.directory / "answer")]}
    file = config(made, fake, {"exec": program})
    server = connect(None, {"KUBECONFIG": str(file), "PATH": "/usr/bin:/bin"}, 10.0)
    assert server.get("/api/v1/nodes")
    server.close()


def test_a_key_with_a_password_asks_nobody(made: Certificates, fake: FakeKubernetes) -> None:
    locked = made.directory / "locked.key"
    openssl("ec", "-in", made.directory / "user.key", "-out", locked, "-aes256", "-passout", "pass:x")
    server = opened(made, fake, {"client-certificate": "user.crt", "client-key": "locked.key"})
    with pytest.raises(ClusterUnavailableError, match="do not serve: the key is encrypted"):
        server.get("/version")
    server.close()


class _Proxy(BaseHTTPRequestHandler):
    """A proxy that notes where it leads, and who asked."""

    asked: list[tuple[str, str | None]]

    def do_CONNECT(self) -> None:
        self.asked.append((self.path, self.headers["Proxy-Authorization"]))
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port)), 10) as there:
            self.send_response(200)
            self.end_headers()
            back = Thread(target=_copy, args=(there, self.connection), daemon=True)
            back.start()
            _copy(self.connection, there)
            back.join(10)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Write nothing."""


def _copy(one: socket.socket, other: socket.socket) -> None:
    try:
        while data := one.recv(65536):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        return


@pytest.mark.parametrize("is_named", [True, False])
def test_a_proxy_leads_requests_and_commands(
    made: Certificates, fake: FakeKubernetes, tmp_path: Path, is_named: bool
) -> None:
    class Handler(_Proxy):
        asked: list[tuple[str, str | None]] = []  # noqa: RUF012 - each test has its own class

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        proxy = f"http://ann:pw@127.0.0.1:{server.server_port}"
        named = {"proxy-url": proxy} if is_named else {}
        address = fake.address if is_named else f"https://here.test:{fake.port}"
        file = config(made, fake, {"token": ADMIN}, server=address, **named)
        environ = {"KUBECONFIG": str(file)} | ({} if is_named else {"HTTPS_PROXY": proxy, "NO_PROXY": "other.test"})
        if not is_named:  # only the proxy knows that name
            Handler.do_CONNECT = _led_to(fake.port)  # type: ignore[method-assign]
        cluster = KubernetesCluster(lambda: connect(None, environ, 10.0), Settings(), tmp_path / "state", user="ann")
        [job_id] = cluster.submit([Submission(spec())], "k1")
        job = until(lambda: cluster.job(job_id), lambda job: job.state is JobState.RUNNING, "it runs")
        talk = Talk(cluster.enter(job, ExecRequest(("echo", "it"))))
        assert (talk.end(), talk.out) == (0, b"it\n")
        cluster.close()
        assert {who for _, who in Handler.asked} == {"Basic YW5uOnB3"}
        assert len(Handler.asked) > 1
        server.shutdown()
        thread.join(10)


def _led_to(port: int) -> Any:
    def do_connect(self: _Proxy) -> None:
        assert self.path == f"here.test:{port}"
        self.path = f"127.0.0.1:{port}"
        _Proxy.do_CONNECT(self)

    return do_connect


@cases(
    ("address", "words", "is_so"),
    [
        ("https://kube.lab.org:6443", "lab.org", True),
        ("https://kube.lab.org:6443", ".lab.org", True),
        ("https://kube.lab.org:6443", "x, kube.lab.org:6443", True),
        ("https://kube.lab.org:6443", "kube.lab.org:443", False),
        ("https://kubelab.org", "lab.org", False),
        ("https://10.1.2.3:6443", "10.0.0.0/8", True),
        ("https://11.1.2.3:6443", "10.0.0.0/8,,nonsense/99", False),
        ("https://10.1.2.3", "10.1.2.3", True),
        ("https://[fd00::1]:6443", "fd00::/8", True),
        ("https://kube.lab.org", "*", True),
        ("https://localhost:6443", "", True),
        ("https://127.0.0.1:6443", "", True),
        ("https://[::1]:6443", "", True),
    ],
)
def test_where_no_proxy_is_asked(address: str, words: str, is_so: bool) -> None:
    assert is_direct(parse_url(address), words) is is_so
