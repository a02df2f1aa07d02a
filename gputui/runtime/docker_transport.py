"""The client of an engine: docker-py over connections that are few, watched and can be cut from any thread.

Imported only when an engine is spoken to: it loads docker-py.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakSet

import urllib3
from docker import APIClient
from docker.constants import DEFAULT_DOCKER_API_VERSION
from requests import PreparedRequest
from requests.adapters import HTTPAdapter
from requests.utils import get_environ_proxies
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool

from gputui.runtime.docker_endpoint import Endpoint, TlsFiles

_PLAIN_PORT, _TLS_PORT = 2375, 2376
_SOCKET_URL = "http+docker://localhost"
"""Address docker-py gives to engines behind a UNIX socket."""
_KEEP_ALIVE = (
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 15_000),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
)
"""A stream may be silent for days: these tell a silent engine from a cut line within 15 seconds."""

Sockets = WeakSet[socket.socket]


class _UnixConnection(HTTPConnection):
    def __init__(self, opened: Sockets, path: str, **options: Any) -> None:
        super().__init__(**options)
        self._opened = opened
        self._path = path

    def connect(self) -> None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _connect(made, self._path, self.timeout)
        except BaseException:
            made.close()
            raise
        self.sock = made
        self._opened.add(made)


def _connect(made: socket.socket, path: str, timeout: float | None) -> None:
    """Connect, and wait while more callers queue at the socket than the engine takes."""
    made.settimeout(timeout)
    deadline = time.monotonic() + (timeout or 0)
    while True:
        try:
            made.connect(path)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


class _TcpConnection(HTTPConnection):
    def __init__(self, opened: Sockets, **options: Any) -> None:
        super().__init__(**options)
        self._opened = opened

    def connect(self) -> None:
        super().connect()
        _settle(self.sock, self._opened)


class _TlsConnection(HTTPSConnection):
    def __init__(self, opened: Sockets, **options: Any) -> None:
        super().__init__(**options)
        self._opened = opened

    def connect(self) -> None:
        super().connect()
        _settle(self.sock, self._opened)


def _settle(made: socket.socket, opened: Sockets) -> None:
    for option in _KEEP_ALIVE:
        made.setsockopt(*option)
    opened.add(made)


class _Adapter(HTTPAdapter):
    """Opens one connection for all paths: docker-py keeps one for each of the last 25 URLs."""

    def __init__(self, socket_path: str | None) -> None:
        super().__init__(pool_connections=1, pool_maxsize=1)
        self.opened: Sockets = WeakSet()
        self._socket_pool: HTTPConnectionPool | None = None
        if socket_path:
            self._socket_pool = HTTPConnectionPool("localhost", maxsize=1)
            _connect_by(self._socket_pool, partial(_UnixConnection, self.opened, socket_path))

    def get_connection_with_tls_context(
        self, request: PreparedRequest, verify: Any, proxies: Any = None, cert: Any = None
    ) -> HTTPConnectionPool:
        if self._socket_pool:
            return self._socket_pool
        pool = super().get_connection_with_tls_context(request, verify, proxies, cert)
        assert isinstance(pool, HTTPConnectionPool)
        _connect_by(pool, partial(_TlsConnection if pool.scheme == "https" else _TcpConnection, self.opened))
        return pool

    def request_url(self, request: PreparedRequest, proxies: Mapping[str, str] | None) -> str:
        return request.path_url if self._socket_pool else super().request_url(request, proxies)

    def close(self) -> None:
        super().close()
        if self._socket_pool:
            self._socket_pool.close()


def _connect_by(pool: HTTPConnectionPool, connect: Any) -> None:
    pool.ConnectionCls = connect


class EngineClient(APIClient):
    """docker-py's client for an endpoint, independent of the environment's certificates and passwords."""

    def __init__(self, endpoint: Endpoint, *, timeout: float, version: str | None = None) -> None:
        """Make a client of that API version; None: only to ask for the version. Connects to nothing."""
        url = base_url(endpoint)
        super().__init__(base_url=url, version=version or DEFAULT_DOCKER_API_VERSION, timeout=timeout)  # type: ignore[arg-type]
        self._adapter = _Adapter(endpoint.socket_path)
        for prefix in ("http+docker://", "http://", "https://"):
            self.mount(prefix, self._adapter)
        # REQUESTS_CA_BUNDLE would replace the engine's own authority, and .netrc send a password
        self.trust_env = False
        if not endpoint.socket_path:
            self.proxies = _proxies(url)
            self.verify, self.cert = _certificates(endpoint.tls)

    def shut_down(self) -> None:
        """End what goes on over this client's connections, from any thread."""
        for each in tuple(self._adapter.opened):
            with suppress(OSError):  # it is closed already
                each.shutdown(socket.SHUT_RDWR)

    def server_version(self) -> str:
        """Ask for the newest API version the engine speaks."""
        return str(self.version(api_version=False)["ApiVersion"])


def base_url(endpoint: Endpoint) -> str:
    """Return the endpoint's address as docker-py takes it, with the docker command's default ports."""
    if endpoint.socket_path:
        return f"unix://{endpoint.socket_path}"
    split = urlsplit(endpoint.url)
    host = split.hostname or "127.0.0.1"
    port = split.port or (_TLS_PORT if endpoint.tls else _PLAIN_PORT)
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if endpoint.tls else 'http'}://{shown}:{port}{split.path.rstrip('/')}"


def _certificates(tls: TlsFiles | None) -> tuple[bool | str, tuple[str, str] | None]:
    """Return what requests takes as `verify` and `cert`."""
    if tls is None:
        return True, None
    pair = (str(tls.certificate), str(tls.key)) if tls.certificate and tls.key else None
    if not tls.verifies:
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # somebody chose so
        return False, pair
    system = ssl.get_default_verify_paths()
    return str(tls.ca) if tls.ca else system.cafile or system.capath or True, pair


def _proxies(url: str) -> dict[str, str]:
    """Return the environment's proxies, which the docker command uses too, but for this machine's own addresses."""
    host = urlsplit(url).hostname or ""
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return {}
    return {} if host == "localhost" else dict(get_environ_proxies(url))
