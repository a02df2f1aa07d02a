"""Interface of clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from datetime import datetime

    from gputui.domain.job import BootTime


class Clock(Protocol):
    """Source of the current time."""

    def now(self) -> datetime:
        """Return the current time, aware, in UTC."""
        ...


class SteadyClock(Clock, Protocol):
    """Clock that also measures elapsed time independently of changes to the wall clock."""

    def boot_time(self) -> BootTime:
        """Return the time since boot, the same for all processes of the machine; it stops during suspend."""
        ...
