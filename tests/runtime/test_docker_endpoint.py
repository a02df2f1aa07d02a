"""The engine's address and certificates, found as the docker command finds them."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.domain.errors import RuntimeFault, RuntimeUnavailableError
from gputui.domain.kept_data import EngineRecord
from gputui.domain.settings import RuntimeSettings
from gputui.runtime.docker import endpoint
from gputui.runtime.docker.connection import Connection
from gputui.runtime.docker.endpoint import (
    Endpoint,
    TlsFiles,
    Tunnel,
    environment,
    find_endpoint,
    keep_context,
    use_recorded,
)
from gputui.runtime.docker.transport import EngineSocket, base_url, dialled
from tests.cases import cases
from tests.needs import need
from tests.runtime.standin_engine import Handler, StandInEngine

VARIABLES = ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")


@pytest.fixture(autouse=True)
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Use an empty directory as ~/.docker."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # restored afterwards, also where gputui sets it
    monkeypatch.setattr(endpoint, "_recorded", {})
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    (tmp_path / "docker").mkdir()
    return tmp_path / "docker"


def add_context(config: Path, name: str, host: str, *, current: bool = False, skips: bool = False) -> Path:
    """Add a context as `docker context create` does; returns where its certificates go."""
    if current:
        (config / "config.json").write_text(json.dumps({"currentContext": name}))
    key = hashlib.sha256(name.encode()).hexdigest()
    folder = config / "contexts" / "meta" / key
    folder.mkdir(parents=True)
    meta = {"Name": name, "Metadata": {}, "Endpoints": {"docker": {"Host": host, "SkipTLSVerify": skips}}}
    (folder / "meta.json").write_text(json.dumps(meta))
    return config / "contexts" / "tls" / key / "docker"


def test_the_default_address_is_the_local_socket() -> None:
    assert find_endpoint(RuntimeSettings()).url == "unix:///var/run/docker.sock"


def test_contexts(config: Path) -> None:
    # the current context is used
    add_context(config, "lab", "ssh://alice@gpu1", current=True)
    found = find_endpoint(RuntimeSettings())
    assert (found.url, found.socket_path, found.is_ssh) == ("ssh://alice@gpu1", None, True)
    # one that is damaged is named
    damaged: list[object] = [{}, ["x"], {"docker": "x"}, {"docker": {}}]
    for endpoints in damaged:
        [meta] = config.glob("contexts/meta/*/meta.json")
        meta.write_text(json.dumps({"Name": "lab", "Endpoints": endpoints}))
        with pytest.raises(RuntimeFault, match="the docker context 'lab' names no host"):
            find_endpoint(RuntimeSettings())
    # a config file that cannot be read is named
    (config / "config.json").write_text("{")
    with pytest.raises(RuntimeFault, match=r"config\.json"):
        find_endpoint(RuntimeSettings())


def test_the_context_of_the_environment_needs_no_config_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_context(config, "lab", "tcp://gpu1:2376")
    monkeypatch.setenv("DOCKER_CONTEXT", "lab")
    assert not (config / "config.json").exists()
    found = find_endpoint(RuntimeSettings())
    assert (found.url, found.context) == ("tcp://gpu1:2376", "lab")
    monkeypatch.setenv("DOCKER_CONTEXT", "none")
    with pytest.raises(RuntimeFault, match="no docker context 'none'"):
        find_endpoint(RuntimeSettings())


def test_a_kept_context_outlasts_docker_context_use(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_context(config, "lab", "tcp://gpu1:2376", current=True)
    keep_context()
    add_context(config, "other", "tcp://gpu2:2376", current=True)
    assert find_endpoint(RuntimeSettings()).url == "tcp://gpu1:2376"
    monkeypatch.setenv("DOCKER_CONTEXT", "")
    (config / "config.json").unlink()
    keep_context()
    add_context(config, "third", "tcp://gpu3:2376", current=True)
    assert find_endpoint(RuntimeSettings()).url == "unix:///var/run/docker.sock"
    monkeypatch.setenv("DOCKER_HOST", "ssh://gpu4")
    assert find_endpoint(RuntimeSettings()).url == "ssh://gpu4"


CERTIFICATES = {"DOCKER_HOST": "tcp://gpu1:2376", "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": "/certs"}
UNVERIFIED = {"DOCKER_HOST": "tcp://gpu1:2376", "DOCKER_TLS": "1", "DOCKER_CERT_PATH": "/certs"}
TLS = EngineRecord("id", "gpu1", "tcp://gpu1:2376", certificates="/certs")


@pytest.mark.parametrize(
    ("engine", "variables", "expected"),
    [
        (EngineRecord("id", "gpu1", "ssh://gpu1"), {}, {"DOCKER_HOST": "ssh://gpu1"}),
        (EngineRecord("id", "here", "unix:///var/run/docker.sock"), {}, {}),
        (TLS, {}, CERTIFICATES),
        (replace(TLS, verifies=False), {}, UNVERIFIED),
        (EngineRecord("id", "gpu1", "tcp://gpu1:2375"), {"DOCKER_TLS_VERIFY": "1"}, {"DOCKER_HOST": "tcp://gpu1:2375"}),
        (EngineRecord("id", "gpu1", "ssh://gpu1", context="lab"), {}, {"DOCKER_CONTEXT": "lab"}),
        (EngineRecord("id", "gpu1", "ssh://gpu9", context="lab"), {}, {"DOCKER_HOST": "ssh://gpu9"}),
        (EngineRecord("id", "gpu1", "ssh://gpu1", context="gone"), {}, {"DOCKER_HOST": "ssh://gpu1"}),
        (TLS, {"DOCKER_HOST": "ssh://gpu2"}, {"DOCKER_HOST": "ssh://gpu2"}),
        (TLS, {"DOCKER_CONTEXT": "default"}, {"DOCKER_CONTEXT": "default"}),
    ],
)
def test_the_engine_of_a_queue_counts_where_nothing_names_one(
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: EngineRecord,
    variables: dict[str, str],
    expected: dict[str, str],
) -> None:
    add_context(config, "lab", "ssh://gpu1")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    use_recorded(engine, config)
    assert {name: value for name, value in environment().items() if name in VARIABLES and value} == expected
    assert dict(os.environ) == before, "jobs may be given the environment"


def test_a_silent_engine_that_a_record_named_says_so(config: Path) -> None:
    use_recorded(EngineRecord("id", "gpu1", f"unix://{config}/none.sock"), config / "engine.json")
    with pytest.raises(RuntimeFault) as told:
        Connection(RuntimeSettings()).open()
    words = f"the address is from {config}/engine.json, as the environment names no engine"
    assert f"; {words}" in str(told.value)
    connection = Connection(RuntimeSettings())
    connection.endpoint = find_endpoint(RuntimeSettings())
    assert connection.lost(RuntimeUnavailableError("it is gone")).hint == words


def test_a_chosen_context_wins_over_the_engine_of_a_queue(config: Path) -> None:
    add_context(config, "lab", "ssh://gpu1", current=True)
    use_recorded(TLS, config)
    assert find_endpoint(RuntimeSettings()).url == "ssh://gpu1"


def test_docker_host_wins_over_the_context(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_context(config, "lab", "tcp://gpu1:2376", current=True)
    monkeypatch.setenv("DOCKER_HOST", "tcp://gpu2:2375")
    assert find_endpoint(RuntimeSettings()).url == "tcp://gpu2:2375"
    assert find_endpoint(RuntimeSettings(docker_host="unix:///x.sock")).url == "unix:///x.sock"


@cases("url", ["npipe:////./pipe/docker_engine", "fd://3", "ftp://x"])
def test_an_unsupported_kind_of_address_is_refused(url: str) -> None:
    with pytest.raises(RuntimeFault, match="not an address of an engine"):
        find_endpoint(RuntimeSettings(docker_host=url))


@cases(
    ("url", "expected"),
    [
        ("unix://var/run/x.sock", "unix:///var/run/x.sock"),
        ("/run/x.sock", "unix:///run/x.sock"),
        ("tcp://gpu1", "http://gpu1:2375"),
        ("tcp://[::1]:9", "http://[::1]:9"),
        ("https://gpu1", "https://gpu1:2376"),
    ],
)
def test_addresses_are_converted_for_docker_py(url: str, expected: str) -> None:
    assert base_url(find_endpoint(RuntimeSettings(docker_host=url))) == expected


# TLS


def fill(directory: Path, *names: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / name).touch()


@cases(
    ("variables", "verifies"),
    [
        ({"DOCKER_TLS_VERIFY": "1"}, True),
        ({"DOCKER_TLS_VERIFY": "0"}, True),
        ({"DOCKER_TLS": "1"}, False),
        ({"DOCKER_TLS": "1", "DOCKER_TLS_VERIFY": "yes"}, True),
        ({"DOCKER_TLS_VERIFY": ""}, None),
        ({}, None),
    ],
)
def test_tls_settings_of_the_environment_are_used(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], verifies: bool | None
) -> None:
    fill(config, "ca.pem")
    fill(tmp_path / "certs", "ca.pem", "cert.pem", "key.pem")
    monkeypatch.setenv("DOCKER_HOST", "tcp://gpu2:2376")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = find_endpoint(RuntimeSettings()).tls
    assert (found and found.verifies) == verifies
    assert found is None or (found.ca, found.certificate) == (config / "ca.pem", None)
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path / "certs"))
    found = find_endpoint(RuntimeSettings()).tls
    assert (found is None) == (verifies is None), "DOCKER_CERT_PATH alone turns nothing on"
    assert found is None or found.key == tmp_path / "certs" / "key.pem"
    assert find_endpoint(RuntimeSettings(docker_host="unix:///x.sock")).tls is None


def test_an_incomplete_pair_of_key_and_certificate_is_named(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(config, "cert.pem")
    monkeypatch.setenv("DOCKER_TLS", "1")
    with pytest.raises(RuntimeFault, match=r"key\.pem is missing"):
        find_endpoint(RuntimeSettings(docker_host="tcp://gpu1:1"))


def test_a_context_has_certificates_of_its_own(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(add_context(config, "lab", "tcp://gpu1:2376", current=True), "ca.pem", "cert.pem", "key.pem")
    monkeypatch.setenv("DOCKER_TLS", "1")
    found = find_endpoint(RuntimeSettings()).tls
    assert found is not None
    assert found.verifies
    assert found.key is not None
    add_context(config, "lax", "tcp://gpu1:2376", current=True, skips=True)
    lax = find_endpoint(RuntimeSettings()).tls
    assert lax is not None
    assert not lax.verifies
    add_context(config, "plain", "tcp://gpu1:2376", current=True)
    assert find_endpoint(RuntimeSettings()).tls is None


def openssl(directory: Path, *words: str) -> None:
    need("openssl")
    subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an authority, and a certificate for 127.0.0.1 for server and client."""
    made = tmp_path_factory.mktemp("certificates")
    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    openssl(made, *new, "-keyout", "ca-key.pem", "-out", "ca.pem", "-subj", "/CN=an authority")
    names = ("-subj", "/CN=engine", "-addext", "subjectAltName=IP:127.0.0.1")
    by = ("-CA", "ca.pem", "-CAkey", "ca-key.pem")
    openssl(made, *new, "-keyout", "key.pem", "-out", "cert.pem", *names, "-addext", "basicConstraints=CA:FALSE", *by)
    return made


