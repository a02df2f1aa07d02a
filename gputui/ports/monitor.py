"""Interface of a monitor of the scheduler, which counts events and durations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gputui.domain.snapshot import Notice, Snapshot


class Monitor(Protocol):
    """Monitor of one term of a scheduler. Calls may come from any thread; they neither block nor raise."""

    def published(self, snapshot: Snapshot) -> None:
        """Record the snapshot at the end of a tick."""
        ...

    def took(self, step: str, seconds: float) -> None:
        """Record the duration of a step: `tick` or `plan`."""
        ...

    def failed(self, part: str) -> None:
        """Record a fault of a part of the scheduler."""
        ...

    def wrote(self, seconds: float) -> None:
        """Record the duration of a write to the journal, until it was on disk."""
        ...

    def called(self, runtime: str, call: str, result: str, seconds: float) -> None:
        """Record a call to a runtime; the result is `ok`, `error` or `unavailable`."""
        ...

    def delivered(self, hook: str, result: str) -> None:
        """Record a delivery to a hook; the result is `ok`, `failed` (one try) or `dropped`."""
        ...

    def notices(self) -> tuple[Notice, ...]:
        """Return notices of problems of the monitor itself."""
        ...

    def close(self) -> None:
        """End with the scheduler's term."""
        ...


class NoMonitor:
    """Monitor that records nothing."""

    def published(self, snapshot: Snapshot) -> None:
        """Do nothing."""

    def took(self, step: str, seconds: float) -> None:
        """Do nothing."""

    def failed(self, part: str) -> None:
        """Do nothing."""

    def wrote(self, seconds: float) -> None:
        """Do nothing."""

    def called(self, runtime: str, call: str, result: str, seconds: float) -> None:
        """Do nothing."""

    def delivered(self, hook: str, result: str) -> None:
        """Do nothing."""

    def notices(self) -> tuple[Notice, ...]:
        """Return nothing."""
        return ()

    def close(self) -> None:
        """Do nothing."""


NO_MONITOR = NoMonitor()
"""Monitor for when metrics are off."""
