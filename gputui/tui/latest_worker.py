"""Runs computations on a thread of their own, where the latest request alone counts."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from textual.message import Message

from gputui.domain.snapshot import Snapshot

if TYPE_CHECKING:
    from gputui.domain.policy.timeline import Timeline

IsWanted: TypeAlias = Callable[[], bool]
Computation: TypeAlias = Callable[[IsWanted], Message]


class Throttle:
    """Limits how often a computation is repeated, so that it does not eat a core."""

    def __init__(self, rest: float) -> None:
        self._rest = rest
        """Multiple of the last computation's time for which it is not repeated."""
        self._begun = self._ended = 0.0
        self.waits = False
        """True if the computation is under way."""

    def begin(self) -> None:
        """Note that the computation was asked for."""
        self.waits, self._begun = True, time.monotonic()

    def end(self) -> None:
        """Note that the result is there."""
        self.waits, self._ended = False, time.monotonic()

    @property
    def may_begin(self) -> bool:
        """Return whether the computation may be repeated now."""
        return not self.waits and time.monotonic() - self._ended >= self._rest * (self._ended - self._begun)


class LatestWorker:
    """Runs the newest request alone; older ones are told that they are not wanted any more. Never blocks its caller.

    The thread is a daemon: a screen that is left, or a console that is quit, waits for no forecast.
    """

    def __init__(self, tell: Callable[[Message], object], failed: Callable[[Exception], Message]) -> None:
        self._tell = tell
        self._failed = failed
        self._asked: queue.SimpleQueue[tuple[int, Computation] | None] = queue.SimpleQueue()
        self._number = 0
        self._thread: threading.Thread | None = None

    def ask(self, work: Computation) -> None:
        """Run this computation instead of any that was asked for before."""
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
            del asked, work  # or the queue it was asked about would be kept until something else is asked for

    def _carry_out(self, number: int, work: Computation) -> None:
        try:
            message = work(lambda: number == self._number)
        except Exception as error:  # noqa: BLE001 - a border: what went wrong is told where the answer would stand
            message = self._failed(error)
        if number == self._number:
            self._tell(message)


@dataclass(eq=False)
class ForecastBase:
    """Snapshot and time that forecasts are made from: the same for every change until there is another snapshot."""

    snapshot: Snapshot
    now: datetime
    before: Timeline | None = None
    """The forecast without any change, once it is worked out."""


def are_alike(before: Snapshot, after: Snapshot) -> bool:
    """Return whether a plan would be made from the same jobs, controls and states of GPUs."""
    if before is after:
        return True
    return before.jobs == after.jobs and before.controls == after.controls and _gpus(before) == _gpus(after)


def _gpus(snapshot: Snapshot) -> list[object]:
    return [(view.gpu.uuid, view.state, view.drain, view.health.code, view.job_id) for view in snapshot.gpus]
