"""Client of an engine: docker-py with one connection per client, which any thread can shut down.

Imported only when an engine is called, because it loads docker-py. It extends docker-py, requests and urllib3 only at
their public extension points: `Session.mount`, `HTTPAdapter` and `HTTPConnectionPool.ConnectionCls`.
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

import docker.utils.config
import urllib3
from docker import APIClient
from docker.constants import DEFAULT_DOCKER_API_VERSION
from requests import PreparedRequest
from requests.adapters import HTTPAdapter
from requests.utils import get_environ_proxies
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.util.ssl_ import create_urllib3_context

from gputui.runtime.docker.endpoint import Endpoint, TlsFiles

# docker-py parses the user's config.json for each client, and a damaged one would make it raise. Nothing here needs it:
# `endpoint` reads contexts from it, and `credentials` logins
docker.utils.config.find_config_file = lambda config_path=None: None

_PLAIN_PORT, _TLS_PORT = 2375, 2376
_KEEP_ALIVE = (
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 15_000),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
)
"""Options that detect a broken line within 15 seconds, although a healthy stream may be silent for days."""

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
    """Connect, retrying while the socket's backlog is full."""
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
        _configure(self.sock, self._opened)


class _TlsConnection(HTTPSConnection):
    def __init__(self, opened: Sockets, **options: Any) -> None:
        super().__init__(**options)
        self._opened = opened

    def connect(self) -> None:
        super().connect()
        _configure(self.sock, self._opened)


def _configure(made: socket.socket, opened: Sockets) -> None:
    for option in _KEEP_ALIVE:
        made.setsockopt(*option)
    opened.add(made)


class _Adapter(HTTPAdapter):
    """Transport with one connection for all paths: docker-py keeps one for each of the last 25 URLs."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._tls = endpoint.tls
        super().__init__(pool_connections=1, pool_maxsize=1)
        socket_path = endpoint.socket_path
        self.opened: Sockets = WeakSet()
        self._socket_pool: HTTPConnectionPool | None = None
        if socket_path:
            self._socket_pool = HTTPConnectionPool("localhost", maxsize=1)
            _connect_by(self._socket_pool, partial(_UnixConnection, self.opened, socket_path))

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        if self._tls:
            options["ssl_context"] = _lenient(create_urllib3_context(), self._tls)
        super().init_poolmanager(*args, **options)

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
    """docker-py client for an endpoint, independent of certificates and passwords in the environment."""

    def __init__(self, endpoint: Endpoint, *, timeout: float, version: str | None = None) -> None:
        """Create a client of that API version; None: only for requesting the version. Does not connect."""
        url = base_url(endpoint)
        super().__init__(base_url=url, version=version or DEFAULT_DOCKER_API_VERSION, timeout=timeout)  # type: ignore[arg-type]
        self._adapter = _Adapter(endpoint)
        for prefix in ("http+docker://", "http://", "https://"):
            self.mount(prefix, self._adapter)
        # REQUESTS_CA_BUNDLE would replace the engine's CA, and .netrc would add a password
        self.trust_env = False
        if not endpoint.socket_path:
            self.proxies = _proxies(url)
            self.verify, self.cert = _certificates(endpoint.tls)

    def shut_down(self) -> None:
        """Shut down this client's connections, from any thread."""
        for each in tuple(self._adapter.opened):
            with suppress(OSError):  # already closed
                each.shutdown(socket.SHUT_RDWR)

    def server_version(self) -> str:
        """Return the newest API version of the engine; empty if it names none."""
        return str(self.version(api_version=False).get("ApiVersion") or "")


def dialled(endpoint: Endpoint, timeout: float) -> socket.socket:
    """Return a socket connected to the engine, for streams that leave HTTP behind. Raises OSError."""
    if endpoint.socket_path:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _connect(made, endpoint.socket_path, timeout)
        except BaseException:
            made.close()
            raise
        return made
    split = urlsplit(base_url(endpoint))
    host = split.hostname or "127.0.0.1"
    plain = socket.create_connection((host, split.port or _PLAIN_PORT), timeout)
    for option in _KEEP_ALIVE:
        plain.setsockopt(*option)
    return _encrypted(plain, endpoint.tls, host) if endpoint.tls else plain


def _lenient(context: ssl.SSLContext, tls: TlsFiles) -> ssl.SSLContext:
    """Let it take what docker takes: an authority made as Docker's manual tells has no key usage.

    From Python 3.13 on such a certificate is refused by default.
    """
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not tls.verifies:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _encrypted(plain: socket.socket, tls: TlsFiles, host: str) -> socket.socket:
    verify, pair = _certificates(tls)
    context = _lenient(ssl.create_default_context(cafile=verify if isinstance(verify, str) else None), tls)
    if pair is not None:
        context.load_cert_chain(*pair)
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


def base_url(endpoint: Endpoint) -> str:
    """Return the endpoint's address for docker-py, with the docker command's default ports."""
    if endpoint.socket_path:
        return f"unix://{endpoint.socket_path}"
    split = urlsplit(endpoint.url)
    host = split.hostname or "127.0.0.1"
    port = split.port or (_TLS_PORT if endpoint.tls else _PLAIN_PORT)
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if endpoint.tls else 'http'}://{shown}:{port}{split.path.rstrip('/')}"


def _certificates(tls: TlsFiles | None) -> tuple[bool | str, tuple[str, str] | None]:
    """Return the values of requests' `verify` and `cert`."""
    if tls is None:
        return True, None
    pair = (str(tls.certificate), str(tls.key)) if tls.certificate and tls.key else None
    if not tls.verifies:
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # the user disabled verification
        return False, pair
    system = ssl.get_default_verify_paths()
    return str(tls.ca) if tls.ca else system.cafile or system.capath or True, pair


def _proxies(url: str) -> dict[str, str]:
    """Return the environment's proxies, as the docker command does, except for loopback addresses."""
    host = urlsplit(url).hostname or ""
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return {}
    return {} if host == "localhost" else dict(get_environ_proxies(url))
