"""Client of an engine: docker-py with one connection per client, which any thread can shut down.

Imported only when an engine is called, because it loads docker-py. It extends docker-py, requests and urllib3 only at
their public extension points: `Session.mount`, `HTTPAdapter` and `HTTPConnectionPool.ConnectionCls`.
"""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakSet

import docker.utils.config
import urllib3
from docker import APIClient
from docker.constants import DEFAULT_DOCKER_API_VERSION
from requests import PreparedRequest
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.util.ssltransport import SSLTransport

from gputui.runtime.docker.endpoint import Endpoint, TlsFiles

# docker-py parses the user's config.json for each client, and a damaged one would make it raise. Nothing here needs it:
# `endpoint` reads contexts from it, and `credentials` logins
docker.utils.config.find_config_file = lambda config_path=None: None

_PLAIN_PORT, _TLS_PORT = 2375, 2376
_SOCKET_OPTIONS: list[tuple[int, int, int | bytes]] = [
    *HTTPConnection.default_socket_options,
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 15_000),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
]
"""Options that detect a broken line within 15 seconds, although a healthy stream may be silent for days."""

_BLOCK = 65536
Sockets = WeakSet[socket.socket]


class _UnixConnection(HTTPConnection):
    def __init__(self, opened: Sockets, path: str, **options: Any) -> None:
        super().__init__(**options)
        self._opened = opened
        self._path = path

    def connect(self) -> None:
        """Connect, retrying while the socket's backlog is full."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(self.timeout)
        deadline = time.monotonic() + (self.timeout or 0)
        try:
            while True:
                try:
                    made.connect(self._path)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)
        except BaseException:
            made.close()
            raise
        self.sock = made
        self._opened.add(made)


class _TcpConnection(HTTPConnection):
    def __init__(self, opened: Sockets, **options: Any) -> None:
        super().__init__(socket_options=_SOCKET_OPTIONS, **options)
        self._opened = opened

    def connect(self) -> None:
        super().connect()
        self._opened.add(self.sock)


class _TlsConnection(_TcpConnection, HTTPSConnection):
    pass


class _Adapter(HTTPAdapter):
    """Transport with one connection for all paths: docker-py keeps one for each of the last 25 URLs."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(pool_connections=1, pool_maxsize=1)
        self.opened: Sockets = WeakSet()
        options: dict[str, Any] = {**_options(endpoint), "opened": self.opened, "maxsize": 1}
        self._pool: Any = (HTTPSConnectionPool if endpoint.tls else HTTPConnectionPool)(**options)
        self._pool.ConnectionCls = _kind(endpoint)

    def get_connection_with_tls_context(self, *args: Any, **options: Any) -> HTTPConnectionPool:
        pool: HTTPConnectionPool = self._pool
        return pool

    def cert_verify(self, *args: Any, **options: Any) -> None:
        """Leave the pool's TLS as it is; requests would add certificates that are trusted for the web."""

    def request_url(self, request: PreparedRequest, proxies: object) -> str:
        return request.path_url

    def close(self) -> None:
        super().close()
        self._pool.close()


class EngineClient(APIClient):
    """docker-py client for an endpoint, independent of certificates and passwords in the environment."""

    def __init__(self, endpoint: Endpoint, *, timeout: float, version: str | None = None) -> None:
        """Create a client of that API version; None: only for requesting the version. Does not connect."""
        spoken = version or DEFAULT_DOCKER_API_VERSION
        super().__init__(base_url=base_url(endpoint), version=spoken, timeout=timeout)  # type: ignore[arg-type]
        self._adapter = _Adapter(endpoint)
        for prefix in ("http+docker://", "http://", "https://"):
            self.mount(prefix, self._adapter)
        # .netrc would add a password
        self.trust_env = False

    def shut_down(self) -> None:
        """Shut down this client's connections, from any thread."""
        for each in tuple(self._adapter.opened):
            with suppress(OSError):  # already closed
                each.shutdown(socket.SHUT_RDWR)

    def server_version(self) -> str:
        """Return the newest API version of the engine; empty if it names none."""
        return str(self.version(api_version=False).get("ApiVersion") or "")


