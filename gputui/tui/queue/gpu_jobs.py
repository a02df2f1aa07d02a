"""Loader of the ended jobs that a GPU had, from the history, in a thread of its own."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from msgspec import Struct
from textual.message import Message

from gputui.domain.job import Job
from gputui.tui.latest_worker import IsWanted, LatestWorker
from gputui.tui.queue.loaders import ReadHistory

PERIOD = timedelta(days=7)
"""How far back the history is read."""
_MOST = 50


class PastJobs(Struct, frozen=True):
    """Jobs of a GPU that left the queue file in the last days, the latest ones."""

    jobs: tuple[Job, ...] = ()
    is_read: bool = False
    failure: str = ""


class PastJobsRead(Message, bubble=False):
    """Message with the past jobs of a GPU."""

    def __init__(self, uuid: str, past: PastJobs) -> None:
        super().__init__()
        self.uuid = uuid
        self.past = past


class PastJobsLoader:
    """Reads the history once for each GPU that is asked for. Never blocks."""

    def __init__(self, history: ReadHistory, tell: Callable[[Message], object]) -> None:
        self._history = history
        self._worker = LatestWorker(tell, self._failed)
        self._uuid = ""
        self._past = PastJobs()

    def of(self, uuid: str, now: datetime) -> PastJobs:
        """Return what is known of a GPU's past jobs; of another GPU than before, begin to read them."""
        if uuid != self._uuid:
            self._uuid, self._past = uuid, PastJobs()
            self._worker.ask(lambda is_wanted: PastJobsRead(uuid, self._read(uuid, now - PERIOD, is_wanted)))
        return self._past

    def take(self, message: PastJobsRead) -> None:
        """Store what was read, if its GPU is still shown."""
        if message.uuid == self._uuid:
            self._past = message.past

    def close(self) -> None:
        """Stop reading."""
        self._worker.close()

    def _read(self, uuid: str, since: datetime, is_wanted: IsWanted) -> PastJobs:
        def found() -> Iterator[Job]:
            for job in self._history(since):
                if not is_wanted():
                    return
                if any(uuid in attempt.gpus for attempt in job.attempts):
                    yield job

        return PastJobs(tuple(heapq.nlargest(_MOST, found(), key=_ended)), True)

    def _failed(self, error: Exception) -> Message:
        return PastJobsRead(self._uuid, PastJobs((), True, f"{type(error).__name__}: {error}"))


def _ended(job: Job) -> tuple[datetime, int]:
    return job.ended_at or job.submitted_at, job.id
