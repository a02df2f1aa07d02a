"""Waiting for what threads, processes and engines do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")
PATIENCE = 60.0


def until(
    look: Callable[[], Found | None], what: object = "", *, seconds: float = PATIENCE, pause: float = 0.02
) -> Found:
    """Return what `look` finds, once that is true; a failure tells `what`, or what that returns if it is called."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"gave up waiting: {what() if callable(what) else what}"
        time.sleep(pause)
    return found
