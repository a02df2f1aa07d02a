"""Waits of tests for what a watch brings."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 60.0
T = TypeVar("T")


def until(look: Callable[[], T], fits: Callable[[T], object], what: str) -> T:
    """Return what is seen as soon as it fits."""
    deadline = time.monotonic() + PATIENCE
    while not fits(found := look()):
        assert time.monotonic() < deadline, f"gave up waiting until {what}: {found}"
        time.sleep(0.05)
    return found
