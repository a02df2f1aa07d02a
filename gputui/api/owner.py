"""What the owner of a queue gives the handlers of its door."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

from gputui.api.http import Peer
from gputui.api.visibility import Visibility
from gputui.domain.access import Caller
from gputui.domain.job_spec import JobId
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Leader, Snapshot
from gputui.ports.backend import DirectBackend, StreamRequest
from gputui.ports.commands import RunCommand


class OwnerServices(Struct, frozen=True):
    """Services of the process that owns the queue. All may be called from any thread."""

    settings: Settings
    store_id: str
    leader: Callable[[], Leader]
    """Returns this process as others see it."""
    caller_of: Callable[[Peer, Mapping[str, str]], Caller]
    """Returns who asks, by the process at the other end and the request's headers, which only the audit believes."""
    backend: Callable[[Caller], DirectBackend]
    """Returns the queue with the rights of a caller; close it after use."""
    latest: Callable[[], Snapshot]
    """Returns the last published snapshot, which holds all secrets: see `visibility`."""
    visibility: Visibility
    """What callers may see of it."""
    subscribe: Callable[[Callable[[Snapshot], None]], Callable[[], None]]
    """Has a function called with each new snapshot, in the scheduler's thread; returns one that ends that."""
    refused: Callable[[Caller, str, str], None]
    """Writes a refusal into the audit log: the caller, the rule's name, and what was asked for. Limited in rate."""
    focus: Callable[[str | None], object]
    """Has the throughput of this GPU read besides."""
    stream: Callable[[Caller, JobId, StreamRequest, socket.socket, bytes], object]
    """Gives a connection to a process of its own that serves the stream; the bytes came behind the request.

    The head of the answer is sent here too: 101 and frames, or of a `FollowLog` without frames 200 and plain bytes.
    Whether the caller may is checked before. Returns soon; safe in a thread of the pool.
    """
    command: RunCommand | None = None
    """Runs a command for its caller; None: this owner runs none."""
    metrics: Callable[[], bytes] | None = None
    """Returns the page of metrics; empty, or None: this owner keeps none."""
    backup: Callable[[], Iterator[bytes]] | None = None
    """Yields a backup of one moment as a tar archive; None: this owner makes none."""
    home: Callable[[int], str] = lambda uid: ""
    """Returns the home directory of a user; empty: unknown."""
