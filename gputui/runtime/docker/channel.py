"""Channels into containers: an upgraded connection to the engine that carries the streams of a command."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from urllib.parse import urlencode

from gputui.domain.errors import RuntimeFault
from gputui.runtime.docker.connection import Connection
from gputui.runtime.docker.faults import fault

_PIECE = 65536
_LARGEST_HEAD = 65536
_HEADER = struct.Struct(">BxxxL")
_STDERR = 2
_RESIZE_EVERY, _RESIZES = 0.03, 300
"""Seconds between two tries to set the size of a terminal that is not there yet, and their number."""


class ContainerChannel:
    """Channel over an upgraded connection to the engine."""

    def __init__(
        self,
        connection: socket.socket,
        rest: bytes,
        *,
        is_tty: bool,
        resize: Callable[[int, int], None],
        exit_code: Callable[[], int | None],
    ) -> None:
        self._connection = connection
        self._rest = bytearray(rest)
        self._frames = bytearray()
        self._resize = resize
        self._exit_code = exit_code
        self.is_tty = is_tty
        self.on_input: Callable[[], None] = lambda: None
        self._size = (0, 0)
        self._is_resizing = False
        self._closed = threading.Event()

    @property
    def has_pending(self) -> bool:
        """Return whether output was received already: with the engine's answer, or by TLS."""
        return bool(self._rest) or (isinstance(self._connection, ssl.SSLSocket) and self._connection.pending() > 0)

    def fileno(self) -> int:
        """Return the connection's descriptor."""
        return self._connection.fileno()

    def input_fileno(self) -> int:
        """Return the connection's descriptor."""
        return self._connection.fileno()

    def receive(self) -> list[tuple[bool, bytes]] | None:
        """Return output; None at its end."""
        piece, self._rest = bytes(self._rest), bytearray()
        with suppress(ConnectionError):
            piece = piece or self._connection.recv(_PIECE)
        if not piece:
            return None
        return [(False, piece)] if self.is_tty else self._parts(piece)

    def _parts(self, piece: bytes) -> list[tuple[bool, bytes]]:
        """Return the content of the engine's frames, also of those that are not complete yet but for their header."""
        self._frames += piece
        found = []
        while len(self._frames) >= _HEADER.size:
            stream, length = _HEADER.unpack_from(self._frames)
            end = _HEADER.size + length
            if len(self._frames) < end:
                break
            found.append((stream == _STDERR, bytes(self._frames[_HEADER.size : end])))
            del self._frames[:end]
        return found

    def send(self, data: bytes) -> None:
        """Write to standard input. Raises OSError."""
        self.on_input()
        self._connection.sendall(data)

    def end_input(self) -> None:
        """Close the sending half; an encrypted connection has none, and its input ends with it."""
        if not self.is_tty and not isinstance(self._connection, ssl.SSLSocket):
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal; of a container that does not run yet, as soon as it does."""
        self._size = (rows, columns)
        if not self._is_resizing and not self._is_sized():
            self._is_resizing = True
            threading.Thread(target=self._resize_later, daemon=True).start()

    def _is_sized(self) -> bool:
        """Set the size that was asked for last; return whether the engine took it."""
        asked = self._size
        try:
            self._resize(*asked)
        except RuntimeFault:
            return False
        return asked == self._size

    def _resize_later(self) -> None:
        for _ in range(_RESIZES):
            if self._closed.wait(_RESIZE_EVERY) or self._is_sized():
                break
        self._is_resizing = False

    def exit_code(self) -> int | None:
        """Return the exit code, as the engine knows it."""
        with suppress(RuntimeFault):
            return self._exit_code()
        return None

    def close(self) -> None:
        """Close the connection."""
        self._closed.set()
        self._connection.close()


def upgraded(
    connection: Connection, path: str, query: Mapping[str, str] | None = None, body: Mapping[str, object] | None = None
) -> tuple[socket.socket, bytes]:
    """Send a request whose answer is a raw stream; return the connection and what came of the stream already.

    docker-py reads its answers through a buffer, in which the begin of the stream stays behind. Raises RuntimeFault.
    """
    with connection.translated():
        made, version = connection.dial()
        try:
            made.sendall(_request(f"/v{version}{path}", query or {}, body))
            head, rest = _head_of(made)
            status = int(head.split(None, 2)[1])
            if status not in (101, 200):
                raise fault(_message(made, head, rest), status=status)
            made.settimeout(None)
        except BaseException:
            made.close()
            raise
        return made, rest


def _request(path: str, query: Mapping[str, str], body: Mapping[str, object] | None) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    target = f"{path}?{urlencode(query)}" if query else path
    lines = [
        f"POST {target} HTTP/1.1",
        "Host: docker",
        "Connection: Upgrade",
        "Upgrade: tcp",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + content


def _head_of(made: socket.socket) -> tuple[bytes, bytes]:
    received = b""
    while b"\r\n\r\n" not in received:
        piece = made.recv(_PIECE)
        if not piece or len(received) > _LARGEST_HEAD:
            raise ConnectionError("the engine ended the connection")
        received += piece
    head, _, rest = received.partition(b"\r\n\r\n")
    return head, rest


def _message(made: socket.socket, head: bytes, rest: bytes) -> str:
    """Return the engine's words of an error."""
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
    length = int(fields.get(b"content-length", b"0"))
    with suppress(OSError):
        while len(rest) < length and (piece := made.recv(_PIECE)):
            rest += piece
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(rest[rest.index(b"{") : rest.rindex(b"}") + 1])["message"])
    return rest.decode(errors="replace").strip() or head.decode(errors="replace").splitlines()[0]
