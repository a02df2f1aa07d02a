"""Websockets of the fake API server: commands in pods and terminals of pods, which run on this machine.

Frames are those of RFC 6455; their content that of `v4.channel.k8s.io` and, from release 1.30 on, `v5.channel.k8s.io`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Lock, Thread
from typing import Any, Protocol

from gputui.cluster.ssh import CommandChannel
from gputui.domain.container import ExecRequest
from gputui.domain.errors import ClusterRefusedError
from tests.cluster.talk import local_command

V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_STDIN, _STDOUT, _STDERR, _STATUS, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_BINARY, _END, _PING, _PONG = 0x2, 0x8, 0x9, 0xA


def accept_key(key: str) -> str:
    """Return the answer to the key of a handshake."""
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID).digest()).decode()  # noqa: S324 - as RFC 6455 has it


def chosen_protocol(offered: str, release: tuple[int, int]) -> str:
    """Return the protocol of a connection; empty if client and server have none in common."""
    known = [V5, V4] if release >= (1, 30) else [V4]
    names = [name.strip() for name in offered.split(",")]
    return next((name for name in known if name in names), "")


class Reader(Protocol):
    """Stream of what the client sends."""

    def read(self, size: int, /) -> bytes: ...


class PodSocket:
    """Connection after its handshake."""

    def __init__(self, reader: Reader, write: Callable[[bytes], object]) -> None:
        self._reader = reader
        self._write = write
        self._lock = Lock()

    def serve(self, request: ExecRequest, *, tells_code: bool) -> None:
        """Run a command until it ends or the client leaves; without `tells_code` its exit code is kept back."""
        if shutil.which(request.command[0]) is None:
            self._tell(_not_found(request.command[0]))
            return
        channel = local_command(request)
        output = Thread(target=self._copy, args=(channel, tells_code), daemon=True)
        output.start()
        while (frame := self._frame()) is not None and frame[0] != _END:
            kind, data = frame
            if kind == _PING:
                self._send(_PONG, data)
            elif kind == _BINARY and data:
                with suppress(OSError):  # the command has ended
                    _obey(channel, data[0], data[1:])
        channel.terminate()
        output.join(10)

    def _copy(self, channel: CommandChannel, tells_code: bool) -> None:
        try:
            while (parts := channel.receive()) is not None:
                for is_error, piece in parts:
                    self._send(_BINARY, bytes((_STDERR if is_error else _STDOUT,)) + piece)
            status = _status(channel.exit_code() if tells_code else 0)
        except ClusterRefusedError as error:
            status = {"status": "Failure", "reason": "InternalError", "message": error.what}
        except (OSError, ValueError):
            return  # the client has left
        self._tell(status)

    def _tell(self, status: dict[str, Any]) -> None:
        self._send(_BINARY, bytes((_STATUS,)) + json.dumps(status).encode())
        self._send(_END, struct.pack(">H", 1000))

    def _frame(self) -> tuple[int, bytes] | None:
        """Return kind and content of the next frame; None at the end. Clients mask what they send."""
        head = self._reader.read(2)
        if len(head) < 2:
            return None
        length = head[1] & 0x7F
        if length > 125:
            length = int.from_bytes(self._reader.read(2 if length == 126 else 8), "big")
        assert head[1] & 0x80, "clients mask their frames"
        mask = self._reader.read(4)
        data = self._reader.read(length)
        return head[0] & 0x0F, bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))

    def _send(self, kind: int, data: bytes) -> None:
        size = len(data)
        length = bytes((size,)) if size < 126 else struct.pack(">BH", 126, size) if size < 65536 else b""
        length = length or struct.pack(">BQ", 127, size)
        with self._lock:
            try:
                self._write(bytes((0x80 | kind,)) + length + data)
            except OSError:
                return


def _obey(channel: CommandChannel, stream: int, data: bytes) -> None:
    if stream == _STDIN:
        channel.send(data)
    elif stream == _RESIZE:
        size = json.loads(data)
        channel.resize(size["Height"], size["Width"])
    elif stream == _CLOSE and data == bytes((_STDIN,)):
        channel.end_input()


def _status(code: int | None) -> dict[str, Any]:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    words = f"command terminated with non-zero exit code: {code}"
    causes = {"causes": [{"reason": "ExitCode", "message": str(code)}]}
    return {"status": "Failure", "message": words, "reason": "NonZeroExitCode", "details": causes}


def _not_found(word: str) -> dict[str, Any]:
    words = f'error executing command in container: exec: "{word}": executable file not found in $PATH'
    return {"metadata": {}, "status": "Failure", "message": words, "reason": "InternalError", "code": 500}


def request_of(what: str, query: Sequence[tuple[str, str]], pod: Mapping[str, Any]) -> ExecRequest:
    """Return the command of a request; that of an attachment is the container's own."""
    values = dict(query)
    container = pod["spec"]["containers"][0]
    own = [*container.get("command", ()), *container.get("args", ())]
    words = [value for name, value in query if name == "command"] if what == "exec" else own
    return ExecRequest(tuple(words), values.get("stdin") == "true", values.get("tty") == "true")
