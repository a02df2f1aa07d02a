"""A console of a user who asks a service: it shows what the owner of the queue tells, and never schedules."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gputui import bootstrap
from gputui.api.follower import CONNECTING
from gputui.config import Options
from gputui.domain.snapshot import Notice

if TYPE_CHECKING:
    from gputui.api.backend import ApiBackend
    from gputui.api.follower import Follower
    from gputui.engine.feed import Feed

EVERY = 1.0
"""Seconds after which ages are shown anew, and a wish for readings is sent."""


def is_guest(options: Options) -> bool:
    """Return whether a service alone has the queue of this user."""
    return not options.in_cluster and not options.sockets.in_process


class OwnerWatch:
    """Publishes the snapshots of the owner behind a console's screen, and again when the next owner is there."""

    leads = False

    def __init__(self, backend: ApiBackend, feed: Feed) -> None:
        self._follower: Follower = backend.follow()
        self._feed = feed
        self._stopped = threading.Event()
        self._wanted: str | None = None

    def want_pcie(self, uuid: str | None) -> None:
        self._wanted = uuid

    def stop(self) -> None:
        self._stopped.set()
        self._follower.close()

    async def run(self) -> None:
        await asyncio.to_thread(self._run)

    def _run(self) -> None:
        seen = 0
        while not self._stopped.is_set():
            self._follower.wait(seen, EVERY)
            seen = self._follower.number
            self._publish()
            if not self._follower.problem:
                self._follower.look_at(self._wanted)

    def _publish(self) -> None:
        """Publish the newest snapshot; an owner that does not answer is named, with the time since it last did."""
        follower, now = self._follower, bootstrap.clock().now()
        snapshot, problem = follower.snapshot, follower.problem
        if problem == CONNECTING:
            return
        if problem:
            text = f"the service does not answer: {problem}; what is shown may have changed since"
            leader = snapshot.leader
            if leader is not None:
                leader = replace(leader, silent_for=timedelta(seconds=int(follower.age)))
            notice = Notice("warning", text, short="no answer")
            snapshot = replace(snapshot, taken_at=now, leader=leader, notices=(notice, *snapshot.notices))
        self._feed.publish(snapshot)
