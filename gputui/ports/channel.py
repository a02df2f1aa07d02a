"""Channels: the streams of a command that a client is attached to."""

from __future__ import annotations

import select
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gputui.domain.frames import PendingInput


class Channel(Protocol):
    """Standard streams of a command inside a job, or of the job itself."""

    on_input: Callable[[], None]
    """Called with each input."""

    @property
    def is_tty(self) -> bool:
        """Return whether they belong to a terminal; then all output is standard output."""
        ...

    @property
    def has_pending(self) -> bool:
        """Return whether `receive` returns at once, regardless of `fileno`."""
        ...

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is output."""
        ...

    def receive(self) -> list[tuple[bool, bytes]] | None:
        """Wait for output and return it in pieces, each with whether it is standard error; None at the end."""
        ...

    def input_fileno(self) -> int:
        """Return a descriptor that is writable when a small piece can be sent without waiting; -1: no input is read."""
        ...

    def send(self, data: bytes) -> None:
        """Write to standard input. Raises OSError when the command no longer reads."""
        ...

    def end_input(self) -> None:
        """End standard input; a terminal has no end."""
        ...

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of its terminal."""
        ...

    def exit_code(self) -> int | None:
        """Return the exit code after the end; None when it is unknown."""
        ...

    def close(self) -> None:
        """Detach; the command keeps running."""
        ...


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
