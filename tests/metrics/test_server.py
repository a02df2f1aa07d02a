"""The metrics port: plain, by TLS and with passwords; refusals, and malicious clients."""

from __future__ import annotations

import base64
import http.client
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from msgspec.structs import replace
from prometheus_client import Metric
from prometheus_client.registry import Collector

from gputui.config.settings_file import listen_address
from gputui.domain.errors import InputError
from gputui.domain.settings import MetricsSettings, Settings
from gputui.metrics import server
from gputui.metrics.exporter import Exporter
from gputui.metrics.server import Users, read_users, tls_context
from tests.cases import cases
from tests.factories import load_settings, snapshot

HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
SECRET = {"Authorization": "Basic " + base64.b64encode(b"alice:secret").decode()}
OTHERS = 65534


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    path.write_text(f"# who may scrape\nalice:{HASH}\n")
    path.chmod(0o600)
    return path


class Said(list[str]):
    """Sentences of an exporter that tests can wait for."""

    def __init__(self) -> None:
        super().__init__()
        self._more = threading.Condition()

    def __call__(self, sentence: str) -> None:
        with self._more:
            self.append(sentence)
            self._more.notify_all()

    def until(self, words: str) -> str:
        """Wait for a sentence with these words."""
        with self._more:
            assert self._more.wait_for(lambda: any(words in each for each in self), 60), f"{words}: {list(self)}"
            return next(each for each in self if words in each)


@contextmanager
def exported(state: Path, **settings: object) -> Iterator[tuple[Exporter, Said]]:
    said = Said()
    metrics = MetricsSettings(**{"enabled": True, "listen": "0", **settings})  # type: ignore[arg-type]
    exporter = Exporter(Settings(metrics=metrics), state, said=said)
    exporter.published(snapshot())
    try:
        yield exporter, said
    finally:
        exporter.close()


Opened = Callable[..., tuple[int, bytes]]


