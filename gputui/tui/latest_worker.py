"""Runs computations on their own thread, where only the latest request counts."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct
from textual.message import Message

from gputui.domain.snapshot import Snapshot

if TYPE_CHECKING:
    from gputui.domain.policy.timeline import Timeline

IsWanted: TypeAlias = Callable[[], bool]
Computation: TypeAlias = Callable[[IsWanted], Message]


class Throttle:
    """Limits how often a computation is repeated, so that it does not occupy a core."""

    def __init__(self, rest: float) -> None:
        self._rest = rest
        """Multiple of the last computation's time for which it is not repeated."""
        self._begun = self._ended = 0.0
        self.waits = False
        """True if the computation is running."""

    def begin(self) -> None:
        """Record the start of the computation."""
        self.waits, self._begun = True, time.monotonic()

    def end(self) -> None:
        """Record its end."""
        self.waits, self._ended = False, time.monotonic()

    @property
    def may_begin(self) -> bool:
        """Return whether the computation may be repeated now."""
        return not self.waits and time.monotonic() - self._ended >= self._rest * (self._ended - self._begun)


class LatestWorker:
    """Runs only the newest request; older ones are cancelled. Never blocks its caller.

    The thread is a daemon: closing a screen or the console waits for no forecast.
    """

    def __init__(self, tell: Callable[[Message], object], failed: Callable[[Exception], Message]) -> None:
        self._tell = tell
        self._failed = failed
        self._asked: queue.SimpleQueue[tuple[int, Computation] | None] = queue.SimpleQueue()
        self._number = 0
        self._thread: threading.Thread | None = None

    def ask(self, work: Computation) -> None:
        """Run this computation instead of any earlier request."""
        self._number += 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gputui-forecast", daemon=True)
            self._thread.start()
        self._asked.put((self._number, work))

    def close(self) -> None:
        """Drop all requests, and let the thread end."""
        self._number += 1
        self._thread = None
        self._asked.put(None)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            number, work = asked
            if number == self._number:
                self._carry_out(number, work)
            del asked, work  # or its queue would be kept until the next request

    def _carry_out(self, number: int, work: Computation) -> None:
        try:
            message = work(lambda: number == self._number)
        except Exception as error:  # noqa: BLE001 - a border: what went wrong is told where the answer would stand
            message = self._failed(error)
        if number == self._number:
            self._tell(message)


class ForecastBase(Struct, eq=False):
    """Snapshot and time as the base of forecasts; the same for every change until the next snapshot."""

    snapshot: Snapshot
    now: datetime
    before: Timeline | None = None
    """The forecast without any change, once computed."""


def are_alike(before: Snapshot, after: Snapshot) -> bool:
    """Return whether both lead to the same plan: the same jobs, controls and states of GPUs."""
    if before is after:
        return True
    return before.jobs == after.jobs and before.controls == after.controls and _gpus(before) == _gpus(after)


def _gpus(snapshot: Snapshot) -> list[object]:
    return [(view.gpu.uuid, view.state, view.drain, view.health.code, view.job_id) for view in snapshot.gpus]