@pytest.fixture
def secured(certificates: Path) -> Iterator[StandInEngine]:
    """Yield an engine that requires a certificate of the authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    context.load_verify_locations(certificates / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    engine = StandInEngine(tls=context)
    yield engine
    engine.close()


def version(url: str) -> Any:
    connection = Connection(RuntimeSettings(docker_host=url))
    try:
        return connection.call(lambda client: client.version())["Version"]
    finally:
        connection.close()


def test_tls_ignores_bundles_of_the_environment(
    secured: StandInEngine, certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bundle for the web in REQUESTS_CA_BUNDLE does not replace the engine's authority."""
    other = tmp_path / "other.pem"
    openssl(tmp_path, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", "other-key.pem", "-out", "other.pem", "-subj", "/CN=other")  # fmt: skip
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(certificates))
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.setenv(name, str(other))
        assert version(secured.url) == "28.3.0"
    (certificates / "ca.pem").rename(certificates / "kept")
    try:
        with pytest.raises(RuntimeFault, match="certificate"):
            version(secured.url)
        monkeypatch.delenv("DOCKER_TLS_VERIFY")
        monkeypatch.setenv("DOCKER_TLS", "1")
        assert version(secured.url) == "28.3.0"
    finally:
        (certificates / "kept").rename(certificates / "ca.pem")


