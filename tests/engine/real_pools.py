"""The scheduler's own worker pools, for tests: they tell when all work is done, so that no test sleeps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

from gputui.engine.tick.workers import WorkerPools, WorkKind
from tests.engine.fakes import Crash

P = ParamSpec("P")
T = TypeVar("T")
PATIENCE = 60.0
"""Seconds after which work that does not end fails the test."""


class RealPools:
    """Worker pools that count the tasks given to them."""

    def __init__(self) -> None:
        self._pools = WorkerPools()
        self._idle = threading.Condition()
        self._given = 0
        self._crashed = False

    def __call__(self, work: WorkKind, runtime: str) -> Executor:
        return _CountedExecutor(self, self._pools(work, runtime))

    def settle(self) -> None:
        """Wait until no task waits or runs; raise Crash if one ended with it."""
        with self._idle:
            assert self._idle.wait_for(lambda: not self._given, PATIENCE), "work does not end"
            crashed, self._crashed = self._crashed, False
        if crashed:
            raise Crash

    def close(self) -> None:
        """End the threads."""
        self._pools.close(PATIENCE)

    def begin(self) -> None:
        with self._idle:
            self._given += 1

    def end(self, crashed: bool) -> None:
        with self._idle:
            self._given -= 1
            self._crashed |= crashed
            self._idle.notify_all()


class _CountedExecutor(Executor):
    """Executor whose tasks are counted."""

    def __init__(self, pools: RealPools, executor: Executor) -> None:
        self._pools = pools
        self._executor = executor

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        def counted() -> T:
            crashed = True
            try:
                result = fn(*args, **kwargs)
                crashed = False
                return result
            except Exception:
                crashed = False
                raise
            finally:
                self._pools.end(crashed)

        self._pools.begin()
        return self._executor.submit(counted)
