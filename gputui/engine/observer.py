"""What a runtime holds now, asked by a thread of its own, so that an engine that hangs never hangs the scheduler."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from gputui.domain.container import ContainerRecord, ForeignContainer, RuntimeStatus
from gputui.domain.errors import RuntimeFault
from gputui.ports import Runtime

log = logging.getLogger(__name__)

SECOND_LOOK = 0.3
"""Seconds after a poke at which to look once more: engines tell of an end before their listing shows it."""


@dataclass(frozen=True)
class Observation:
    """One listing of a runtime. None stands for: it did not answer, so nothing is known."""

    status: RuntimeStatus
    begun: int = 0
    """Place in the order of events: what was settled before it must be in the listing. 0: not asked yet."""
    records: tuple[ContainerRecord, ...] | None = None
    foreign: tuple[ForeignContainer, ...] | None = None


class Sequence:
    """Numbers events in the order in which they happen, whatever the clock does meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def next(self) -> int:
        """A number larger than all before."""
        with self._lock:
            self._last += 1
            return self._last


class Observer:
    """Lists one runtime whenever it is poked, and every so often anyway."""

    def __init__(self, runtime: Runtime, sequence: Sequence, changed: Callable[[], None], interval: timedelta) -> None:
        self.runtime = runtime
        self._sequence = sequence
        self._changed = changed
        self._interval = interval.total_seconds()
        self._poked = threading.Event()
        self._stopped = False
        self.latest = Observation(runtime.status())

    def start(self) -> None:
        """Begin, in a daemon thread: a call that hangs must not keep the process from ending."""
        threading.Thread(target=self._run, name=f"observe-{self.runtime.name}", daemon=True).start()
        self.runtime.watch(self.poke)

    def poke(self) -> None:
        """Look again as soon as can be. Never blocks."""
        self._poked.set()

    def stop(self) -> None:
        """Look no more."""
        self._stopped = True
        self._poked.set()

    def observe(self) -> None:
        """Look now."""
        begun = self._sequence.next()
        try:
            if not self.runtime.status().up:
                self.runtime.check()
            records = self.runtime.containers()
            foreign = self.runtime.foreign()
        except RuntimeFault as fault:
            log.warning("%s does not answer: %s", self.runtime.name, fault)
            status = self.runtime.status()
            seen = Observation(status if not status.up else self.runtime.check(), begun)
        else:
            seen = Observation(self.runtime.status(), begun, records, foreign)
        before, self.latest = self.latest, seen
        if (before.status, before.records, before.foreign) != (seen.status, seen.records, seen.foreign):
            self._changed()

    def _run(self) -> None:
        poked = False
        while not self._stopped:
            try:
                self.observe()
            except Exception:  # the border of a thread: an adapter's slip must not end the watching
                log.exception("observing %s failed", self.runtime.name)
            poked = self._poked.wait(SECOND_LOOK if poked else self._interval)
            self._poked.clear()
