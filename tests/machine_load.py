"""Time bounds that hold on busy and on slow machines too."""

from __future__ import annotations

import time

_ROUNDS = 1_000_000
_USUAL = 0.03
"""Seconds that so many rounds take on a usual processor that nobody else wants."""


def slowness() -> float:
    """Return how many times longer work takes now than on a usual idle machine; 1 if it takes less."""
    began = time.monotonic()
    for _ in range(_ROUNDS):
        pass
    return max(1.0, (time.monotonic() - began) / _USUAL)


def stretched(seconds: float) -> float:
    """Return as many seconds on an idle machine, and more on a busy or a slow one, in proportion.

    For bounds that are part of what a test asserts. Waits that merely give up at some time need none.
    """
    return seconds * slowness()