def get(
    port: int, path: str = "/metrics", headers: dict[str, str] | None = None, host: str = "127.0.0.1"
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(host, port, timeout=20)
    connection.request("GET", path, headers=headers or {})
    answer = connection.getresponse()
    try:
        return answer.status, answer.read()
    finally:
        connection.close()


def port_of(said: Said) -> int:
    return int(said.until("metrics at http").rpartition("/metrics")[0].rpartition(":")[2])


def test_only_metrics_are_served_and_only_on_loopback(tmp_path: Path) -> None:
    with exported(tmp_path) as (exporter, said):
        port = port_of(said)
        status, page = get(port)
        assert (status, b"gputui_build_info" in page) == (200, True)
        assert get(port, "/")[1].count(b"/metrics") == 1
        assert b"gputui_build_info" in get(port, "/metrics?name[]=gputui_build_info")[1]
        assert get(port, "/etc/passwd")[0] == 404
        assert exporter.address == ("127.0.0.1", port)
        assert exporter.notices() == ()
    with pytest.raises(ConnectionRefusedError):
        get(port)


def test_ipv6_is_served_where_its_address_is_named(tmp_path: Path) -> None:
    with exported(tmp_path, listen="[::1]:0") as (_, said):
        port = port_of(said)
        assert "http://[::1]:" in said[0]
        assert get(port, host="::1")[0] == 200


def test_users_need_the_right_password(tmp_path: Path, users: Path) -> None:
    with exported(tmp_path, users=str(users)) as (_, said):
        port = port_of(said)
        assert get(port)[0] == 401
        for wrong in ("alice:wrong", "bob:secret", "alice", ":"):
            header = {"Authorization": "Basic " + base64.b64encode(wrong.encode()).decode()}
            assert get(port, headers=header) == (401, b"name and password are needed\n"), wrong
        assert get(port, headers={"Authorization": "Bearer x"})[0] == 401
        assert get(port, headers=SECRET)[0] == 200
        assert not any("warning" in each for each in said)


def test_the_port_speaks_tls_but_no_plain_http(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = map(str, certificate)
    with exported(tmp_path, certificate=cert, key=key) as (_, said):
        port = port_of(said)
        context = ssl.create_default_context(cafile=cert)
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=20)
        with socket.create_connection(("127.0.0.1", port)):  # a silent client delays no other
            connection.request("GET", "/metrics")
            assert connection.getresponse().status == 200
        connection.close()
        with pytest.raises((http.client.BadStatusLine, ConnectionResetError)):
            get(port)


def test_clients_need_a_certificate_where_an_authority_is_named(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = map(str, certificate)
    with exported(tmp_path, certificate=cert, key=key, client_ca=cert) as (_, said):
        port = port_of(said)
        context = ssl.create_default_context(cafile=cert)
        with pytest.raises((ssl.SSLError, ConnectionResetError, http.client.RemoteDisconnected)):
            _get_by_tls(port, context)
        context.load_cert_chain(cert, key)
        assert _get_by_tls(port, context) == 200


def _get_by_tls(port: int, context: ssl.SSLContext) -> int:
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=20)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_port_in_use_is_reported_and_opened_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gputui.metrics.exporter.EVERY", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with exported(tmp_path, listen=f"127.0.0.1:{port}") as (exporter, said):
            assert "Address already in use; scheduling continues" in said.until("no metrics are served")
            [notice] = exporter.notices()
            assert "Address already in use" in notice.text
            exporter.published(snapshot())
            other.close()
            said.until("metrics at")
            assert get(port)[0] == 200
            assert exporter.notices() == ()
        assert len(said) == 2


def test_a_warning_names_what_other_machines_can_read(tmp_path: Path) -> None:
    with exported(tmp_path, listen="0.0.0.0:0") as (_, said):
        said.until("warning: other machines can read the metrics")


@cases("with_tls", [False, True])
@cases("sent", [b"", b"GET /metrics HTTP/1.1\r\nX: "])
def test_slow_clients_keep_no_scrape_out(
    tmp_path: Path, certificate: tuple[Path, Path], with_tls: bool, sent: bytes
) -> None:
    """Sixty of them, of which each would be waited for; a scrape takes the place of the one that came first."""
    cert, key = map(str, certificate)
    with ExitStack() as clients, exported(tmp_path, **({"certificate": cert, "key": key} if with_tls else {})) as it:
        port = port_of(it[1])
        for _ in range(60):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(sent)
        begun = time.monotonic()
        context = ssl.create_default_context(cafile=cert)
        for _ in range(3):
            kind = partial(http.client.HTTPSConnection, context=context) if with_tls else http.client.HTTPConnection
            connection = kind("127.0.0.1", port, timeout=20)
            connection.request("GET", "/metrics")
            assert connection.getresponse().status == 200
            connection.close()
        assert time.monotonic() - begun < server.TIMEOUT / 2


def test_connections_beyond_the_limit_are_closed_while_all_others_are_answered(tmp_path: Path) -> None:
    with exported(tmp_path) as (exporter, said):
        port = port_of(said)
        answering, go_on = threading.Semaphore(0), threading.Event()

        class Waits(Collector):
            def collect(self) -> Iterator[Metric]:
                answering.release()
                go_on.wait(60)
                yield from ()

        exporter.registry.register(Waits())
        with ThreadPoolExecutor(server.MOST) as pool:
            asked = [pool.submit(get, port) for _ in range(server.MOST)]
            assert all(answering.acquire(timeout=60) for _ in asked)
            with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
                get(port)
            go_on.set()
            assert {each.result()[0] for each in asked} == {200}


def test_head_is_answered_as_get_without_the_body(tmp_path: Path, users: Path) -> None:
    with exported(tmp_path) as (_, said):
        connection = http.client.HTTPConnection("127.0.0.1", port_of(said), timeout=20)
        for path, status in (("/metrics", 200), ("/", 200), ("/none", 404)):
            connection.request("HEAD", path)
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (status, b"")
            assert int(answer.headers["Content-Length"]) > 0
    with exported(tmp_path, users=str(users)) as (_, said):
        connection = http.client.HTTPConnection("127.0.0.1", port_of(said), timeout=20)
        connection.request("HEAD", "/metrics")
        assert connection.getresponse().status == 401


@cases("with_tls", [False, True])
def test_a_client_that_sends_byte_by_byte_is_disconnected(
    tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, with_tls: bool
) -> None:
    monkeypatch.setattr(server, "LONGEST", 0.2)
    cert, key = map(str, certificate)
    with exported(tmp_path, **({"certificate": cert, "key": key} if with_tls else {})) as (_, said):
        client = socket.create_connection(("127.0.0.1", port_of(said)))
        if with_tls:
            client = ssl.create_default_context(cafile=cert).wrap_socket(client, server_hostname="localhost")
        with client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
            client.settimeout(0.05)
            assert any(is_closed_after_a_byte(client) for _ in range(400))


def is_closed_after_a_byte(client: socket.socket) -> bool:
    """Send another byte; return whether the server has closed the connection."""
    try:
        client.sendall(b"a")
        client.recv(1)
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@cases(
    ("mode", "words"),
    [(0o604, "can be read or changed by others"), (0o620, "can be read or changed by others"), (0o640, "")],
)
def test_secret_files_are_for_their_owner_and_a_group_of_readers(users: Path, mode: int, words: str) -> None:
    users.chmod(mode)
    if not words:
        assert isinstance(read_users(users), Users)
        return
    with pytest.raises(InputError, match=words):
        read_users(users)


@pytest.mark.needs("root")
def test_a_file_of_another_user_is_not_trusted(users: Path) -> None:
    os.chown(users, OTHERS, OTHERS)
    with pytest.raises(InputError, match="belongs to another user"):
        read_users(users)


@cases(("content", "words"), [("alice:secret\n", "bcrypt"), ("alice\n", "bcrypt"), ("\n# nobody\n", "names no user")])
def test_a_file_of_users_holds_bcrypt_hashes(users: Path, content: str, words: str) -> None:
    users.write_text(content)
    with pytest.raises(InputError, match=words):
        read_users(users)


def test_a_certificate_without_its_key_opens_no_port(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = map(str, certificate)
    assert tls_context(MetricsSettings()) is None
    for settings, where in (
        (MetricsSettings(certificate=cert), "metrics.key"),
        (MetricsSettings(key=key), "metrics.certificate"),
        (MetricsSettings(client_ca=cert), "metrics.client_ca"),
        (MetricsSettings(certificate=key, key=key), "metrics.certificate"),
        (MetricsSettings(certificate=cert, key=str(tmp_path / "none")), "metrics.key"),
    ):
        with pytest.raises(InputError) as raised:
            tls_context(settings)
        assert raised.value.where == where
    with exported(tmp_path, certificate=cert) as (exporter, said):
        said.until("no metrics are served: metrics.key")
        assert exporter.address is None


@cases(
    ("text", "address"),
    [
        ("9877", ("127.0.0.1", 9877)),
        (":9877", ("127.0.0.1", 9877)),
        ("gpu1:80", ("gpu1", 80)),
        ("[::]:9877", ("::", 9877)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
    ],
)
def test_addresses_are_read(text: str, address: tuple[str, int]) -> None:
    assert listen_address(text, "there") == address


@cases("text", ["", "gpu1", "::1:80", "[::1]", "gpu1:99999", "gpu1:-1", "a b:80", "[gpu1]:80"])
def test_invalid_addresses_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.toml").write_text(f'[metrics]\nlisten = "{text}"\n')
    with pytest.raises(InputError, match="not an address with a port") as raised:
        load_settings(tmp_path / "config.toml", {})
    assert raised.value.where == f"{tmp_path}/config.toml: metrics.listen"


def test_an_uncountable_snapshot_fails_no_tick(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken: Any = replace(snapshot(), jobs=(None,))
    with exported(tmp_path) as (exporter, said):
        for _ in range(3):
            exporter.published(broken)
        assert len([record for record in caplog.records if "could not be counted" in record.message]) == 1
        assert get(port_of(said))[0] == 200
