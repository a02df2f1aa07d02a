"""Announces ended jobs, sick GPUs and a full disk to commands, a webhook and mail, without delaying any tick.

Whether an end has been announced is stored in the job, so a killed scheduler announces it when it is back: each end is
announced at least once, and a receiver recognises a repetition by the event's id. Health of GPUs and the disk are
announced by the scheduler that saw them. Each target has an outbox of its own: a slow one delays no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from datetime import datetime

from gputui.domain.entries import Entries
from gputui.domain.errors import NotFoundError
from gputui.domain.event import Event, ended, health_changes, untold
from gputui.domain.gpu import GpuView
from gputui.domain.job import Job
from gputui.domain.settings import HookSettings
from gputui.domain.snapshot import Notice
from gputui.engine.hooks.delivery import Deliver
from gputui.engine.hooks.outbox import Outbox
from gputui.ports import JobStore


class Announcer:
    """Puts events into the outboxes of their targets. `update` is called at every tick and never blocks."""

    def __init__(
        self,
        store: JobStore,
        settings: HookSettings,
        sinks: Iterable[tuple[str, Callable[[Event], bool], Deliver]],
        workers: Callable[[str], Executor],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """Make an outbox for each sink; `workers` makes its executor, given a name."""
        self._store = store
        self._settings = settings
        self._outboxes = tuple(
            Outbox(name, wants, deliver, settings.tries, workers(f"hook-{name}"), wake)
            for name, wants, deliver in sinks
        )
        self._under_way: dict[str, tuple[Event, Job]] = {}
        """Ends of jobs, by event id, that are being announced or are not recorded as announced yet."""
        self._jobs: Entries | None = None
        """Jobs whose ends have been looked through; None where that is to be done again."""
        self._views: tuple[GpuView, ...] | None = None

    def notices(self, now: datetime) -> tuple[Notice, ...]:
        """Return the targets that do not work, and how many deliveries were dropped."""
        return tuple(Notice("warning", text) for outbox in self._outboxes for text in outbox.notices(now))

    def update(self, jobs: Entries, views: tuple[GpuView, ...], now: datetime) -> None:
        """Announce new events, retry due deliveries, and record which ends have been announced."""
        if not self._outboxes:
            return
        for outbox in self._outboxes:
            outbox.try_again(now)
        done = self._finished()
        self._record(done)
        if self._views is not None:
            for event in health_changes(self._views, views, now):
                self.announce(event, now)
        self._views = views
        if done:  # these jobs were read before that was recorded
            self._jobs = None
        elif jobs is not self._jobs:
            self._announce_ends(jobs, now)

    def announce(self, event: Event, now: datetime) -> None:
        """Announce the event to every target that wants it."""
        for outbox in self._outboxes:
            if outbox.wants(event):
                outbox.put(event, now)

    def close(self) -> None:
        """Begin no further delivery."""
        for outbox in self._outboxes:
            outbox.close()

    def _announce_ends(self, jobs: Entries, now: datetime) -> None:
        """Announce ends while outboxes have room; the others stay in the store until then."""
        self._jobs = jobs
        for job in untold(jobs.values(), now, self._settings.max_age):
            event = ended(job)
            if event.id in self._under_way:
                continue
            wanting = [outbox for outbox in self._outboxes if outbox.wants(event)]
            if wanting and all(outbox.is_busy for outbox in wanting):
                self._jobs = None
                if all(outbox.is_busy for outbox in self._outboxes):
                    return
                continue
            self._under_way[event.id] = (event, job)
            self.announce(event, now)

    def _finished(self) -> list[tuple[Event, Job]]:
        """Return the ends that everybody has heard of, or that were given up."""
        return [
            (event, job)
            for event, job in self._under_way.values()
            if not any(outbox.holds(event.id) for outbox in self._outboxes)
        ]

    def _record(self, told: list[tuple[Event, Job]]) -> None:
        """Record that these ends were announced. They are forgotten only then, so an error of the store loses none."""
        if not told:
            return
        with self._store.transaction() as transaction:
            for event, ended_job in told:
                with suppress(NotFoundError):
                    for job in transaction.chosen(ended_job.ids):
                        if job.ended_at == event.at:
                            transaction.put(job.evolve(announced_end_at=event.at))
        for event, _ in told:
            del self._under_way[event.id]
