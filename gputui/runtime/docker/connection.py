"""Connections to the engine: a pool of clients for many threads, with back-off and time limits."""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit
from weakref import WeakSet

import docker.utils.config
import urllib3
from docker import APIClient
from docker.constants import DEFAULT_DOCKER_API_VERSION
from msgspec import Struct, field
from requests import PreparedRequest
from requests.adapters import HTTPAdapter
from requests.utils import get_environ_proxies
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.util.ssl_ import create_urllib3_context

from gputui.domain.errors import RuntimeFault, RuntimeUnavailableError
from gputui.domain.settings import RuntimeSettings
from gputui.runtime.docker.endpoint import Endpoint, TlsFiles, find_endpoint
from gputui.runtime.docker.faults import fault, unavailable
from gputui.runtime.ssh_tunnel import TUNNELS, Tunnel

T = TypeVar("T")
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 10.0
"""Longest pause in seconds between attempts to reach an engine."""
MOST_IDLE = 4
IDLE_FOR = 45.0
"""Seconds for which an idle client is kept; at most MOST_IDLE are kept."""


class Deadline(Struct, eq=False):
    """Deadline of a call."""

    at: float
    """Time in monotonic seconds."""
    cut: Callable[[], None]
    """Aborts the call, from another thread."""
    passed: threading.Event = field(default_factory=threading.Event)


class Deadlines:
    """Deadlines of whole calls, watched by one thread that lives only while there are any.

    Socket timeouts limit only each single read.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open: set[Deadline] = set()
        self._is_watching = False

    @contextmanager
    def limit(self, seconds: float | None, cut: Callable[[], None]) -> Iterator[Deadline | None]:
        """Call `cut` unless the block ends within `seconds`; None: no limit."""
        if seconds is None:
            yield None
            return
        deadline = Deadline(time.monotonic() + seconds, cut)
        with self._changed:
            self._open.add(deadline)
            if not self._is_watching:
                self._is_watching = True
                threading.Thread(target=self._watch, name="engine-deadlines", daemon=True).start()
            self._changed.notify()
        try:
            yield deadline
        finally:
            with self._changed:
                self._open.discard(deadline)

    def _watch(self) -> None:
        while late := self._next_late():
            late.passed.set()
            with suppress(Exception):  # the call may have ended meanwhile
                late.cut()

    def _next_late(self) -> Deadline | None:
        """Wait for the next passed deadline; return None when none are left."""
        with self._changed:
            while self._open:
                first = min(self._open, key=lambda each: each.at)
                left = first.at - time.monotonic()
                if left <= 0:
                    self._open.discard(first)
                    return first
                self._changed.wait(left)
            self._is_watching = False
            return None


DEADLINES = Deadlines()
"""Deadlines of all engines of this process."""


def _check_listening(endpoint: Endpoint) -> None:
    """Raise OSError if no process listens on the engine's socket; faster and clearer than a request."""
    if endpoint.socket_path:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(5)
            with suppress(BlockingIOError):  # a full backlog: it listens
                probe.connect(endpoint.socket_path)


class _Idle(Struct):
    """Idle client of the pool."""

    client: EngineClient
    since: float
    """Time in monotonic seconds."""


