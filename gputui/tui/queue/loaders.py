"""Loaders of what the queue shows beyond a snapshot: the history, page by page or of one GPU, and scores.

They run in threads of their own.
"""

from __future__ import annotations

import heapq
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile
from typing import TypeAlias

from msgspec import Struct
from textual.message import Message

from gputui.domain.errors import GputuiError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot
from gputui.ports import Clock
from gputui.tui.progress import (
    IsWanted,
    LatestWorker,
    LongTask,
    TaskCancelledError,
    TaskStarted,
    Throttle,
    failure_words,
)
from gputui.tui.queue.folding import by_end
from gputui.tui.queue.tab_models import EndedJobs

ReadHistory: TypeAlias = Callable[[datetime | None], Iterable[Job]]
"""Returns finished jobs that left the queue file since a time, or all. May block."""
PAGES = (timedelta(days=7), timedelta(days=62), timedelta(days=366), None)
"""Periods that are read one after the other, each when the end of the list is reached."""
GIVEN_UP = "reading was cancelled; 2 continues it"
_TOLD_EVERY = 100


@dataclass(eq=False)
class HistoryRead(Message, bubble=False):
    """A page of history."""

    jobs: dict[int, Job]
    is_whole: bool
    failure: str = ""


class HistoryLoader:
    """Loads ended jobs from the history, page by page. Never blocks."""

    def __init__(self, history: ReadHistory, tell: Callable[[Message], object]) -> None:
        self._history = history
        self._tell = tell
        self._newest = LatestWorker(tell, lambda error: HistoryRead({}, True, failure_words(error)))
        self._page = -1
        self.read = HistoryRead({}, False)
        self.is_reading = False

    def read_further(self, now: datetime) -> None:
        """Read one more page, unless all is read or a page is being read."""
        if self.is_reading or self.read.is_whole:
            return
        self.is_reading = True
        self._page += 1
        page = PAGES[self._page]
        since, is_last = (None if page is None else now - page), self._page == len(PAGES) - 1

        reading = LongTask("Reading the history:", "jobs")

        def work(is_wanted: IsWanted) -> Message:
            reading.begin()
            found: dict[int, Job] = {}
            try:
                for job in takewhile(lambda _: is_wanted(), self._history(since)):
                    found[job.id] = job
                    if len(found) % _TOLD_EVERY == 0:
                        reading.step(len(found))
                return HistoryRead(found, is_last)
            except TaskCancelledError:
                return HistoryRead(self.read.jobs, False, GIVEN_UP)
            except GputuiError as error:  # the cluster, or one of several servers, does not answer
                return HistoryRead(self.read.jobs | found, False, str(error))
            finally:
                reading.end()

        self._newest.ask(work)
        self._tell(TaskStarted(reading))

    def take(self, message: HistoryRead) -> None:
        self.is_reading, self.read = False, message
        if message.failure and not message.is_whole:  # the same page again, when its end is reached
            self._page -= 1

    def close(self) -> None:
        self._newest.close()

    def ended(self, snapshot: Snapshot) -> EndedJobs:
        """Return all ended jobs, latest first: those of the queue file and those read from history."""
        known = {**self.read.jobs, **{job.id: job for job in snapshot.jobs if job.state.is_terminal}}
        live = {job.id for job in snapshot.jobs if not job.state.is_terminal}  # one from history may have been requeued
        over = sorted((job for job in known.values() if job.id not in live), key=by_end, reverse=True)
        return EndedJobs({job.id: job for job in over}, self.read.is_whole, self.is_reading, self.read.failure)


@dataclass(eq=False)
class ScoresMade(Message, bubble=False):
    """Scores of the waiting jobs, by id; empty if the computation failed."""

    scores: dict[JobId, float]


class ScoreLoader:
    """Computes the scores of a snapshot once, and rarely enough that it takes little of a core."""

    def __init__(self, settings: Settings, clock: Clock, tell: Callable[[Message], object]) -> None:
        self._settings = settings
        self._clock = clock
        self._worker = LatestWorker(tell, lambda error: ScoresMade({}))
        self._asked: Callable[[], Snapshot | None] = lambda: None
        """Snapshot of the last request, as a weak reference, since it holds a whole queue."""
        self._throttle = Throttle(rest=9)

    def close(self) -> None:
        self._worker.close()

    def load(self, snapshot: Snapshot) -> None:
        """Request the scores of the snapshot, unless they were requested, or it is too soon."""
        if self._asked() is snapshot or not self._throttle.may_begin:
            return
        self._asked = weakref.ref(snapshot)
        settings, now = self._settings, self._clock.now()
        self._throttle.begin()

        def work(is_wanted: IsWanted) -> Message:
            from gputui.domain.policy import reorder

            parts = [(server.snapshot, server.settings) for server in snapshot.servers] or [(snapshot, settings)]
            standings = (reorder.queue_standings(part, rules, now) for part, rules in parts)
            return ScoresMade({each.job.id: each.score for found in standings for each in found})

        self._worker.ask(work)

    def end(self) -> None:
        self._throttle.end()


PERIOD = timedelta(days=7)
"""Time back to which the history is read."""
_MOST = 50


class PastJobs(Struct, frozen=True):
    """Jobs of a GPU that left the queue file in the last days, the latest ones."""

    jobs: tuple[Job, ...] = ()
    is_read: bool = False
    failure: str = ""


@dataclass(eq=False)
class PastJobsRead(Message, bubble=False):
    """Message with the past jobs of a GPU."""

    uuid: str
    past: PastJobs


class PastJobsLoader:
    """Reads the history once for each GPU that is asked for. Never blocks."""

    def __init__(self, history: ReadHistory, tell: Callable[[Message], object]) -> None:
        self._history = history
        self._worker = LatestWorker(
            tell, lambda error: PastJobsRead(self._uuid, PastJobs((), True, failure_words(error)))
        )
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
        self._worker.close()

    def _read(self, uuid: str, since: datetime, is_wanted: IsWanted) -> PastJobs:
        jobs = takewhile(lambda _: is_wanted(), self._history(since))
        found = (job for job in jobs if any(uuid in attempt.gpus for attempt in job.attempts))
        return PastJobs(tuple(heapq.nlargest(_MOST, found, key=by_end)), True)
