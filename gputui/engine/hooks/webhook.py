"""POSTs events to a webhook: within a total time, without redirects, and reading only the beginning of the answer.

urllib3 limits the time of each connect and read, which a server that sends a byte a second never exceeds. So a timer
shuts the connection down when the total time is over; a call that waits on it then fails at once.
"""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from gputui.domain.errors import GputuiError
from gputui.domain.text import plain

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager

MOST_READ = 2048
"""Bytes of a refusal that are read, for the sentence about it."""


class NotDeliveredError(GputuiError):
    """The event was not delivered; it may be tried again."""


class _Deadline:
    """Timer that shuts down the connections of one request when its time is over."""

    def __init__(self, seconds: float) -> None:
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self.is_over = False
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def watch(self, connection: socket.socket) -> None:
        """Shut this connection down too; a copy is kept, because TLS takes the socket itself away."""
        with self._lock:
            self._connections.append(connection.dup())
        if self.is_over:
            self._end()

    def close(self) -> None:
        """Stop the timer and close the copies."""
        self._timer.cancel()
        with self._lock:
            while self._connections:
                self._connections.pop().close()

    def _end(self) -> None:
        self.is_over = True
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


def post(url: str, body: bytes, seconds: float) -> None:
    """POST JSON; raise NotDeliveredError unless the answer comes in time and is 2xx."""
    from urllib3.exceptions import HTTPError

    deadline = _Deadline(seconds)
    try:
        with _answer(url, body, seconds, deadline) as response:
            _judge(response)
    except NotDeliveredError:
        raise
    except (HTTPError, OSError, ValueError) as error:
        what = f"did not answer within {seconds:g} s" if deadline.is_over else plain(_words(error), 200)
        raise NotDeliveredError(what) from error
    finally:
        deadline.close()


@contextmanager
def _answer(url: str, body: bytes, seconds: float, deadline: _Deadline) -> Iterator[BaseHTTPResponse]:
    from urllib3 import Timeout

    headers = {"Content-Type": "application/json", "User-Agent": "gputui", "Connection": "close"}
    with _manager(url, deadline) as manager:
        response = manager.request(
            "POST",
            url,
            body=body,
            headers=headers,
            timeout=Timeout(total=seconds),
            retries=False,
            redirect=False,
            preload_content=False,
            decode_content=False,
        )
        try:
            yield response
        finally:
            response.close()


def _manager(url: str, deadline: _Deadline) -> PoolManager:
    """Return a manager whose connections the deadline watches, over the proxy that the environment names, if any."""
    import urllib3
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.util import parse_url

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return _watched(super()._new_conn(), deadline)

    class Encrypted(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return _watched(super()._new_conn(), deadline)

    pools: dict[str, Any] = {
        "http": type("PlainPool", (urllib3.HTTPConnectionPool,), {"ConnectionCls": Plain}),
        "https": type("EncryptedPool", (urllib3.HTTPSConnectionPool,), {"ConnectionCls": Encrypted}),
    }
    target = parse_url(url)
    proxy = urllib.request.getproxies().get(target.scheme or "http")
    if proxy and not urllib.request.proxy_bypass(target.netloc or ""):
        manager: urllib3.PoolManager = urllib3.ProxyManager(proxy)
    else:
        manager = urllib3.PoolManager()
    manager.pool_classes_by_scheme = pools
    return manager


def _watched(connection: socket.socket, deadline: _Deadline) -> socket.socket:
    deadline.watch(connection)
    return connection


def _judge(response: BaseHTTPResponse) -> None:
    """Raise NotDeliveredError for every answer but 2xx; a redirect is not followed, since it would lose the event."""
    if 200 <= response.status < 300:
        return
    what = f"answered {response.status}"
    if 300 <= response.status < 400:
        to = plain(response.headers.get("Location", "nowhere"), 200)
        hint = "redirects are not followed: set hooks.webhook to the final address"
        raise NotDeliveredError(f"{what}, a redirect to {to}", hint=hint)
    said = _beginning(response)
    raise NotDeliveredError(f"{what}: {said}" if said else what)


def _beginning(response: BaseHTTPResponse) -> str:
    """Return the first line of a refusal, as far as it came in time."""
    from urllib3.exceptions import HTTPError

    try:
        return plain(response.read(MOST_READ).decode(errors="replace").strip().partition("\n")[0], 200)
    except (HTTPError, OSError):
        return ""


def _words(error: Exception) -> str:
    """Return the innermost reason that urllib3 gives."""
    reason = getattr(error, "reason", None)
    return str(reason if isinstance(reason, Exception) else error)
