"""Process of one relayed stream: `python -m gputui.console.relay OPTIONS`, with the connection as standard input.

The kernel tells which user connected, and the scheduler's record of the attempt tells whose job it is; nothing that
members of a shared queue can write decides this.
"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from gputui import bootstrap
from gputui.bootstrap.backend import open_entrance, peer
from gputui.config import Options, resolve
from gputui.domain import frames
from gputui.domain.container import ExecRequest
from gputui.domain.decoding import decode_json
from gputui.domain.errors import GputuiError, RuntimeFault
from gputui.domain.frames import PendingInput
from gputui.domain.job_spec import JobId
from gputui.ports import Channel
from gputui.ports.backend import Attach
from gputui.ports.channel import wait_for

REQUEST_WITHIN = 10.0
"""Seconds within which a connection sends its request."""
_PIECE = 65536


class _Request(msgspec.Struct):
    """Request for a stream."""

    verb: str
    job: JobId
    detach_keys: str = ""
    request: ExecRequest | None = None


class _Connection:
    """Connection of the user who attaches."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._frames = frames.Frames()
        self.early: list[tuple[bytes, bytes]] = []

    def fileno(self) -> int:
        return self._connection.fileno()

    def request(self) -> _Request:
        """Return the request, the first frame. Raises GputuiError."""
        deadline = time.monotonic() + REQUEST_WITHIN
        while not self.early:
            self._connection.settimeout(max(0.01, deadline - time.monotonic()))
            found = self.receive()
            if found is None:
                raise GputuiError("there was no request")
            self.early += found
        self._connection.settimeout(None)
        kind, content = self.early.pop(0)
        if kind != frames.REQUEST:
            raise GputuiError("the first frame is not a request")
        try:
            return decode_json(content, _Request)
        except msgspec.MsgspecError as error:
            raise GputuiError(f"the request cannot be read: {error}") from error

    def receive(self) -> list[tuple[bytes, bytes]] | None:
        """Return frames; None at the end."""
        piece = self._connection.recv(_PIECE)
        return list(self._frames.feed(piece)) if piece else None

    def send(self, kind: bytes, content: bytes) -> None:
        """Send a frame. Raises OSError."""
        self._connection.sendall(frames.frame(kind, content))


def serve(options: Options, connection: socket.socket) -> None:
    """Serve one connection to its end."""
    user = _Connection(connection)
    store = bootstrap.open_store(options)
    try:
        asked = user.request()
        job = store.get(asked.job)
        request = {"attach": Attach(asked.detach_keys), "exec": asked.request}.get(asked.verb)
        if request is None:
            raise GputuiError(f"the relay knows no {asked.verb!a}")
        channel = open_entrance(options, store, peer(connection)).enter(job, request)
    except GputuiError as error:
        may_pass = isinstance(error, RuntimeFault) and error.may_pass
        user.send(frames.UNREACHABLE if may_pass else frames.REFUSED, str(error).encode())
        return
    finally:
        store.close()
    user.send(frames.READY, b"tty" if channel.is_tty else b"pipes")
    try:
        if _Stream(user, channel).pass_on() and (code := channel.exit_code()) is not None:
            connection.sendall(frames.exit_frame(code))
    finally:
        channel.close()


class _Stream:
    """Streams in both directions between the user and the command."""

    def __init__(self, user: _Connection, channel: Channel) -> None:
        self._user = user
        self._channel = channel
        self._pending_input = PendingInput(channel.send, channel.end_input)

    def pass_on(self) -> bool:
        """Pass on what both sides send, until one ends; return whether it was the command."""
        for message in self._user.early:
            self._obey(message)
        while True:
            others = {self._user.fileno(): 0 if self._pending_input.is_full else select.POLLIN}
            ready = wait_for(self._channel, self._pending_input, others)
            if self._user.fileno() in ready:
                found = self._user.receive()
                if found is None:
                    return False
                for message in found:
                    self._obey(message)
            if self._pending_input.is_waiting:
                self._send(ready)
            if self._channel.has_pending or ready.get(self._channel.fileno(), 0) & ~select.POLLOUT:
                parts = self._channel.receive()
                if parts is None:
                    return True
                for is_error, piece in parts:
                    self._user.send(frames.ERRORS if is_error else frames.OUTPUT, piece)

    def _send(self, ready: Mapping[int, int]) -> None:
        out = self._channel.input_fileno()
        if out < 0 or ready.get(out, 0) & ~select.POLLIN:
            with suppress(OSError):  # it reads no more
                self._pending_input.send_piece()

    def _obey(self, message: tuple[bytes, bytes]) -> None:
        kind, content = message
        if kind == frames.INPUT:
            self._pending_input.put(content)
        elif kind == frames.END_OF_INPUT:
            self._pending_input.put_end()
        elif kind == frames.SIZE:
            with suppress(OSError):
                self._channel.resize(*frames.size_of(content))


def main(arguments: list[str]) -> None:
    """Serve the connection on standard input."""
    given: dict[str, Any] = dict(
        zip((name.removeprefix("--") for name in arguments[::2]), arguments[1::2], strict=True)
    )
    with socket.socket(fileno=0) as connection:
        try:
            serve(resolve(**given), connection)
        except (OSError, frames.MalformedFrameError):
            return  # the user has disconnected


if __name__ == "__main__":
    main(sys.argv[1:])
