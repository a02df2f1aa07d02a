"""HTTP server of metrics. It shares a process with the scheduler, so threads and request times are limited."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import os
import secrets
import socket
import socketserver
import ssl
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from msgspec import Struct, field
from prometheus_client import CollectorRegistry, make_wsgi_app

from gputui.domain.errors import InputError, install_line
from gputui.domain.settings import MetricsSettings
from gputui.threads import Watcher

log = logging.getLogger(__name__)

_BCRYPT = ("$2a$", "$2b$", "$2y$")
_MOST_KEPT = 64
"""Maximum number of correct passwords remembered, as hashes: bcrypt is slow on purpose, and scrapes are frequent."""
_NOBODY = b"$2b$10$7EqJtq98hPqEX7fNZaFWoOhi5BWX4Z1Z3MxE8lmyy6h6Zy/YPj4Oa"
"""Hash for unknown names, so that they take as long as known ones."""


class Users(Struct, eq=False):
    """Names and bcrypt hashes; checks the credentials of a request."""

    _hashes: Mapping[str, bytes]
    _salt: bytes = field(default_factory=secrets.token_bytes)
    _right: set[bytes] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a hash is computed: one at a time, so that wrong passwords cannot occupy all processors."""

    def admit(self, header: str) -> bool:
        """Return whether the value of an Authorization header has a user with the correct password."""
        scheme, _, encoded = header.partition(" ")
        try:
            decoded = base64.b64decode(encoded.strip(), validate=True) if scheme.lower() == "basic" else b""
        except (binascii.Error, ValueError):
            decoded = b""
        user, _, password = decoded.partition(b":")
        name = user.decode(errors="replace")
        digest = hmac.digest(self._salt, name.encode() + b"\0" + password, hashlib.sha256)
        if digest in self._right:
            return True
        with self._lock:
            known = self._hashes.get(name)
            import bcrypt

            # bcrypt uses only the first 72 bytes, and newer versions refuse more
            is_right = bcrypt.checkpw(password[:72], known or _NOBODY) and known is not None
        if is_right and len(self._right) < _MOST_KEPT:
            self._right.add(digest)
        return is_right


