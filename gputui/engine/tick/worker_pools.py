"""Pools of worker threads, one for each kind of work in each runtime, so that slow work of one kind delays no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from enum import StrEnum
from typing import TypeAlias

from gputui.threads import DaemonExecutor


class WorkKind(StrEnum):
    """Kinds of work. No kind waits for another."""

    START = "start"
    """Create and start containers."""
    STOP = "stop"
    """Send signals: time limits, cancellations, preemptions, warnings."""
    EXIT = "exit"
    """Read the last lines of an attempt that ended; its end is recorded afterwards."""
    CLEAN = "clean"
    """Save logs and remove containers: a log may have gigabytes."""
    LOOK = "look"
    """Check whether an image is present."""
    PULL = "pull"
    """Pull images from a registry."""
    HISTORY = "history"
    """Read the history for fair share."""
    TELEMETRY = "telemetry"
    """Read control groups, and write what was measured; one thread, so that files are written in order."""


THREADS = {
    WorkKind.START: 8,
    WorkKind.STOP: 8,
    WorkKind.EXIT: 4,
    WorkKind.CLEAN: 4,
    WorkKind.LOOK: 4,
    WorkKind.PULL: 8,
    WorkKind.HISTORY: 1,
    WorkKind.TELEMETRY: 1,
}
"""Maximum threads of each pool; an engine gains nothing from more."""

Pools: TypeAlias = Callable[[WorkKind, str], Executor]
"""Returns the pool for a kind of work in a runtime, by the runtime's name."""


class WorkerPools:
    """Worker pools of one scheduler, created as needed. Their threads are daemons, so they do not delay the exit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: dict[tuple[WorkKind, str], DaemonExecutor] = {}
        self._is_closed = False

    def __call__(self, work: WorkKind, runtime: str) -> Executor:
        with self._lock:
            key = (work, runtime)
            if key not in self._pools:
                self._pools[key] = DaemonExecutor(THREADS[work], f"{work}-{runtime}" if runtime else str(work))
                if self._is_closed:
                    self._pools[key].shutdown()
            return self._pools[key]

    def close(self, within: float) -> bool:
        """Start nothing more; return whether current work, except pulls, ended within that many seconds."""
        with self._lock:
            self._is_closed = True
            pools = dict(self._pools)
        for pool in pools.values():
            pool.shutdown()
        deadline = time.monotonic() + within
        awaited = [pool for (work, _), pool in pools.items() if work is not WorkKind.PULL]
        return all(pool.drain(deadline - time.monotonic()) for pool in awaited)
