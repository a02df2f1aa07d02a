"""Works something out on a thread of its own; what was asked for last is all that counts."""

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
Work: TypeAlias = Callable[[IsWanted], Message]


class Pace:
    """How often something is worked out by itself: it must not eat a core."""

    def __init__(self, rest: float) -> None:
        self._rest = rest
        """For so many times as long as it took, it is not begun again."""
        self._begun = self._ended = 0.0
        self.waits = False
        """It is being worked out."""

    def begin(self) -> None:
        """It is asked for."""
        self.waits, self._begun = True, time.monotonic()

    def end(self) -> None:
        """It is there."""
        self.waits, self._ended = False, time.monotonic()

    @property
    def may_begin(self) -> bool:
        """Whether it may be worked out again."""
        return not self.waits and time.monotonic() - self._ended >= self._rest * (self._ended - self._begun)


class Newest:
    """Carries out the newest request alone; an older one is told that it is wanted no more. Never blocks its caller.

    The thread is a daemon: a screen that is left, or a console that is quit, waits for no forecast.
    """

    def __init__(self, tell: Callable[[Message], object], failed: Callable[[Exception], Message]) -> None:
        self._tell = tell
        self._failed = failed
        self._asked: queue.SimpleQueue[tuple[int, Work] | None] = queue.SimpleQueue()
        self._number = 0
        self._thread: threading.Thread | None = None

    def ask(self, work: Work) -> None:
        """Have this worked out instead of whatever was asked for before."""
        self._number += 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gputui-forecast", daemon=True)
            self._thread.start()
        self._asked.put((self._number, work))

    def close(self) -> None:
        """Nothing is wanted any more."""
        self._number += 1
        self._thread = None
        self._asked.put(None)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            number, work = asked
            if number == self._number:
                self._carry_out(number, work)
            del asked, work  # or the queue it was asked about would be kept until something else is asked for

    def _carry_out(self, number: int, work: Work) -> None:
        try:
            message = work(lambda: number == self._number)
        except Exception as error:  # noqa: BLE001 - a border: what went wrong is told where the answer would stand
            message = self._failed(error)
        if number == self._number:
            self._tell(message)


@dataclass(eq=False)
class Base:
    """What a forecast is made from: the same for every change thought of until the picture is another one."""

    snapshot: Snapshot
    now: datetime
    before: Timeline | None = None
    """How things would go with no change at all, once that is worked out."""


def are_alike(before: Snapshot, after: Snapshot) -> bool:
    """Whether a plan would be made from the same things: jobs, wishes, and how the GPUs stand."""
    if before is after:
        return True
    return before.jobs == after.jobs and before.controls == after.controls and _gpus(before) == _gpus(after)


def _gpus(snapshot: Snapshot) -> list[object]:
    return [(view.gpu.uuid, view.state, view.drain, view.health.code, view.job_id) for view in snapshot.gpus]
