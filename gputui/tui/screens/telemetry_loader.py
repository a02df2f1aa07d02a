"""Loader of the telemetry of the job that a page shows, from files and on a thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from textual.message import Message

from gputui.domain.job import Attempt, Job
from gputui.domain.telemetry_series import Measured
from gputui.tui.latest_worker import IsWanted, LatestWorker
from gputui.tui.present.cells import Cell
from gputui.tui.present.telemetry import telemetry_lines

_AGAIN = 10.0
"""Seconds after which that of a running attempt is read again."""


class TelemetryLoaded(Message, bubble=False):
    """Telemetry of each attempt of a job, by number."""

    def __init__(self, measured: Mapping[int, Measured]) -> None:
        super().__init__()
        self.measured = measured


class TelemetryLoader:
    """Telemetry of a job, as far as it has been read."""

    def __init__(self, post: Callable[[Message], object], read: Callable[[Job], Mapping[int, Measured]]) -> None:
        self._read = read
        self._worker = LatestWorker(post, lambda error: TelemetryLoaded({}))
        self._asked_for: object = None
        self._asked_at = 0.0
        self._measured: Mapping[int, Measured] = {}

    def update(self, job: Job) -> None:
        """Read again where there may be news."""
        attempt = _shown(job)
        if attempt is None:
            return
        wanted, now = (job.id, attempt.number, attempt.is_over), time.monotonic()
        if wanted == self._asked_for and (attempt.is_over or now - self._asked_at < _AGAIN):
            return
        self._asked_for, self._asked_at = wanted, now

        def work(is_wanted: IsWanted) -> Message:
            del is_wanted
            return TelemetryLoaded(self._read(job))

        self._worker.ask(work)

    def take(self, message: TelemetryLoaded) -> None:
        """Keep what was read."""
        self._measured = message.measured

    def lines(self, job: Job, room: int, *, has_graphs: bool, is_tall: bool) -> list[tuple[str, Cell]]:
        """Return the lines of the page about the latest attempt that started; none before they were read."""
        attempt = _shown(job)
        measured = self._measured.get(attempt.number) if attempt else None
        if attempt is None or measured is None:
            return []
        return telemetry_lines(attempt, measured, room, has_graphs=has_graphs, is_tall=is_tall)

    def close(self) -> None:
        """Stop the thread."""
        self._worker.close()


def _shown(job: Job) -> Attempt | None:
    """Return the latest attempt that started."""
    return next((attempt for attempt in reversed(job.attempts) if attempt.started_at), None)