def asked(stream: EngineSocket) -> bytes:
    """Return the answer to a request that ends the connection, as a stream of an attached container would begin."""
    with closing(stream):
        stream.sendall(b"GET /v1.44/version HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n\r\n")
        answer = b""
        while more := stream.recv(65536):
            answer += more
    return answer


def test_streams_reach_an_engine_behind_a_socket_and_a_port(tmp_path: Path) -> None:
    for engine in (StandInEngine(tmp_path / "docker.sock"), StandInEngine()):
        stream = dialled(Endpoint(engine.url), 5)
        if stream.plain.family == socket.AF_INET:  # a broken line is noticed although a stream may be silent for days
            assert stream.plain.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert b"28.3.0" in asked(stream)
        engine.close()
    with pytest.raises(OSError, match="No such file"):
        dialled(Endpoint(f"unix://{tmp_path}/missing.sock"), 5)


def test_streams_are_encrypted_as_requests_are(secured: StandInEngine, certificates: Path, tmp_path: Path) -> None:
    ours = (certificates / "cert.pem", certificates / "key.pem")
    damaged = tmp_path / "ca.pem"
    damaged.write_text("no certificate")  # docker does not read it either where it verifies nothing
    unverified = (TlsFiles(None, *ours, verifies=False), TlsFiles(damaged, *ours, verifies=False))
    for tls in (TlsFiles(certificates / "ca.pem", *ours), *unverified):
        assert b"28.3.0" in asked(dialled(Endpoint(secured.url, tls), 5))
    with pytest.raises(ssl.SSLCertVerificationError):
        dialled(Endpoint(secured.url, TlsFiles(None, *ours)), 5)
    with pytest.raises((ssl.SSLError, ConnectionError)):  # TLS 1.3: the server refuses after the client is done
        asked(dialled(Endpoint(secured.url, TlsFiles(certificates / "ca.pem")), 5))


