"""Threads that answer requests. As daemons they do not delay the exit of a process whose disk or engine hangs."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")


class Pool:
    """A few threads, and a queue of work for them."""

    def __init__(self, size: int, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._size = size
        for number in range(size):
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True).start()

    def submit(self, work: Callable[[], object]) -> None:
        """Have the work done; its errors are logged."""
        self._work.put(work)

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of the work, or raise its error. What is cancelled is done all the same."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)  # type: ignore[arg-type]  # None only if T has it
            else:
                future.set_exception(error)

        def do() -> None:
            result, fault = None, None
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - it is raised where the result is awaited
                fault = error
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, result, fault)

        self._work.put(do)
        return await future

    def close(self) -> None:
        """End the threads once the work is done; does not wait for that."""
        for _ in range(self._size):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:  # a border: the thread goes on
                log.exception("work of the API failed")
