"""A server of its own for a test, and raw connections to it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gputui.api.connections import Limits, Listener, bind
from gputui.api.http import Answer, Request, Response
from gputui.api.server import DoorServer
from tests.api.scripted_owner import whole_message
from tests.waiting import until

PATIENCE = 30.0


def echo(request: Request) -> Response:
    """Answer with what was asked for."""
    return Response(body=f"{request.method} {request.path} {len(request.body)}".encode(), content_type="text/plain")


class Served:
    """A running server, and its socket."""

    def __init__(self, path: Path, listener: Listener, server: DoorServer, faults: list[BaseException]) -> None:
        self.path = path
        self.listener = listener
        self.server = server
        self.faults = faults

    def connect(self) -> socket.socket:
        """Return a new connection."""
        return connect(self.path)

    def ask(self, request: bytes) -> bytes:
        """Send bytes on a connection of their own; return all that comes back."""
        with self.connect() as link:
            tell(link, request)
            return rest_of(link)

    def get(self, path: str) -> bytes:
        """Return the whole answer to a request of a connection of its own."""
        return self.ask(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())

    def until_free(self, connections: int = 0) -> None:
        """Wait until no more connections are open."""
        until(lambda: self.server.connections <= connections)


def connect(path: Path) -> socket.socket:
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(str(path))  # without a timeout: with one a full backlog is an error
    except OSError:
        link.close()
        raise
    link.settimeout(PATIENCE)
    return link


def tell(link: socket.socket, data: bytes) -> None:
    """Send what the server takes: it may hang up before the end."""
    try:
        link.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        return


def rest_of(link: socket.socket) -> bytes:
    """Return all bytes up to the end."""
    parts = []
    try:
        while part := link.recv(1 << 20):
            parts.append(part)
    except ConnectionResetError:  # what it did not read is lost
        pass
    return b"".join(parts)


def answer_of(link: socket.socket) -> bytes:
    """Return one answer with a length; the connection stays open."""
    answer = whole_message(link)
    assert b"\r\ncontent-length:" in answer.lower()
    return answer


@contextmanager
def serving(
    directory: Path,
    handle: Callable[[Request], Answer] = echo,
    limits: Limits | None = None,
    *,
    is_operator: bool = False,
    beat: Callable[[], object] = lambda: None,
) -> Iterator[Served]:
    """Serve a socket in the directory."""
    path = directory / "api.sock"
    listener = bind(path, 0o600)
    faults: list[BaseException] = []
    server = DoorServer(
        [listener.socket],
        handle,
        is_operator=lambda uid: is_operator,
        limits=limits or Limits(),
        beat=beat,
        failed=faults.append,
    )
    server.start()
    served = Served(path, listener, server, faults)
    try:
        yield served
    finally:
        server.stop(0.1)
        listener.socket.close()
        until(lambda: not any(thread.name.startswith("gputui-api") for thread in threading.enumerate()))
