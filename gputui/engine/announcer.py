"""Tells the world what happened, beside the ticks: told at least once, each way of telling by itself.

That a job's end is still to be told is read off the job itself, so a scheduler that is killed tells it when it is
back; whoever hears of it twice knows it by the event's id. Health of GPUs and the disk are told by the scheduler that
saw them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from datetime import datetime, timedelta

from gputui.domain.errors import NotFoundError
from gputui.domain.event import Event, ended, health_changes, untold
from gputui.domain.gpu import GpuView
from gputui.domain.job import JobId
from gputui.domain.settings import HookSettings
from gputui.domain.snapshot import Notice
from gputui.engine.delivery import Deliver, NotDeliveredError
from gputui.engine.picture import Queue
from gputui.ports import JobStore

log = logging.getLogger(__name__)

AT_ONCE = 64
"""Events being told at a time; jobs beyond wait their turn in the store."""
_FIRST_PAUSE = timedelta(seconds=5)
_LONGEST_PAUSE = timedelta(minutes=20)


class _Telling:
    """An event on its way to those who want to hear of it."""

    def __init__(self, event: Event, sinks: Iterable[str], job_id: JobId | None) -> None:
        self.event = event
        self.job_id = job_id
        self.left = set(sinks)
        self.under_way = 0
        self.tries = 0
        self.again_at: datetime | None = None


class Announcer:
    """`look` is called at every tick and never blocks on whom it tells; workers do that."""

    def __init__(
        self,
        store: JobStore,
        settings: HookSettings,
        sinks: Iterable[tuple[str, Callable[[Event], bool], Deliver]],
        workers: Executor,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._sinks = {name: (wants, deliver) for name, wants, deliver in sinks}
        self._workers = workers
        self._wake = wake
        self._lock = threading.Lock()
        self._tellings: dict[str, _Telling] = {}
        self._faults: dict[str, str] = {}
        self._queue: Queue | None = None
        self._views: tuple[GpuView, ...] | None = None

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Which ways of telling do not work."""
        with self._lock:
            return tuple(Notice("warning", f"hooks.{name}: {fault}") for name, fault in self._faults.items())

    def look(self, queue: Queue, views: tuple[GpuView, ...], now: datetime) -> None:
        """Tell what is new, try again what is due, and write down which ends have been told."""
        if not self._sinks:
            return
        done = self._settled()
        self._write_down(done)
        if self._views is not None:
            for event in health_changes(self._views, views, now):
                self.tell(event)
        self._views = views
        if done:  # this queue was read before they were written down, and still says that nobody was told
            self._queue = None
        elif queue is not self._queue:
            self._tell_ends(queue, now)
        self._try_again(now)

    def tell(self, event: Event, job_id: JobId | None = None) -> None:
        """Have everybody told who wants to hear of it."""
        wanting = [name for name, (wants, _) in self._sinks.items() if wants(event)]
        telling = _Telling(event, wanting, job_id)
        with self._lock:
            self._tellings[event.id] = telling
        self._begin(telling)

    def _tell_ends(self, queue: Queue, now: datetime) -> None:
        """As many as there is room for; the others when these are told."""
        self._queue = queue
        for job in untold(queue.jobs.values(), now, self._settings.max_age):
            if len(self._tellings) >= AT_ONCE:
                self._queue = None
                return
            event = ended(job)
            if event.id not in self._tellings:
                self.tell(event, job.id)

    def _begin(self, telling: _Telling) -> None:
        with self._lock:
            names = sorted(telling.left)
            telling.under_way, telling.again_at = len(names), None
            telling.tries += 1
        for name in names:
            self._workers.submit(self._deliver, telling, name)

    def _deliver(self, telling: _Telling, name: str) -> None:
        fault = ""
        try:
            self._sinks[name][1](telling.event)
        except NotDeliveredError as error:
            fault = str(error)
        except Exception as error:  # the border of a worker
            log.exception("telling %s of %s", name, telling.event.id)
            fault = type(error).__name__
        with self._lock:
            telling.under_way -= 1
            if not fault or telling.tries >= self._settings.tries:
                telling.left.discard(name)
            if fault:
                self._faults[name] = fault
                log.warning("hooks.%s: %s, try %d: %s", name, telling.event.id, telling.tries, fault)
            else:
                self._faults.pop(name, None)
        self._wake()

    def _settled(self) -> list[_Telling]:
        """Those that everybody has heard of, or that were given up."""
        with self._lock:
            return [each for each in self._tellings.values() if not each.left and not each.under_way]

    def _write_down(self, told: list[_Telling]) -> None:
        """That these ends have been told: only then are they out of the book, so a store that refuses loses none."""
        ends = {telling.job_id: telling.event.at for telling in told if telling.job_id is not None}
        if ends:
            with self._store.transaction() as transaction:
                for job_id, at in ends.items():
                    with suppress(NotFoundError):
                        job = transaction.get(job_id)
                        if job.ended_at == at:
                            transaction.put(job.evolve(announced_end_at=at))
        with self._lock:
            for telling in told:
                del self._tellings[telling.event.id]

    def _try_again(self, now: datetime) -> None:
        with self._lock:
            waiting = [each for each in self._tellings.values() if each.left and not each.under_way]
        for telling in waiting:
            if telling.again_at is None:
                telling.again_at = now + min(_FIRST_PAUSE * 4 ** (telling.tries - 1), _LONGEST_PAUSE)
            elif now >= telling.again_at:
                self._begin(telling)
