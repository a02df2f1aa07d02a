"""Ends calls that take too long as a whole; socket timeouts only bound each single read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass(eq=False)
class Deadline:
    """Time by which a call must have ended."""

    at: float
    """Monotonic seconds."""
    cut: Callable[[], None]
    """Makes the call fail, from another thread."""
    passed: threading.Event = field(default_factory=threading.Event)


class Deadlines:
    """Watches deadlines on one thread, which lives only while there are any."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open: set[Deadline] = set()
        self._is_watching = False

    @contextmanager
    def within(self, seconds: float | None, cut: Callable[[], None]) -> Iterator[Deadline | None]:
        """Call `cut` unless the block is left in time; None: no limit."""
        if seconds is None:
            yield None
            return
        deadline = Deadline(time.monotonic() + seconds, cut)
        with self._changed:
            self._open.add(deadline)
            if not self._is_watching:
                self._is_watching = True
                threading.Thread(target=self._watch, name="engine-deadlines", daemon=True).start()
            self._changed.notify()
        try:
            yield deadline
        finally:
            with self._changed:
                self._open.discard(deadline)

    def _watch(self) -> None:
        while late := self._next_late():
            late.passed.set()
            with suppress(Exception):  # a call that ends by itself meanwhile has nothing left to cut
                late.cut()

    def _next_late(self) -> Deadline | None:
        """Wait for the next deadline that passes; None once there are none to watch."""
        with self._changed:
            while self._open:
                first = min(self._open, key=lambda each: each.at)
                left = first.at - time.monotonic()
                if left <= 0:
                    self._open.discard(first)
                    return first
                self._changed.wait(left)
            self._is_watching = False
            return None


DEADLINES = Deadlines()
"""Shared by all engines of this process."""
