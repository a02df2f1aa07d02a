"""Workers that no exit waits for: what they are at may take its whole time-out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_Work = Callable[[], None]


class DaemonExecutor(Executor):
    """A few daemon threads, started as they are needed. What they run must not raise."""

    def __init__(self, workers: int, name: str) -> None:
        self._waiting: SimpleQueue[_Work] = SimpleQueue()
        self._most, self._name = workers, name
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have it done; after `shutdown` nothing is done any more."""
        future: Future[T] = Future()
        if not self._is_closed:
            self._waiting.put(lambda: future.set_result(fn(*args, **kwargs)))
            if len(self._threads) < self._most:
                self._threads.append(threading.Thread(target=self._work, name=self._name, daemon=True))
                self._threads[-1].start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Begin nothing more. Never waits."""
        self._is_closed = True

    def _work(self) -> None:
        while True:
            work = self._waiting.get()
            if not self._is_closed:
                work()
            del work  # or what it was about would be kept until there is more to do
