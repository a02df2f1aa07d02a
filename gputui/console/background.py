"""The scheduler behind a console's screen: on a thread and an event loop of its own, so that no screen delays it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gputui.domain.snapshot import Notice, Snapshot
from gputui.engine.feed import Feed
from gputui.engine.process.faults import describe_fault

if TYPE_CHECKING:
    from gputui.engine.process.host import Host

log = logging.getLogger(__name__)

AGAIN_AFTER = 1.0
"""Seconds before a scheduler host that could not be created, or failed, is tried again."""


class BackgroundScheduler:
    """Thread that keeps the feed supplied, and schedules where nobody else does. Only `end` blocks."""

    def __init__(self, make_host: Callable[[], Host], feed: Feed) -> None:
        self._make_host = make_host
        self._feed = feed
        self._stopped = threading.Event()
        self._host: Host | None = None
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)

    @property
    def leads(self) -> bool:
        """Return whether this process schedules."""
        return self._host is not None and self._host.leads

    def want_pcie(self, uuid: str | None) -> None:
        """Pass on which GPU the user is looking at."""
        if self._host is not None:
            self._host.want_pcie(uuid)

    def begin(self) -> None:
        """Start the thread; if the system allows no more threads, publish a notice that says so."""
        try:
            self._thread.start()
        except RuntimeError as error:
            log.exception("the scheduler's thread cannot be started")
            self._feed.publish(picture_of(error, self._feed.latest))

    def stop(self) -> None:
        """Ask the scheduler to stop, without waiting."""
        self._stopped.set()
        if self._host is not None:
            self._host.stop()

    def end(self, timeout: float) -> bool:
        """Wait for the thread's end; return whether it came within `timeout` seconds."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._host = self._host or self._make_host()
                if self._stopped.is_set():
                    return
                asyncio.run(self._host.run())
            except Exception as error:  # the border of the thread: an old picture would pass for a new one
                log.exception("scheduling failed")
                self._host = None
                self._feed.publish(picture_of(error, self._feed.latest))
                self._stopped.wait(AGAIN_AFTER)


def picture_of(error: Exception, latest: Snapshot) -> Snapshot:
    """Return the last snapshot, with a notice that this console does not schedule and why."""
    words = f"scheduling failed here and will be tried again: {describe_fault(error)}"
    return replace(latest, leader=None, leads_here=False, notices=(Notice("error", words),))
