"""Pools of worker threads, one for each kind of work in each runtime, so that slow work of one kind delays no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from enum import StrEnum
from queue import SimpleQueue
from typing import ParamSpec, TypeAlias, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_Task = Callable[[], None]


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
        """Return the pool for this kind of work in that runtime."""
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


class DaemonExecutor(Executor):
    """Executor with a few daemon threads, started as needed."""

    def __init__(self, workers: int, name: str) -> None:
        self._waiting: SimpleQueue[_Task | None] = SimpleQueue()
        self._most, self._name = workers, name
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self._idle = threading.Condition()
        self._given = 0
        """Number of waiting and current tasks."""
        self._busy = 0
        """Number of current tasks."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run the function in a thread; after `shutdown` it is cancelled."""
        future: Future[T] = Future()

        def work() -> None:
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - as other executors do: the thread must live
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._idle:
            if self._is_closed:
                future.cancel()
                return future
            self._given += 1
            self._waiting.put(work)
            if self._given > len(self._threads) < self._most:
                self._threads.append(threading.Thread(target=self._work, name=self._name, daemon=True))
                self._threads[-1].start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Start no further task. Never waits."""
        with self._idle:
            self._is_closed = True
            for _ in self._threads:
                self._waiting.put(None)

    def drain(self, timeout: float) -> bool:
        """Wait for the current tasks; return whether they ended within `timeout` seconds."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._busy, max(0.0, timeout))

    def _work(self) -> None:
        while (work := self._waiting.get()) is not None:
            with self._idle:
                is_wanted = not self._is_closed
                self._busy += is_wanted
            if is_wanted:
                work()
            del work  # or its objects would be kept until the next task
            with self._idle:
                self._given -= 1
                self._busy -= is_wanted
                self._idle.notify_all()
