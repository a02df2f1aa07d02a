"""Tunes the memory of a long-lived process: Python's garbage collector and glibc's malloc.

A collection stops every thread, including the screen. Collecting ten thousand jobs with their rows and plans takes some
tenths of a second, and Python could start it during a key press. So only young objects are collected, and all others
when nobody is typing.

A queue of ten thousand jobs creates lists of a hundred kilobytes many times a second, in several threads. glibc would
keep a heap for each thread, and place later lists among small long-lived objects: after ten minutes 44 of 74 MB were
holes.
"""

from __future__ import annotations

import contextlib
import gc
import time

from msgspec import Struct, field

YOUNG = 5000
"""New objects that trigger a collection, instead of Python's 700.

A plan for thousands of jobs makes and drops more than that every second. Objects that outlive two collections are old.
"""
NEVER = 1_000_000
"""Collections of younger objects before Python itself collects old ones."""
EVERY, AT_LAST = 300.0, 1800.0
"""Seconds between two full collections while nobody types, and the maximum between two."""
STILL = 3.0
"""Seconds without a key press after which nobody counts as typing."""


class Sweeper(Struct):
    """Decides when to run a full collection. Times are seconds of the monotonic clock."""

    touched_at: float = field(default_factory=time.monotonic)
    """Time of the last key or mouse event."""
    swept_at: float = field(default_factory=time.monotonic)

    def touch(self, now: float) -> None:
        """Record a key or mouse event."""
        self.touched_at = now

    def is_due(self, now: float) -> bool:
        """Return whether a full collection is due."""
        since = now - self.swept_at
        return since >= AT_LAST or (since >= EVERY and now - self.touched_at >= STILL)

    def tend(self, now: float) -> None:
        """Run a full collection if one is due; call it every few seconds, from any thread."""
        if self.is_due(now):
            self.swept_at = now
            gc.collect()


SWEEPER = Sweeper()
"""Sweeper of this process."""


def configure_gc() -> None:
    """Exclude the present objects, mostly the queue, from collections: they stay, and have no cycles.

    Call it once, and call `SWEEPER.tend` regularly from then on.
    """
    gc.set_threshold(YOUNG, 10, NEVER)
    gc.freeze()


MOST_FROZEN = 250_000
"""Exempt objects above which their garbage stays: a console has some 150,000, a queue of ten thousand jobs far more."""


def collect_frozen() -> None:
    """Collect the garbage among the exempt objects, 0.4 MB after a start, if that takes no more than a blink."""
    if gc.get_freeze_count() <= MOST_FROZEN:
        gc.unfreeze()
        gc.collect()
        gc.freeze()


_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Parameters of mallopt(3). Setting a threshold ends its automatic growth."""
LARGE = 64 * 1024
"""Size from which an allocation is mapped separately, and returned to the system when it is freed."""
SPARE = 1024 * 1024
"""Bytes that may stay free at the end of the heap."""


def configure_malloc() -> None:
    """Use one heap for all threads, since Python runs one at a time anyway. Only glibc has several heaps."""
    import ctypes  # a console tunes its memory after its first frame

    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # another C library
        libc.mallopt(_ARENA_MAX, 1)
        libc.mallopt(_MMAP_THRESHOLD, LARGE)
        libc.mallopt(_TRIM_THRESHOLD, SPARE)
