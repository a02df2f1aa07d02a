"""Faults of a part that is begun again after each: how many there were of late, and notices of them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from gputui.domain.errors import GputuiError
from gputui.domain.snapshot import Notice

WITHIN = 60.0
"""Seconds for which a fault counts."""
SHOWN_FOR = 600.0
"""Seconds for which a notice tells of a fault."""


class GivenUpError(GputuiError):
    """Scheduling failed again and again in this process; `fault` is the last error."""

    def __init__(self, part: str, fault: BaseException, times: int) -> None:
        what = f"scheduling here failed {times} times within a minute, the last time in {part} by {in_words(fault)}"
        super().__init__(what)
        self.fault = fault


class Count:
    """Number of faults of late."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._at: deque[float] = deque(maxlen=most + 1)

    def add(self, at: float) -> bool:
        """Count one more, at that time in seconds; return whether the part may be begun again."""
        self._at.append(at)
        return len(self._at) <= self._most or at - self._at[0] > WITHIN

    def __len__(self) -> int:
        return len(self._at)


class Faults:
    """Faults of the scheduler's parts. Safe to use from any thread."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._count = Count(most)
        self._clock = clock
        self._last: tuple[float, Notice] | None = None

    def add(self, part: str, fault: BaseException) -> GivenUpError | None:
        """Note a fault; return the error to give up with where there were too many of late."""
        now = self._clock()
        words = f"the scheduler failed in {part} and goes on: {in_words(fault)}; gputui.log in the state directory"
        self._last = now, Notice("error", f"{words} has the details")
        return None if self._count.add(now) else GivenUpError(part, fault, len(self._count))

    @property
    def notices(self) -> tuple[Notice, ...]:
        """The notice of the last fault, for a while."""
        last = self._last
        return (last[1],) if last is not None and self._clock() - last[0] < SHOWN_FOR else ()


def in_words(fault: BaseException) -> str:
    """Return its kind, and its message."""
    return f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__
