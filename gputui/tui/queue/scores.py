"""Scores of waiting jobs, worked out in a thread while a column shows them or the rows are sorted by them."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from textual.message import Message

from gputui.domain.job import JobId
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot
from gputui.ports import Clock
from gputui.tui.latest_worker import IsWanted, LatestWorker, Throttle


class ScoresMade(Message, bubble=False):
    """Scores of the waiting jobs, by id; empty where working them out failed."""

    def __init__(self, scores: dict[JobId, float]) -> None:
        super().__init__()
        self.scores = scores


class ScoreLoader:
    """Works out the scores of a snapshot, once, and not so often that it takes much of a core."""

    def __init__(self, settings: Settings, clock: Clock, tell: Callable[[Message], object]) -> None:
        self._settings = settings
        self._clock = clock
        self._worker = LatestWorker(tell, lambda error: ScoresMade({}))
        self._asked: Callable[[], Snapshot | None] = lambda: None
        """Snapshot whose scores were asked for last, while it exists: a weak reference, for it holds a whole queue."""
        self._throttle = Throttle(rest=9)

    def close(self) -> None:
        """Stop; nobody waits for scores any more."""
        self._worker.close()

    def load(self, snapshot: Snapshot) -> None:
        """Ask for the scores of the snapshot, unless they were asked for, or it is too soon."""
        if self._asked() is snapshot or not self._throttle.may_begin:
            return
        self._asked = weakref.ref(snapshot)
        settings, now = self._settings, self._clock.now()
        self._throttle.begin()

        def work(is_wanted: IsWanted) -> Message:
            from gputui.domain.policy import reorder

            del is_wanted
            return ScoresMade({each.job.id: each.score for each in reorder.queue_standings(snapshot, settings, now)})

        self._worker.ask(work)

    def end(self) -> None:
        """Note that the scores have come."""
        self._throttle.end()
