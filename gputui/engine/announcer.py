"""Tells commands, a webhook and mail about ended jobs, sick GPUs and a full disk, without holding up any tick.

An end that is still to be told is read off the job itself, so a scheduler that was killed tells it when it is back:
each end is told at least once, and a receiver knows a repetition by the event's id. Health of GPUs and the disk are
told by the scheduler that saw them. Each target has an outbox of its own: a slow one delays no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from datetime import datetime

from gputui.domain.errors import NotFoundError
from gputui.domain.event import Event, ended, health_changes, untold
from gputui.domain.gpu import GpuView
from gputui.domain.job import JobId
from gputui.domain.settings import HookSettings
from gputui.domain.snapshot import Notice
from gputui.engine.delivery import Deliver
from gputui.engine.outbox import Outbox
from gputui.engine.picture import Queue
from gputui.ports import JobStore


class Announcer:
    """Puts events into the outboxes of all who want them. `look` is called at every tick and never blocks."""

    def __init__(
        self,
        store: JobStore,
        settings: HookSettings,
        sinks: Iterable[tuple[str, Callable[[Event], bool], Deliver]],
        workers: Callable[[str], Executor],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`workers` makes the workers of an outbox, given their name."""
        self._store = store
        self._settings = settings
        self._outboxes = tuple(
            Outbox(name, wants, deliver, settings.tries, workers(f"hook-{name}"), wake)
            for name, wants, deliver in sinks
        )
        self._tellings: dict[str, tuple[Event, JobId]] = {}
        """Ends of jobs that somebody is still to be told of, or that are to be written down as told, by event id."""
        self._queue: Queue | None = None
        self._views: tuple[GpuView, ...] | None = None

    def notices(self, now: datetime) -> tuple[Notice, ...]:
        """Return the targets that do not work, and how many deliveries were dropped."""
        return tuple(Notice("warning", text) for outbox in self._outboxes for text in outbox.notices(now))

    def look(self, queue: Queue, views: tuple[GpuView, ...], now: datetime) -> None:
        """Tell what is new, try again what is due, and write down which ends have been told."""
        if not self._outboxes:
            return
        for outbox in self._outboxes:
            outbox.try_again(now)
        done = self._settled()
        self._write_down(done)
        if self._views is not None:
            for event in health_changes(self._views, views, now):
                self.tell(event, now)
        self._views = views
        if done:  # this queue was read before they were written down, and still says that nobody was told
            self._queue = None
        elif queue is not self._queue:
            self._tell_ends(queue, now)

    def tell(self, event: Event, now: datetime) -> None:
        """Have everybody told who wants to hear of it."""
        for outbox in self._outboxes:
            if outbox.wants(event):
                outbox.put(event, now)

    def close(self) -> None:
        """Begin no further delivery."""
        for outbox in self._outboxes:
            outbox.close()

    def _tell_ends(self, queue: Queue, now: datetime) -> None:
        """Tell the ends that somebody has room for; the others stay in the store until then."""
        self._queue = queue
        for job in untold(queue.jobs.values(), now, self._settings.max_age):
            event = ended(job)
            if event.id in self._tellings:
                continue
            wanting = [outbox for outbox in self._outboxes if outbox.wants(event)]
            if wanting and all(outbox.is_busy for outbox in wanting):
                self._queue = None
                if all(outbox.is_busy for outbox in self._outboxes):
                    return
                continue
            self._tellings[event.id] = (event, job.id)
            self.tell(event, now)

    def _settled(self) -> list[tuple[Event, JobId]]:
        """Return the ends that everybody has heard of, or that were given up."""
        return [
            (event, job_id)
            for event, job_id in self._tellings.values()
            if not any(outbox.holds(event.id) for outbox in self._outboxes)
        ]

    def _write_down(self, told: list[tuple[Event, JobId]]) -> None:
        """Write down that these ends were told: only then are they forgotten, so a store that refuses loses none."""
        if not told:
            return
        with self._store.transaction() as transaction:
            for event, job_id in told:
                with suppress(NotFoundError):
                    job = transaction.get(job_id)
                    if job.ended_at == event.at:
                        transaction.put(job.evolve(announced_end_at=event.at))
        for event, _ in told:
            del self._tellings[event.id]
