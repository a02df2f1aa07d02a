"""Counts faults of parts that are restarted after each fault, and creates notices about them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from gputui.domain.errors import GputuiError
from gputui.domain.snapshot import Notice

WITHIN = 60.0
"""Seconds for which a fault counts."""
SHOWN_FOR = 600.0
"""Seconds for which a notice of a fault is shown."""


class SchedulingFailedError(GputuiError):
    """Scheduling failed repeatedly in this process; `fault` is the last error."""

    def __init__(self, part: str, fault: BaseException, times: int) -> None:
        often = f"scheduling in this process failed {times} times within a minute"
        what = f"{often}, the last time in {part} by {describe_fault(fault)}"
        super().__init__(what)
        self.fault = fault


class FaultCount:
    """Number of faults within the last minute."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._at: deque[float] = deque(maxlen=most + 1)

    def add(self, at: float) -> bool:
        """Count a fault at that time, in seconds; return whether the part may be restarted."""
        self._at.append(at)
        return len(self._at) <= self._most or at - self._at[0] > WITHIN

    def __len__(self) -> int:
        return len(self._at)


class Faults:
    """Record of the faults of the scheduler's parts. Safe to use from any thread."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._count = FaultCount(most)
        self._clock = clock
        self._last: tuple[float, Notice] | None = None

    def add(self, part: str, fault: BaseException) -> SchedulingFailedError | None:
        """Record a fault; return the error to stop with if there were too many within a minute."""
        now = self._clock()
        words = (
            f"the scheduler failed in {part} and continues: {describe_fault(fault)}; gputui.log in the state directory"
        )
        self._last = now, Notice("error", f"{words} has the details")
        return None if self._count.add(now) else SchedulingFailedError(part, fault, len(self._count))

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Notice of the last fault, for `SHOWN_FOR` seconds."""
        last = self._last
        return (last[1],) if last is not None and self._clock() - last[0] < SHOWN_FOR else ()


def describe_fault(fault: BaseException) -> str:
    """Return the type and the message of the error."""
    return f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__