class Connection:
    """Pool of clients of one engine.

    A requests session serves one thread at a time, so each call borrows a client. A few idle clients are kept for a
    while. A stream keeps its client until it is closed.
    """

    def __init__(self, settings: RuntimeSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._idle: list[_Idle] = []
        self._endpoint: Endpoint | None = None
        self._tunnel: Tunnel | None = None
        self._tunnel_url = ""
        self._api_version: str | None = None
        self._era = 0
        self._pause = 0.0
        self._closed_until = 0.0
        self._last_error: RuntimeUnavailableError | None = None
        self._is_near = False

    @property
    def where(self) -> str:
        """Address of the engine, for messages."""
        return self._endpoint.url if self._endpoint else (self._settings.docker_host or "its address")

    @property
    def endpoint(self) -> Endpoint | None:
        """Address of the engine; None before the first call."""
        return self._endpoint

    @property
    def tunnel(self) -> Tunnel | None:
        """ssh tunnel to the engine, if any."""
        return self._tunnel

    @property
    def client_url(self) -> str | None:
        """Address at which other local programs reach the engine through the same ssh tunnel, if any."""
        return f"unix://{self._tunnel.socket_path()}" if self._tunnel else None

    @property
    def longest_pause(self) -> float:
        """Longest pause in seconds between attempts; short for a local socket, whose check is cheap."""
        return 1.0 if self._is_near else LONGEST_PAUSE

    def call(self, ask: Callable[[APIClient], T], *, patient: bool = True, is_long: bool = False) -> T:
        """Call `ask` with a client and return its result. Raises RuntimeFault or RuntimeUnavailableError.

        While a remote engine does not answer, calls fail at once until the back-off is over, unless `patient` is
        False. A call that exceeds the setting docker_timeout as a whole is aborted, unless `is_long`.
        """
        within = None if is_long else self._timeout
        with self.borrowed(patient=patient) as client, self.translated():
            return _in_time(client, ask, within)

    @property
    def _timeout(self) -> float:
        return self._settings.docker_timeout.total_seconds()

    @contextmanager
    def borrowed(self, *, patient: bool = True) -> Iterator[EngineClient]:
        """Yield a client, and return it to the pool afterwards."""
        era = self._era
        client = self._borrow(patient)
        try:
            yield client
        except RuntimeFault as error:  # the engine answered with an error, so the client works
            if isinstance(error, RuntimeUnavailableError):
                client.close()
            else:
                self._give_back(client, era)
            raise
        except BaseException:
            client.close()
            raise
        self._give_back(client, era)

    def open(self, *, patient: bool = False) -> EngineClient:
        """Return a client for a stream, which the caller closes."""
        return self._borrow(patient)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise errors of docker-py as RuntimeFaults; only those of the connection mean a lost engine."""
        from docker.errors import APIError, DockerException
        from requests.exceptions import InvalidHeader, InvalidSchema, InvalidURL, MissingSchema, RequestException

        since = time.monotonic()
        try:
            yield
        except APIError as error:
            raise fault(_explanation(error), status=error.status_code) from error
        except (DockerException, InvalidHeader, InvalidSchema, InvalidURL, MissingSchema) as error:
            raise fault(str(error)) from error  # docker-py refused the request before it was sent
        except (RequestException, OSError) as error:
            raise self.lost(error, since) from error

    def lost(self, error: BaseException, since: float | None = None) -> RuntimeUnavailableError:
        """Record that the engine does not answer; return the error to raise."""
        found = self._why(error, time.monotonic() if since is None else since)
        with self._lock:
            self._pause = min(max(FIRST_PAUSE, self._pause * 2), LONGEST_PAUSE)
            self._closed_until = time.monotonic() + self._pause
            self._last_error = found
        self.forget()
        return found  # another thread may have connected meanwhile and cleared `_last_error`

    def _why(self, error: BaseException, since: float) -> RuntimeUnavailableError:
        """Return the error for an unreachable engine, from ssh's messages if ssh failed."""
        if isinstance(error, RuntimeUnavailableError):
            return error
        said = self._tunnel.fault(since) if self._tunnel else None
        return said or unavailable(self.where, error)

    def dial(self) -> tuple[socket.socket, str]:
        """Return a newly connected socket, owned by the caller, and the API version to use on it.

        Raises RuntimeUnavailableError.
        """

        with self.borrowed(patient=False) as client:
            version = str(client.api_version)
        with self._reached() as endpoint:
            return dialled(endpoint, self._timeout), version

    def forget(self) -> None:
        """Drop all idle clients and the negotiated version: the next call connects again."""
        with self._lock:
            dropped, self._idle = self._idle, []
            self._era += 1
            self._api_version = None
        _close(dropped)

    def close(self) -> None:
        """Drop all idle clients, and release the ssh tunnel."""
        self.forget()
        with self._lock:
            url, self._tunnel, self._tunnel_url = self._tunnel_url, None, ""
        if url:
            TUNNELS.release(url)

    def _borrow(self, patient: bool) -> EngineClient:
        with self._lock:
            if patient and self._last_error and not self._is_near and time.monotonic() < self._closed_until:
                raise type(self._last_error)(self._last_error.what, hint=self._last_error.hint)
            kept = self._idle.pop().client if self._idle else None
        return self._still_answering(kept) if kept else self._connect()

    def check_listening(self) -> None:
        """Raise RuntimeUnavailableError if a local engine accepts no connections, because it is stopping.

        A stopping engine still answers on open connections. Engines that are not behind a local socket are not checked.
        """
        try:
            if self._endpoint:
                _check_listening(self._endpoint)
        except OSError as error:
            raise self.lost(error) from error

    def _still_answering(self, kept: EngineClient) -> EngineClient:
        """Return the kept client if the engine still listens."""
        try:
            self.check_listening()
        except RuntimeUnavailableError:
            kept.close()
            raise
        return kept

    def _connect(self) -> EngineClient:

        with self._reached() as endpoint:
            # never pinned: engines refuse versions that are too old or too new for them; asked once, then kept
            version = self._api_version or _version(endpoint, self._timeout)
            client = EngineClient(endpoint, timeout=self._timeout, version=version)
        with self._lock:
            self._api_version = version
            self._pause, self._last_error = 0.0, None
        return client

    @contextmanager
    def _reached(self) -> Iterator[Endpoint]:
        """Yield the address to connect to; any failure inside means that the engine does not answer."""
        since = time.monotonic()
        try:
            # never changed: after `docker context use` all containers would appear to be lost
            self._endpoint = self._endpoint or find_endpoint(self._settings)
            self._is_near = self._endpoint.socket_path is not None
            _check_listening(self._endpoint)
            yield self._tunnelled(self._endpoint) if self._endpoint.is_ssh else self._endpoint
        # docker-py raises bare Exceptions of many kinds for a bad TLS file or address
        except Exception as error:
            raise self.lost(error, since) from error

    def _tunnelled(self, endpoint: Endpoint) -> Endpoint:
        """Return the local socket of the tunnel to an engine behind ssh."""
        with self._lock:
            if self._tunnel_url != endpoint.url:
                self._tunnel = TUNNELS.acquire(endpoint.url)
                before, self._tunnel_url = self._tunnel_url, endpoint.url
                if before:
                    TUNNELS.release(before)
            tunnel = self._tunnel
        assert tunnel is not None
        return Endpoint(f"unix://{tunnel.socket_path()}", None, endpoint.source)

    def _give_back(self, client: EngineClient, era: int) -> None:
        """Keep the client for the next call, and close clients that were idle for long."""
        now = time.monotonic()
        with self._lock:
            known = [*self._idle, _Idle(client, now)]
            young = [each for each in known if now - each.since < IDLE_FOR]
            self._idle = young[-MOST_IDLE:] if era == self._era else self._idle
            dropped = [each for each in known if each not in self._idle]
        _close(dropped)


def _in_time(client: EngineClient, ask: Callable[[APIClient], T], within: float | None) -> T:
    """Call `ask` and return its result; raises TimeoutError when the whole call takes too long."""
    with DEADLINES.limit(within, client.shut_down) as deadline:
        try:
            return ask(client)
        except Exception as error:
            if deadline and deadline.passed.is_set():
                raise TimeoutError(f"timed out after {within:g} s") from error
            raise


def _version(endpoint: Endpoint, timeout: float) -> str:
    """Return the engine's API version."""

    asking = EngineClient(endpoint, timeout=timeout)
    try:
        return _spoken(_in_time(asking, lambda _: asking.server_version(), timeout), endpoint.url)
    finally:
        asking.close()


def _spoken(version: str, where: str) -> str:
    """Return an API version that docker-py speaks. Raises RuntimeUnavailableError."""
    from docker.constants import MINIMUM_DOCKER_API_VERSION

    found, least = (re.fullmatch(r"(\d+)\.(\d+)", text) for text in (version, MINIMUM_DOCKER_API_VERSION))
    if found is None or least is None:
        raise RuntimeUnavailableError(f"{where} is no Docker engine: it names no API version", hint="see `docker info`")
    if tuple(map(int, found.groups())) < tuple(map(int, least.groups())):
        what = f"Docker at {where} is too old: its API is {version}"
        raise RuntimeUnavailableError(what, hint="upgrade to Docker 20.10 (API 1.41) or newer")
    return version


def _close(dropped: list[_Idle]) -> None:
    for each in dropped:
        with suppress(Exception):  # closing a broken session may raise anything
            each.client.close()


def _explanation(error: BaseException) -> str:
    explanation = getattr(error, "explanation", None)
    return str(explanation or error)


# docker-py parses the user's config.json for each client, and a damaged one would make it raise. Nothing here needs it:
# `endpoint` reads contexts from it, and `credentials` logins
docker.utils.config.find_config_file = lambda config_path=None: None

_PLAIN_PORT, _TLS_PORT = 2375, 2376
_SOCKET_URL = "http+docker://localhost"
"""Address that docker-py uses for engines behind a UNIX socket."""
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
