"""Jobs that are over, read from the history page by page, by a thread: files of years are not read at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import TypeAlias

from textual.message import Message

from gputui.domain.job import Job
from gputui.domain.snapshot import Snapshot
from gputui.tui.newest import IsWanted, Newest
from gputui.tui.queue.sheets import Ended
from gputui.tui.work import GivenUpError, Work, WorkBegun

History: TypeAlias = Callable[[datetime | None], Iterable[Job]]
"""Finished jobs that left the queue file since then; None: all there are. May block."""
PAGES = (timedelta(days=7), timedelta(days=62), timedelta(days=366), None)
"""How far back is read, one step for each time the end of the list is reached."""

GIVEN_UP = "reading was given up; 2 goes on with it"
_TOLD_EVERY = 100


class PastRead(Message, bubble=False):
    """A page was read."""

    def __init__(self, jobs: dict[int, Job], is_whole: bool, failure: str = "") -> None:
        super().__init__()
        self.jobs = jobs
        self.is_whole = is_whole
        self.failure = failure


class Past:
    """What was read so far. Never blocks."""

    def __init__(self, history: History, tell: Callable[[Message], object]) -> None:
        self._history = history
        self._tell = tell
        self._newest = Newest(tell, lambda error: PastRead({}, True, f"{type(error).__name__}: {error}"))
        self._page = -1
        self.read = PastRead({}, False)
        self.is_reading = False

    def further(self, now: datetime) -> None:
        """Read one page further back, unless all is read or being read."""
        if self.is_reading or self.read.is_whole:
            return
        self.is_reading = True
        self._page += 1
        page = PAGES[self._page]
        since, is_last = (None if page is None else now - page), self._page == len(PAGES) - 1

        reading = Work("Reading the history:", "jobs")

        def work(is_wanted: IsWanted) -> Message:
            reading.begin()
            try:
                return PastRead(self._found(since, is_wanted, reading), is_last)
            except GivenUpError:
                return PastRead(self.read.jobs, False, GIVEN_UP)
            finally:
                reading.end()

        self._newest.ask(work)
        self._tell(WorkBegun(reading))

    def _found(self, since: datetime | None, is_wanted: IsWanted, reading: Work) -> dict[int, Job]:
        found: dict[int, Job] = {}
        for job in self._history(since):
            if not is_wanted():
                break
            found[job.id] = job
            if len(found) % _TOLD_EVERY == 0:
                reading.step(len(found))
        return found

    def take(self, message: PastRead) -> None:
        """A page is there."""
        self.is_reading, self.read = False, message
        if message.failure == GIVEN_UP:
            self._page -= 1

    def close(self) -> None:
        """Nothing is wanted any more."""
        self._newest.close()

    def ended(self, snapshot: Snapshot) -> Ended:
        """All that ended, latest first: what the queue file has still, and what was read."""
        known = {**self.read.jobs, **{job.id: job for job in snapshot.jobs if job.state.is_terminal}}
        live = {job.id for job in snapshot.jobs if not job.state.is_terminal}  # one of history that was requeued
        over = sorted((job for job in known.values() if job.id not in live), key=_ended, reverse=True)
        return Ended({job.id: job for job in over}, self.read.is_whole, self.is_reading, self.read.failure)


def _ended(job: Job) -> tuple[datetime, int]:
    return job.ended_at or job.submitted_at, job.id
