"""Pools of worker threads, one for each kind of work in each runtime, so that slow work of one kind delays no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from enum import StrEnum
from typing import TypeAlias

from gputui.engine.daemons import DaemonExecutor


class Work(StrEnum):
    """Kinds of work. None of them waits for another."""

    START = "start"
    """Create and start containers."""
    STOP = "stop"
    """Send signals: time limits, cancellations, preemptions, warnings."""
    EXIT = "exit"
    """Read the last lines of an attempt that ended; its end is recorded afterwards."""
    CLEAN = "clean"
    """Save logs and remove containers: a log may have gigabytes."""
    LOOK = "look"
    """Ask whether an image is here."""
    PULL = "pull"
    """Fetch images."""
    HISTORY = "history"
    """Read the history for fair share."""


MOST = {
    Work.START: 8,
    Work.STOP: 8,
    Work.EXIT: 4,
    Work.CLEAN: 4,
    Work.LOOK: 4,
    Work.PULL: 8,
    Work.HISTORY: 1,
}
"""Threads of each pool at most: an engine gains nothing from more."""

Pools: TypeAlias = Callable[[Work, str], Executor]
"""Gives the pool for a kind of work in a runtime, by the runtime's name."""


class WorkerPools:
    """The pools of one scheduler, made as they are needed. Their threads keep no process from ending."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: dict[tuple[Work, str], DaemonExecutor] = {}
        self._is_closed = False

    def __call__(self, work: Work, runtime: str) -> Executor:
        """Return the pool for this kind of work in that runtime."""
        with self._lock:
            key = (work, runtime)
            if key not in self._pools:
                self._pools[key] = DaemonExecutor(MOST[work], f"{work}-{runtime}" if runtime else str(work))
                if self._is_closed:
                    self._pools[key].shutdown()
            return self._pools[key]

    def close(self, within: float) -> bool:
        """Begin nothing more, and wait for work under way, pulls aside; return whether it ended within the seconds."""
        with self._lock:
            self._is_closed = True
            pools = dict(self._pools)
        for pool in pools.values():
            pool.shutdown()
        deadline = time.monotonic() + within
        awaited = [pool for (work, _), pool in pools.items() if work is not Work.PULL]
        return all(pool.drain(deadline - time.monotonic()) for pool in awaited)
