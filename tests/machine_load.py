"""Time bounds that hold on busy machines too."""

from __future__ import annotations

import time

_WORK = 0.03
"""CPU seconds of one measurement."""


def slowness() -> float:
    """Return the wall seconds per CPU second now: 1 on an idle machine, 3 if three programs want each CPU."""
    began, worked = time.monotonic(), time.thread_time()
    while (used := time.thread_time() - worked) < _WORK:
        pass
    return max(1.0, (time.monotonic() - began) / used)


def stretched(seconds: float) -> float:
    """Return as many seconds on an idle machine, and more on a busy one, in proportion.

    For bounds that are part of what a test asserts. Waits that merely give up at some time need none.
    """
    return seconds * slowness()
