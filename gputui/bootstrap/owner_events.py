"""Snapshots of the process that schedules, for a console that does not."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gputui import bootstrap
from gputui.domain.snapshot import EMPTY, Notice

if TYPE_CHECKING:
    from gputui.api.follower import Follower
    from gputui.config import Options
    from gputui.domain.snapshot import Snapshot
    from gputui.engine.feed import Feed

PATIENCE = 5.0
"""Seconds for which a console waits for an answer of the process that it follows."""
LONGEST_PAUSE = 1.0
"""Seconds between two tries to connect, at most."""


class OwnerEvents:
    """Follows the owner of a state directory; see `engine.process.host.FollowPort`. `next` is for one thread."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._follower: Follower | None = None
        self._seen = 0

    @property
    def answers(self) -> bool:
        follower = self._follower
        return follower is not None and not follower.problem

    def next(self, seconds: float, gpu: str | None) -> tuple[Snapshot, float] | None:
        follower = self._follower or self._started()
        if follower.is_owned is not False:
            follower.wait(self._seen, seconds)
        self._seen = follower.number
        if follower.is_owned is False or not follower.has_snapshot:
            return None
        if not follower.problem:
            follower.look_at(gpu)
        return follower.snapshot, follower.age

    def _started(self) -> Follower:
        """Begin to follow."""
        from gputui.api.follower import Follower
        from gputui.api.wire import to_sockets
        from gputui.bootstrap.owner import client_of

        dial = to_sockets(map(Path, self._options.sockets.paths))
        client = client_of(self._options, dial, patience=PATIENCE)
        self._follower, self._seen = Follower(client, longest_pause=LONGEST_PAUSE), 0
        self._follower.start()
        return self._follower

    def stop(self) -> None:
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.close()


class OwnerBehind:
    """What is behind the screen of a console that may only ask the owner of a queue; see `hosting.Behind`."""

    leads = False

    def __init__(self, options: Options, feed: Feed) -> None:
        self._options = options
        self._feed = feed
        self._events = OwnerEvents(options)
        self._wanted: str | None = None
        self._last, self._heard_at = EMPTY, time.monotonic()
        self._is_stopped = False
        self._wake: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def want_pcie(self, uuid: str | None) -> None:
        self._wanted = uuid

    def stop(self) -> None:
        self._is_stopped = True
        if self._loop is not None and self._wake is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                self._loop.call_soon_threadsafe(self._wake.set)

    async def run(self) -> None:
        from gputui.engine.tick.worker_pools import DaemonExecutor

        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        threads = DaemonExecutor(1, "owner")
        try:
            while not self._is_stopped:
                if not await self._loop.run_in_executor(threads, self._publish):
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._wake.wait(), LONGEST_PAUSE)
        finally:
            self._events.stop()
            threads.shutdown()

    def _publish(self) -> bool:
        """Publish what the owner tells next; return False if there is none."""
        from gputui.engine.tick import snapshot_builder

        now = bootstrap.clock().now()
        found = self._events.next(1.0, self._wanted)
        if found is not None:
            self._last, self._heard_at = found[0], time.monotonic() - found[1]
            self._feed.publish(snapshot_builder.as_told(*found, self._options.settings, now))
            return True
        where = " and ".join(self._options.sockets.paths)
        told = Notice("error", f"no scheduler answers at {where}; this is what it said last", True, "no answer")
        silence = time.monotonic() - self._heard_at
        old = snapshot_builder.as_told(self._last, silence, self._options.settings, now)
        self._feed.publish(replace(old, notices=(told,)))
        return False
