"""Workers that no exit waits for: their work may take its whole time-out."""

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
    """A few daemon threads, started as they are needed."""

    def __init__(self, workers: int, name: str) -> None:
        self._waiting: SimpleQueue[_Work | None] = SimpleQueue()
        self._most, self._name = workers, name
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self._idle = threading.Condition()
        self._given = 0
        """Work that is waiting or under way."""
        self._busy = 0
        """Work under way."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have it done; after `shutdown` nothing is done any more."""
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
        """Begin nothing more. Never waits."""
        with self._idle:
            self._is_closed = True
            for _ in self._threads:
                self._waiting.put(None)

    def drain(self, timeout: float) -> bool:
        """Wait for the work under way; return whether it ended within `timeout` seconds."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._busy, max(0.0, timeout))

    def _work(self) -> None:
        while (work := self._waiting.get()) is not None:
            with self._idle:
                is_wanted = not self._is_closed
                self._busy += is_wanted
            if is_wanted:
                work()
            del work  # or the objects it was about would be kept until there is more to do
            with self._idle:
                self._given -= 1
                self._busy -= is_wanted
                self._idle.notify_all()
