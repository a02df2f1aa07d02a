"""Interface of a monitor of the scheduler, which counts events and durations, and the fields of its log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from gputui.domain.job_spec import JobId

if TYPE_CHECKING:
    from gputui.domain.snapshot import Notice, Snapshot


class Monitor(Protocol):
    """Monitor of one term of a scheduler. Calls may come from any thread; they neither block nor raise."""

    def published(self, snapshot: Snapshot) -> None:
        """Record the snapshot at the end of a tick."""

    def took(self, step: str, seconds: float) -> None:
        """Record the duration of a step: `tick` or `plan`."""

    def failed(self, part: str) -> None:
        """Record a fault of a part of the scheduler."""

    def wrote(self, seconds: float) -> None:
        """Record the duration of a write to the journal, until it was on disk."""

    def called(self, runtime: str, call: str, result: str, seconds: float) -> None:
        """Record a call to a runtime; the result is `ok`, `error` or `unavailable`."""

    def delivered(self, hook: str, result: str) -> None:
        """Record a delivery to a hook; the result is `ok`, `failed` (one try) or `dropped`."""

    def notices(self) -> tuple[Notice, ...]:
        """Return notices of problems of the monitor itself."""

    def page(self) -> bytes:
        """Return what was recorded as a page for Prometheus; empty: it keeps nothing."""

    def close(self) -> None:
        """End with the scheduler's term."""


class Monitors:
    """Several monitors as one; without any it records nothing, and is the base of monitors of a few events."""

    _monitors: tuple[Monitor, ...] = ()

    @classmethod
    def of(cls, *monitors: Monitor) -> Monitors:
        """Return these as one."""
        several = cls()
        several._monitors = monitors
        return several

    def published(self, snapshot: Snapshot) -> None:
        for monitor in self._monitors:
            monitor.published(snapshot)

    def took(self, step: str, seconds: float) -> None:
        for monitor in self._monitors:
            monitor.took(step, seconds)

    def failed(self, part: str) -> None:
        for monitor in self._monitors:
            monitor.failed(part)

    def wrote(self, seconds: float) -> None:
        for monitor in self._monitors:
            monitor.wrote(seconds)

    def called(self, runtime: str, call: str, result: str, seconds: float) -> None:
        for monitor in self._monitors:
            monitor.called(runtime, call, result, seconds)

    def delivered(self, hook: str, result: str) -> None:
        for monitor in self._monitors:
            monitor.delivered(hook, result)

    def notices(self) -> tuple[Notice, ...]:
        return tuple(notice for monitor in self._monitors for notice in monitor.notices())

    def page(self) -> bytes:
        return b"".join(monitor.page() for monitor in self._monitors)

    def close(self) -> None:
        for monitor in self._monitors:
            monitor.close()


NO_MONITOR = Monitors()
"""Monitor for when metrics are off."""


KEY = "gputui"
"""Attribute of the record that has them."""


class LogFields(Struct, frozen=True):
    """Job, attempt and GPUs that a log record is about."""

    job: JobId | None = None
    attempt: int | None = None
    gpus: tuple[str, ...] = ()
    """UUIDs."""


def about(job: JobId | None = None, attempt: int | None = None, gpus: Iterable[str] = ()) -> dict[str, object]:
    """Return the `extra` argument for a call to the logger."""
    return {KEY: LogFields(job, attempt, tuple(gpus))}
