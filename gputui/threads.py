"""Threads that last: those that watch something, which no error ends, and pools of those that work."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger(__name__)

AGAIN_AFTER = 1.0
"""Seconds between an error and the next try."""


class Watcher(threading.Thread):
    """Daemon thread that calls `watch`, and calls it again after an error, until it returns.

    An error is logged, and told to `failed`, so that what the thread kept up to date says that it is old; one that
    comes again and again is logged once. `watch` has to return at once when it is not wanted any more.
    """

    def __init__(
        self, name: str, watch: Callable[[], object], failed: Callable[[Exception], object] = lambda error: None
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._watch = watch
        self._failed = failed

    def run(self) -> None:
        last = ""
        while True:
            try:
                self._watch()
                return
            except Exception as error:
                before, last = last, fault_words(error)
                if last != before:
                    log.error("%s failed, and goes on: %s", self.name, last, exc_info=error)
                try:
                    self._failed(error)
                except Exception:  # a border, as above
                    log.exception("the failure of %s cannot be told", self.name)
            time.sleep(AGAIN_AFTER)


def describe_fault(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__


def fault_words(fault: BaseException) -> str:
    """Return an error for a sentence: of one of the system its file and message alone."""
    if isinstance(fault, OSError) and fault.strerror:
        return f"{fault.filename}: {fault.strerror}" if fault.filename else fault.strerror
    return describe_fault(fault)


_Task = Callable[[], None]


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