@pytest.mark.parametrize("size", [0, 7, 200_000])
def test_the_input_of_an_encrypted_stream_ends_and_its_output_goes_on(
    secured: StandInEngine, certificates: Path, size: int
) -> None:
    """Output that came before is not lost with the sending half."""

    def answer(handler: Handler, query: dict[str, str]) -> None:
        handler.wfile.write(b"early" * size)
        told = handler.rfile.read()  # to its end
        handler.wfile.write(b"%d told" % len(told) + b"late" * size)
        handler.close_connection = True

    secured.special["/stream"] = answer
    tls = TlsFiles(certificates / "ca.pem", certificates / "cert.pem", certificates / "key.pem")
    with closing(dialled(Endpoint(secured.url, tls), 10)) as stream:
        stream.sendall(b"GET /stream HTTP/1.1\r\n\r\n" + b"x" * 1000)
        received = stream.recv(3) if size else b""  # the rest of what was read with it waits
        stream.end_sending()
        while piece := stream.recv(65536):
            received += piece
    assert received == b"early" * size + b"1000 told" + b"late" * size


def test_a_directory_of_certificates_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://gpu1:2376")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path / "none"))
    with pytest.raises(RuntimeFault, match=r"DOCKER_CERT_PATH is .*/none, which is no directory"):
        find_endpoint(RuntimeSettings())


@cases("url", ["ssh://", "ssh://h:-22", "ssh://-oProxyCommand=x"])
def test_a_bad_ssh_address_is_told_at_each_call_and_closing_is_quiet(url: str) -> None:
    connection = Connection(RuntimeSettings(docker_host=url))
    for _ in range(2):
        with pytest.raises(RuntimeFault, match="is not an ssh address"):
            connection.call(lambda client: client.version(), patient=False)
    connection.close()


def test_a_host_that_never_stops_talking_fills_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nexec cat /dev/zero\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/tmp")
    tunnel = Tunnel("ssh://gpu1")
    try:
        with pytest.raises(RuntimeUnavailableError, match="ssh to gpu1 failed: ssh ended"):
            tunnel.socket_path()
    finally:
        tunnel.close()
