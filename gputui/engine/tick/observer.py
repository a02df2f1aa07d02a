"""Observers of runtimes: each lists its containers in its own thread, so that a hanging engine delays no tick."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta

from msgspec import Struct

from gputui.domain.container import ContainerRecord, ForeignContainer, RuntimeStatus
from gputui.domain.errors import RuntimeFault
from gputui.ports import Runtime
from gputui.threads import Watcher

log = logging.getLogger(__name__)

SECOND_LOOK = 0.3
"""Seconds after a poke until a second listing: engines report an end before their listing shows it."""


class Observation(Struct, frozen=True):
    """Listing of a runtime. `records` and `foreign` are None if it did not answer."""

    status: RuntimeStatus
    begun: int = 0
    """Sequence number of the listing, which contains all work with lower numbers. 0 before the first listing."""
    records: tuple[ContainerRecord, ...] | None = None
    foreign: tuple[ForeignContainer, ...] | None = None


class Sequence:
    """Source of increasing sequence numbers for events, independent of the clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def next(self) -> int:
        """Return a number larger than all before."""
        with self._lock:
            self._last += 1
            return self._last


class Observer:
    """Lists the containers of one runtime when poked, and at an interval."""

    def __init__(self, runtime: Runtime, sequence: Sequence, changed: Callable[[], None], interval: timedelta) -> None:
        self.runtime = runtime
        self._sequence = sequence
        self._changed = changed
        self._interval = interval.total_seconds()
        self._poked = threading.Event()
        self._stopped = False
        self._trouble = ""
        """Reason why the last listing failed; each is logged once, since an engine may be away for ever."""
        self.latest = Observation(runtime.status())

    def start(self) -> None:
        """Start listing, in a daemon thread: a call that hangs must not keep the process from ending."""
        Watcher(f"observe-{self.runtime.name}", self._run).start()
        self.runtime.watch(self.poke)

    def poke(self) -> None:
        """Request a listing as soon as possible. Never blocks."""
        self._poked.set()

    def stop(self) -> None:
        """Stop listing after the current call."""
        self._stopped = True
        self._poked.set()

    def observe(self) -> None:
        """List the runtime's containers in this thread; call `changed` if the listing differs."""
        begun = self._sequence.next()
        try:
            if not self.runtime.status().up:
                self.runtime.check()
            records = self.runtime.containers()
            foreign = self.runtime.foreign()
        except RuntimeFault as fault:
            self._log(str(fault))
            status = self.runtime.status()
            seen = Observation(status if not status.up else self.runtime.check(), begun)
        else:
            self._log("")
            seen = Observation(self.runtime.status(), begun, records, foreign)
        before, self.latest = self.latest, seen
        if (before.status, before.records, before.foreign) != (seen.status, seen.records, seen.foreign):
            self._changed()

    def _log(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            log.warning("%s does not answer: %s", self.runtime.name, trouble)
        elif self._trouble and not trouble:
            log.info("%s answers again", self.runtime.name)
        self._trouble = trouble

    def _run(self) -> None:
        poked = False
        while not self._stopped:
            self.observe()
            poked = self._poked.wait(SECOND_LOOK if poked else self._interval)
            self._poked.clear()
