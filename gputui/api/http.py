"""Requests and answers between the server of the socket and the handlers behind it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from msgspec import Struct


class Peer(Struct, frozen=True):
    """Process at the other end of a connection, as the kernel knows it since it connected."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    pid: int
    cgroup: str = ""
    """Text of its /proc/PID/cgroup, by which the job or container that it runs in is known.

    Empty: unknown, since it has ended, or /proc hides it; it may then only look.
    """
    is_mapped: bool = False
    """True in another user namespace than ours: its uid may be one of those that /etc/subuid lends to a user."""


class Request(Struct, frozen=True):
    """A whole request."""

    method: str
    path: str
    """Path without the query, decoded."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Values by name in lower case."""
    body: bytes
    peer: Peer


class Response(Struct, frozen=True):
    """A whole answer."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


class Outlet(Protocol):
    """Where the parts of an answer without an end are put. Safe to use from any thread; never blocks."""

    @property
    def waiting(self) -> int:
        """Bytes that the client has not taken yet: one that sends much waits until there are few."""
        ...

    def send(self, data: bytes) -> bool:
        """Send data; return False once the client is gone, or too slow: then nothing more is sent."""
        ...

    def close(self) -> None:
        """End the answer."""
        ...


class Stream(Struct, frozen=True):
    """An answer without an end."""

    open: Callable[[Outlet], Callable[[], object]]
    """Begins to send; what it returns is called when the client is gone."""
    content_type: str = "text/event-stream"


class Handoff(Struct, frozen=True):
    """The connection itself is given away, with the bytes that the client has sent behind the request."""

    take: Callable[[socket.socket, bytes], object]
    """Takes a blocking duplicate of the socket, in a thread of the pool; the server then forgets the connection."""


Answer: TypeAlias = Response | Stream | Handoff
Handle: TypeAlias = Callable[[Request], Answer]
"""Answers a request, in a thread of the server's pool. It turns errors into answers itself; others become a 500."""