class EngineSocket:
    """Socket for a stream that leaves HTTP behind, with or without TLS; its sending half can be closed."""

    def __init__(self, plain: socket.socket, tls: SSLTransport | None = None) -> None:
        self.plain = plain
        self._tls = tls
        self.settimeout, self.fileno, self.close = plain.settimeout, plain.fileno, plain.close
        self.sendall = tls.sendall if tls else plain.sendall
        self._early = bytearray()

    @property
    def has_pending(self) -> bool:
        """Return whether something was received already, which the descriptor does not tell."""
        return bool(self._early or (self._tls and (self._tls.incoming.pending or self._tls.sslobj.pending())))

    def recv(self, size: int) -> bytes:
        """Return what comes next; empty at the end."""
        if self._early:
            found, self._early = bytes(self._early), bytearray()
            return found
        with suppress(ssl.SSLZeroReturnError):
            return bytes(self._tls.recv(size) or b"") if self._tls else self.plain.recv(size)
        return b""

    def end_sending(self) -> None:
        """Close the sending half. Python's own TLS sockets lose then what has been received and was not read."""
        if self._tls is None:
            self.plain.shutdown(socket.SHUT_WR)
            return
        with suppress(ssl.SSLError):
            while piece := self._tls.sslobj.read(_BLOCK):
                self._early += piece
        with suppress(ssl.SSLWantReadError):  # the engine's own end comes after its output
            self._tls.sslobj.unwrap()
        self.plain.sendall(self._tls.outgoing.read())


def dialled(endpoint: Endpoint, timeout: float) -> EngineSocket:
    """Return a socket connected to the engine. Raises OSError or HTTPError."""
    options = _options(endpoint)
    context = options.pop("ssl_context", None)
    made = (_UnixConnection if endpoint.socket_path else _TcpConnection)(opened=WeakSet(), timeout=timeout, **options)
    made.connect()
    plain: socket.socket = made.sock
    try:
        return EngineSocket(plain, SSLTransport(plain, context, options["host"]) if context else None)
    except BaseException:
        plain.close()
        raise


def _kind(endpoint: Endpoint) -> type[Any]:
    if endpoint.socket_path:
        return _UnixConnection
    return _TlsConnection if endpoint.tls else _TcpConnection


def _options(endpoint: Endpoint) -> dict[str, Any]:
    """Return the options of a connection to the engine."""
    if endpoint.socket_path:
        return {"host": "localhost", "path": endpoint.socket_path}
    split = urlsplit(base_url(endpoint))
    options = {"host": split.hostname, "port": split.port}
    return {**options, "ssl_context": _context(endpoint.tls)} if endpoint.tls else options


def _context(tls: TlsFiles) -> ssl.SSLContext:
    """Return what docker trusts: without an authority of the engine, those of the system.

    The file of the authority is not read where nothing is verified.
    """
    context = ssl.create_default_context(cafile=tls.ca if tls.verifies else None)
    # an authority made as Docker's manual tells has no key usage, and Python refuses it from 3.13 on
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if tls.certificate and tls.key:
        context.load_cert_chain(tls.certificate, tls.key)
    if not tls.verifies:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # the user disabled verification
    return context


def base_url(endpoint: Endpoint) -> str:
    """Return the endpoint's address for docker-py, with the docker command's default ports."""
    if endpoint.socket_path:
        return f"unix://{endpoint.socket_path}"
    split = urlsplit(endpoint.url)
    host = split.hostname or "127.0.0.1"
    port = split.port or (_TLS_PORT if endpoint.tls else _PLAIN_PORT)
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if endpoint.tls else 'http'}://{shown}:{port}{split.path.rstrip('/')}"
