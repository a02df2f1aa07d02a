"""Channels: the streams of a command that a client is attached to, and marks around the output of one."""

from __future__ import annotations

import select
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from gputui.domain import frames
from gputui.domain.errors import Cause, CauseCode, GputuiError, RuntimeFault

if TYPE_CHECKING:
    import socket

    from gputui.domain.frames import PendingInput


class Channel(Protocol):
    """Standard streams of a command inside a job, or of the job itself."""

    on_input: Callable[[], None]
    """Called with each input."""

    @property
    def is_tty(self) -> bool:
        """Return whether they belong to a terminal; then all output is standard output."""

    @property
    def has_pending(self) -> bool:
        """Return whether `receive` returns at once, regardless of `fileno`."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is output."""

    def receive(self) -> list[tuple[bool, bytes]] | None:
        """Wait for output and return it in pieces, each with whether it is standard error; None at the end."""

    def input_fileno(self) -> int:
        """Return a descriptor that is writable when a small piece can be sent without waiting; -1: no input is read."""

    def send(self, data: bytes) -> None:
        """Write to standard input. Raises OSError when the command no longer reads."""

    def end_input(self) -> None:
        """End standard input; a terminal has no end."""

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of its terminal."""

    def exit_code(self) -> int | None:
        """Return the exit code after the end; None when it is unknown."""

    def close(self) -> None:
        """Detach; the command keeps running."""


def wait_for(channel: Channel, pending: PendingInput, others: Mapping[int, int]) -> dict[int, int]:
    """Wait until the channel has output or takes pending input, or another descriptor is ready; return the ready ones.

    `others` are events to wait for by descriptor, as of `select.poll`. Returns at once if there is nothing to wait for.
    """
    masks = {channel.fileno(): select.POLLIN, **others}
    out = channel.input_fileno()
    if pending.is_waiting:
        masks[out] = masks.get(out, 0) | select.POLLOUT
    poll = select.poll()
    for descriptor, mask in masks.items():
        if descriptor >= 0:
            poll.register(descriptor, mask)
    is_urgent = channel.has_pending or (pending.is_waiting and out < 0)
    return dict(poll.poll(0 if is_urgent else None))


_PIECE = 65536
_MOST = 32768
"""Maximum number of bytes of input in one frame."""


class FrameChannel:
    """Channel over a connected socket. Frames other than output are passed to `hear`."""

    def __init__(self, connection: socket.socket, *, is_tty: bool) -> None:
        self._connection = connection
        self._frames = frames.Frames()
        self._exit_code: int | None = None
        self._early: list[tuple[bool, bytes]] = []
        self.is_tty = is_tty
        self.on_input: Callable[[], None] = lambda: None
        self.hear: Callable[[bytes, bytes], None] = lambda kind, content: None

    @property
    def has_pending(self) -> bool:
        return bool(self._early)

    def fileno(self) -> int:
        return self._connection.fileno()

    def input_fileno(self) -> int:
        return self._connection.fileno()

    def receive(self) -> list[tuple[bool, bytes]] | None:
        """Return output; None at the end. Raises GputuiError with the message of a refusal."""
        if self._early:
            early, self._early = self._early, []
            return early
        try:
            piece = self._connection.recv(_PIECE)
            return self._parts(piece) if piece else None
        except (ConnectionError, frames.MalformedFrameError):
            return None

    def keep(self, parts: list[tuple[bool, bytes]]) -> None:
        """Keep output that arrived with the greeting, as on a busy machine, for the next `receive`."""
        self._early += parts

    def feed(self, piece: bytes) -> None:
        """Take bytes that were received elsewhere; raises as `receive`, and MalformedFrameError."""
        self._early += self._parts(piece)

    def _parts(self, piece: bytes) -> list[tuple[bool, bytes]]:
        parts = []
        for kind, content in self._frames.feed(piece):
            if kind in (frames.OUTPUT, frames.ERRORS):
                parts.append((kind == frames.ERRORS, content))
                continue
            if kind == frames.REFUSED:
                raise GputuiError(content.decode(errors="replace"))
            if kind == frames.UNREACHABLE:
                raise RuntimeFault(Cause(CauseCode.CONTAINER_LOST, content.decode(errors="replace")))
            if kind == frames.EXIT:
                self._exit_code = frames.exit_of(content)
            self.hear(kind, content)
        return parts

    def send(self, data: bytes) -> None:
        """Send input; empty input tells only that there will be some. Raises OSError."""
        self.on_input()
        for at in range(0, max(1, len(data)), _MOST):
            self._connection.sendall(frames.frame(frames.INPUT, data[at : at + _MOST]))

    def end_input(self) -> None:
        with suppress(OSError):
            self._connection.sendall(frames.frame(frames.END_OF_INPUT))

    def resize(self, rows: int, columns: int) -> None:
        with suppress(OSError):
            self._connection.sendall(frames.size_frame(rows, columns))

    def exit_code(self) -> int | None:
        return self._exit_code

    def keep_exit_code(self, code: int | None) -> None:
        self._exit_code = code

    def close(self) -> None:
        self._connection.close()


def peer_uid(connection: socket.socket) -> int:
    """Return the uid of the process at the other end, as recorded by the kernel when it connected or listened."""
    import socket
    import struct

    uid: int = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    return uid
