"""HTTP server of metrics. It shares a process with the scheduler, so threads and request times are limited."""

from __future__ import annotations

import logging
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from gputui.metrics.access import Users

log = logging.getLogger(__name__)

TIMEOUT = 10.0
"""Seconds that a client may be silent."""
LONGEST = 20.0
"""Seconds until a request is ended, however busy its client is: one that sends byte by byte is never silent."""
MOST = 8
"""Maximum number of concurrent requests; a further one takes the place of a slow one, or is closed."""
SLOW = 5.0
"""Seconds after which a request that is answered may lose its place."""
_PATHS = {"/metrics"}
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
        self._unasked: set[socket.socket] = set()
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
        threading.Thread(target=self.serve_forever, name="gputui-metrics", daemon=True).start()

    def stop(self) -> None:
        """Close the port."""
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
        slow = [one for one, _ in open_ones if one in self._unasked] or [one for one, at in open_ones if at < late]
        if slow:
            self._unasked.discard(slow[0])
            _shut(slow[0])
        return bool(slow)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer in this thread."""
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
        self._unasked.add(connection)
        self._begun[connection] = time.monotonic()
        try:
            yield
        finally:
            del self._begun[connection]
            self._unasked.discard(connection)

    def has_asked(self, connection: socket.socket) -> None:
        """Note that the request of a connection has come."""
        self._unasked.discard(connection)

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
            return self._head(environ, start_response)
        users = self.users
        if users is not None and not users.admit(environ.get("HTTP_AUTHORIZATION", "")):
            start_response("401 Unauthorized", [("WWW-Authenticate", 'Basic realm="gputui"')])
            return [b"name and password are needed\n"]
        path = environ.get("PATH_INFO", "")
        if path not in _PATHS:
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

    def _head(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer as to GET, without the body; the library refuses HEAD."""
        told: list[tuple[str, list[tuple[str, str]]]] = []
        get = {**environ, "REQUEST_METHOD": "GET"}
        body = b"".join(self._answer(get, lambda status, headers, *rest: told.append((status, headers))))
        start_response(told[0][0], [*told[0][1], ("Content-Length", str(len(body)))])
        return []


def _shut(connection: socket.socket) -> None:
    """Let the thread of a connection see the end of the stream."""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _Handler(WSGIRequestHandler):
    """Handler that prints nothing."""

    timeout = TIMEOUT
    server_version = "gputui"
    sys_version = ""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Print nothing."""

    def get_environ(self) -> dict[str, Any]:
        """Return the request's variables, after its head was read."""
        cast("MetricsServer", self.server).has_asked(self.connection)
        return super().get_environ()

    def get_stderr(self) -> Any:
        """Return a stream that logs: the terminal may be a console's screen."""
        return _LogStream()


class _LogStream:
    """Stream whose text goes to the log."""

    def write(self, text: str) -> None:
        """Log the text."""
        if text.strip():
            log.debug("%s", text.rstrip())

    def flush(self) -> None:
        """Do nothing."""
