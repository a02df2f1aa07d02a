"""Commands in pods, terminals of pods, and processes in pods: channels over a websocket.

Frames begin with the number of their stream. The protocols `v4.channel.k8s.io` and, from Kubernetes 1.30 on,
`v5.channel.k8s.io` differ in one thing: only v5 can end standard input.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from gputui.cluster.kubernetes.api_server import ApiServer, StatusAnswer
from gputui.cluster.kubernetes.objects import KubePod
from gputui.domain.container import COLUMNS, ExecRequest, ProcessRow, parse_ps
from gputui.domain.decoding import decode_json
from gputui.domain.errors import ClusterRefusedError, ClusterUnavailableError

if TYPE_CHECKING:
    from websocket import WebSocket

PROTOCOLS = "v5.channel.k8s.io,v4.channel.k8s.io"
_V5 = "v5.channel.k8s.io"
_STDIN, _STDOUT, _STDERR, _STATUS, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_CONTINUATION, _TEXT, _BINARY, _END = 0x0, 0x1, 0x2, 0x8
"""Kinds of frames."""
_PS = f"ps -eo {COLUMNS} 2>/dev/null || ps"
_WITHIN = 10.0
"""Seconds in which a pod lists its processes."""


class PodChannel:
    def __init__(self, connection: WebSocket, *, is_tty: bool, has_input: bool, redraws: bool = False) -> None:
        """With `redraws` the first size differs from the terminal's for a moment, so that a program draws itself."""
        self._connection = connection
        assert connection.sock is not None
        self._socket: socket.socket = connection.sock
        self._has_input = has_input
        self._redraws = redraws
        self._status: StatusAnswer | None = None
        self._unsure: tuple[int, int] | None = None
        """Size that was set before the program has begun."""
        self._has_begun = False
        self.is_tty = is_tty
        self.on_input: Callable[[], None] = lambda: None
        self._can_end_input = connection.headers.get("sec-websocket-protocol") == _V5

    @property
    def has_pending(self) -> bool:
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def input_fileno(self) -> int:
        return self.fileno() if self._has_input else -1

    def receive(self) -> list[tuple[bool, bytes]] | None:
        from websocket import WebSocketException

        try:
            kind, frame = self._connection.recv_data_frame(True)
        except (WebSocketException, OSError, ValueError):
            kind, frame = _END, None
        if kind == _END or frame is None:
            status = self._status
            if status is not None and status.exit_code is None:
                raise ClusterRefusedError(status.message or "the command was not run")
            return None
        if kind not in {_CONTINUATION, _TEXT, _BINARY} or not frame.data:
            return []
        stream, content = frame.data[0], bytes(frame.data[1:])
        if stream == _STATUS:
            with suppress(msgspec.DecodeError, ValueError):
                self._status = decode_json(content, StatusAnswer)
        if not content or stream not in {_STDOUT, _STDERR}:
            return []
        self._has_begun = True
        if self._unsure is not None:  # what came before the program's start is lost
            self._resize(*self._unsure)
            self._unsure = None
        return [(stream == _STDERR, content)]

    def send(self, data: bytes) -> None:
        self.on_input()
        self._send(_STDIN, data)

    def end_input(self) -> None:
        """End standard input, where the protocol can; a terminal has no end."""
        if not self.is_tty and self._can_end_input:
            with suppress(OSError):
                self._send(_CLOSE, bytes((_STDIN,)))

    def resize(self, rows: int, columns: int) -> None:
        if not self.is_tty:
            return
        sizes = [(rows + 1, columns), (rows, columns)] if self._redraws else [(rows, columns)]
        self._redraws = False
        self._unsure = (rows, columns) if not self._has_begun else None
        for height, width in sizes:
            self._resize(height, width)

    def _resize(self, rows: int, columns: int) -> None:
        with suppress(OSError):
            self._send(_RESIZE, json.dumps({"Width": columns, "Height": rows}).encode())

    def _send(self, stream: int, data: bytes) -> None:
        from websocket import WebSocketException

        try:
            self._connection.send_binary(bytes((stream,)) + data)
        except (WebSocketException, ValueError) as error:
            raise OSError(str(error)) from error

    def exit_code(self) -> int | None:
        return self._status.exit_code if self._status is not None else None

    def read_all(self, patience: float) -> bytes:
        """Return all standard output of a short command; raises ClusterError if it fails or takes longer."""
        deadline, out = time.monotonic() + patience, b""
        try:
            self._connection.settimeout(patience)
            while (parts := self.receive()) is not None:
                out += b"".join(piece for is_error, piece in parts if not is_error)
                if time.monotonic() > deadline:
                    break
        finally:
            self.close()
        if self.exit_code() is None:
            raise ClusterUnavailableError(f"the pod did not answer within {patience:.0f} s")
        return out

    def close(self) -> None:
        self._socket.close()


def execute(server: ApiServer, pod: KubePod, request: ExecRequest) -> PodChannel:
    return _opened(server, pod, "exec", stdin=request.stdin, is_tty=request.tty, command=request.command)


def attach(server: ApiServer, pod: KubePod) -> PodChannel:
    container = pod.main
    if not container.tty:
        raise ClusterRefusedError("it has no terminal", where=f"pod {pod.metadata.name}")
    return _opened(server, pod, "attach", stdin=container.stdin, is_tty=True)


def processes(server: ApiServer, pod: KubePod) -> tuple[ProcessRow, ...]:
    """Return the processes in the container of a pod, but for the `ps` that lists them."""
    hint = "its image needs sh and ps"
    try:
        told = execute(server, pod, ExecRequest(("sh", "-c", _PS))).read_all(_WITHIN).decode(errors="replace")
    except ClusterRefusedError as error:
        raise ClusterRefusedError(f"its processes cannot be listed: {error.what}", hint=hint) from error
    if not (rows := parse_ps(told)):  # `ps` always lists itself
        raise ClusterRefusedError("its processes cannot be listed: ps lists none", hint=hint)
    return tuple(row for row in rows if not row.command.removeprefix("sh -c ").startswith(f"ps -eo {COLUMNS}"))


def _opened(
    server: ApiServer, pod: KubePod, what: str, *, stdin: bool, is_tty: bool, command: tuple[str, ...] = ()
) -> PodChannel:
    path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}/{what}"
    query = [("container", pod.main.name)] if pod.main.name else []
    streams = {"stdin": stdin, "stdout": True, "stderr": not is_tty, "tty": is_tty}  # a terminal has no standard error
    query += [(name, str(is_on).lower()) for name, is_on in streams.items()]
    query += [("command", word) for word in command]
    connection = server.socket(path, query, PROTOCOLS)
    return PodChannel(connection, is_tty=is_tty, has_input=stdin, redraws=what == "attach")
