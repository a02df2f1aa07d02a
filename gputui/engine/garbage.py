"""Keeps Python's garbage collections rare, short and out of the way: each stops every thread of the process.

A collection of all that ten thousand jobs, their rows and their plans are made of takes some tenths of a second, and
Python would begin one in the middle of a key. So it collects young objects alone, and old ones when nobody is typing.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, field

YOUNG = 5000
"""New objects that set off a collection, instead of Python's 700.

A plan for thousands of jobs makes and drops more than that every second. What outlives two collections counts as old.
"""
NEVER = 1_000_000
"""Collections of younger objects before Python would collect old ones by itself."""
EVERY, AT_LAST = 300.0, 1800.0
"""Seconds between two sweeps, and after how many there is one although somebody types."""
STILL = 3.0
"""Seconds without a key after which nobody is taken to type."""


@dataclass
class Sweeper:
    """Says when all there is may be gone through; times are seconds of one clock."""

    touched_at: float = field(default_factory=time.monotonic)
    """When somebody pressed a key last, or used the mouse."""
    swept_at: float = field(default_factory=time.monotonic)

    def touch(self, now: float) -> None:
        """Somebody is typing."""
        self.touched_at = now

    def is_due(self, now: float) -> bool:
        """Whether to sweep now."""
        since = now - self.swept_at
        return since >= AT_LAST or (since >= EVERY and now - self.touched_at >= STILL)

    def tend(self, now: float) -> None:
        """Sweep if it is time; called every few seconds, from any thread."""
        if self.is_due(now):
            self.swept_at = now
            gc.collect()


SWEEPER = Sweeper()
"""Of this process, whose garbage is one as well."""


def settle() -> None:
    """Pass over from now on what is here, which is mostly the queue: it stays, and has no cycles.

    Whoever calls it has `SWEEPER` tended from then on. To be called once.
    """
    gc.set_threshold(YOUNG, 10, NEVER)
    gc.freeze()