def read_users(path: Path) -> Users:
    """Return the users of a file; raises InputError."""
    if find_spec("bcrypt") is None:
        hint = install_line(["gputui[metrics]"], sys.prefix, has_pip=find_spec("pip") is not None)
        raise InputError("checking passwords needs the library bcrypt", where="metrics.users", hint=hint)
    hashes = {}
    lines = _read(path, "metrics.users", is_secret=True).decode(errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, hashed = line.strip().partition(":")
        if not name or not hashed.startswith(_BCRYPT):
            hint = "make it with: htpasswd -B -c FILE NAME"
            raise InputError("expected NAME:HASH with a bcrypt hash", where=f"{path}:{number}", hint=hint)
        hashes[name] = hashed.encode()
    if not hashes:
        raise InputError("names no user", where=str(path), hint="make it with: htpasswd -B -c FILE NAME")
    return Users(hashes)


def tls_context(settings: MetricsSettings) -> ssl.SSLContext | None:
    """Return the TLS context of the port; None: plain HTTP. Raises InputError."""
    if settings.certificate is None and settings.key is None:
        if settings.client_ca is not None:
            raise InputError("needs certificate and key too", where="metrics.client_ca")
        return None
    if settings.certificate is None or settings.key is None:
        missing = "metrics.certificate" if settings.certificate is None else "metrics.key"
        raise InputError("certificate and key are needed together", where=missing)
    _read(Path(settings.certificate), "metrics.certificate", is_secret=False)
    _read(Path(settings.key), "metrics.key", is_secret=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    where = "metrics.certificate"
    try:
        context.load_cert_chain(settings.certificate, settings.key, password=_no_password)
        if settings.client_ca is not None:
            where = "metrics.client_ca"
            context.load_verify_locations(settings.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be used: {getattr(error, 'strerror', None) or error}", where=where) from error
    return context


def _no_password() -> str:
    """Raise ValueError; OpenSSL would ask for a passphrase on the terminal otherwise."""
    raise ValueError("the key has a passphrase")


def stamps(settings: MetricsSettings) -> tuple[object, ...]:
    """Return tokens that differ when one of the files has changed."""
    found: list[object] = []
    for path in (settings.certificate, settings.key, settings.client_ca, settings.users):
        status = None
        with suppress(OSError):
            status = Path(path).stat() if path is not None else None
        found.append(status and (status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode, status.st_uid))
    return tuple(found)


def _read(path: Path, where: str, *, is_secret: bool) -> bytes:
    """Return the contents of the file; raises InputError if it cannot be read, or others could read or change it."""
    try:
        with path.open("rb") as file:
            status, content = os.fstat(file.fileno()), file.read(1 << 20)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", where=where) from error
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in {0, os.geteuid()}:
        raise InputError(f"{path} belongs to another user", where=where, hint=f"chown it to uid {os.geteuid()}")
    forbidden = 0o026 if is_secret else 0o022  # a group may read a key, as Debian's ssl-cert does
    if mode & forbidden:
        words = "read or changed" if is_secret else "changed"
        hint = f"chmod {mode & ~forbidden & 0o777:o} {path}"
        raise InputError(f"{path} has mode {mode:04o} and can be {words} by others", where=where, hint=hint)
    return content


TIMEOUT = 10.0
"""Seconds that a client may be silent."""
LONGEST = 20.0
"""Seconds until a request is ended, however busy its client is: one that sends byte by byte is never silent."""
MOST = 8
"""Maximum number of concurrent requests; a further one takes the place of a slow one, or is closed."""
SLOW = 5.0
"""Seconds after which a request that is answered may lose its place."""
_LINK = b'<!doctype html><title>gputui</title><a href="/metrics">metrics</a>\n'
Environ: TypeAlias = dict[str, Any]
StartResponse: TypeAlias = Callable[..., Any]


class MetricsServer(socketserver.ThreadingMixIn, WSGIServer):
    """Server of one registry, not yet serving. Raises OSError if the port cannot be opened."""

    daemon_threads = True
    request_queue_size = 128
    """Connections that wait to be accepted; the kernel makes further ones try again after a second or more."""

    def __init__(
        self,
        address: tuple[str, int],
        registry: CollectorRegistry,
        context: ssl.SSLContext | None = None,
        users: Users | None = None,
    ) -> None:
        family, _, _, _, where = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.address_family = family
        self.context, self.users = context, users
        """May be replaced while it serves."""
        self._slots = threading.BoundedSemaphore(MOST)
        self._begun: dict[socket.socket, float] = {}
        """Connections, oldest first, and when each began."""
        self.unasked: set[socket.socket] = set()
        """Those of which the request has not come yet."""
        # compressing takes longer than creating the page
        self._page = make_wsgi_app(registry, disable_compression=True)
        super().__init__(where[:2], _Handler)  # type: ignore[arg-type]
        self.set_app(self._answer)

    def server_bind(self) -> None:
        """Bind without looking up the host's name, which may wait for a name server."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def serve(self) -> None:
        """Serve in threads until `stop`."""

        def serve_on() -> None:
            if self.fileno() >= 0:  # else it was stopped meanwhile
                self.serve_forever()

        Watcher("gputui-metrics", serve_on).start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; if too many are open, in the place of a slow client, so that none keeps scrapes out."""
        if self._slots.acquire(blocking=False) or (self._end_slow() and self._slots.acquire(timeout=1)):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def _end_slow(self) -> bool:
        """End the oldest connection without a request, else the oldest that takes long; return whether there is one."""
        late = time.monotonic() - SLOW
        open_ones = list(self._begun.items())
        slow = [one for one, _ in open_ones if one in self.unasked] or [one for one, at in open_ones if at < late]
        if slow:
            self.unasked.discard(slow[0])
            _shut(slow[0])
        return bool(slow)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer a request; with a certificate, do the TLS handshake in this thread first."""
        request.settimeout(TIMEOUT)
        if self.context is None:
            with self._limited(request):
                super().finish_request(request, client_address)
            return
        wrapped = self.context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        with wrapped as secure, self._limited(secure):
            secure.do_handshake()
            super().finish_request(secure, client_address)
            with suppress(OSError):
                secure.unwrap()

    @contextmanager
    def _limited(self, connection: socket.socket) -> Iterator[None]:
        self.unasked.add(connection)
        self._begun[connection] = time.monotonic()
        try:
            yield
        finally:
            del self._begun[connection]
            self.unasked.discard(connection)

    def service_actions(self) -> None:
        """End requests that take too long. Called twice a second."""
        late = time.monotonic() - LONGEST
        for connection, begun in list(self._begun.items()):
            if begun < late:
                _shut(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error of a request; a disconnecting client or another protocol is not an error of ours."""
        log.debug("a request for metrics by %s failed", client_address, exc_info=True)  # noqa: LOG014 - called where it is handled

    def _answer(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("REQUEST_METHOD") == "HEAD":
            # answer as to GET, without the body; the library refuses HEAD
            heads: list[tuple[str, list[tuple[str, str]]]] = []
            get = {**environ, "REQUEST_METHOD": "GET"}
            body = b"".join(self._answer(get, lambda status, headers, *rest: heads.append((status, headers))))
            start_response(heads[0][0], [*heads[0][1], ("Content-Length", str(len(body)))])
            return []
        users = self.users
        if users is not None and not users.admit(environ.get("HTTP_AUTHORIZATION", "")):
            start_response("401 Unauthorized", [("WWW-Authenticate", 'Basic realm="gputui"')])
            return [b"name and password are needed\n"]
        path = environ.get("PATH_INFO", "")
        if path != "/metrics":
            start_response("200 OK" if path == "/" else "404 Not Found", [("Content-Type", "text/html")])
            return [_LINK if path == "/" else b"not found\n"]
        # answer in the text format, which every Prometheus reads: OpenMetrics takes twice as long
        environ.pop("HTTP_ACCEPT", None)
        environ.pop("QUERY_STRING", None)  # `name[]=` would leave out whatever the collector does not describe
        try:
            found: Iterable[bytes] = self._page(environ, start_response)
            return found
        except Exception:  # the border of a request: wsgiref would print it on the screen of a console
            log.exception("metrics cannot be collected")
            start_response("500 Internal Server Error", [])
            return [b"metrics cannot be collected; gputui.log has the details\n"]


def _shut(connection: socket.socket) -> None:
    """Let the thread of a connection see the end of the stream."""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _Handler(WSGIRequestHandler):
    timeout = TIMEOUT
    server_version = "gputui"
    sys_version = ""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Print nothing."""

    def get_environ(self) -> dict[str, Any]:
        cast("MetricsServer", self.server).unasked.discard(self.connection)
        return super().get_environ()

    def get_stderr(self) -> Any:
        """Return a stream that logs: the terminal may be a console's screen."""
        return _LogStream()


class _LogStream:
    def write(self, text: str) -> None:
        if text.strip():
            log.debug("%s", text.rstrip())

    def flush(self) -> None:
        """Do nothing."""
