"""Hooks over a cluster: finds the events in its snapshots, and has them announced by one process of the machine.

Each end of a job is told at least once. An id in a record says that it was, so the process that takes over does not
repeat it. Ends that no snapshot shows, because no process ran or the engine has forgotten the job meanwhile, are looked
up in the history.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from datetime import datetime, timedelta
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field

from gputui.domain.arrays import Entries
from gputui.domain.errors import GputuiError
from gputui.domain.event import Event, end_id, gpus_idle, node_changes, queue_stuck, untold
from gputui.domain.idle_gpus import IdleSpells
from gputui.domain.job import BootTime
from gputui.domain.policy.reasons import gated_jobs
from gputui.domain.state import JobState
from gputui.domain.text import format_duration, plural

if TYPE_CHECKING:
    from gputui.domain.job import Job
    from gputui.domain.job_spec import JobId
    from gputui.domain.settings import HookSettings
    from gputui.domain.snapshot import Node, Notice, Snapshot
    from gputui.engine.hooks import Announcer
    from gputui.ports import Clock, Cluster

log = logging.getLogger(__name__)

GAP = timedelta(minutes=1)
"""Time without an answer of the engine after which it may have forgotten jobs that ended meanwhile."""
STUCK_AFTER = timedelta(minutes=15)
"""Time for which jobs wait, none runs and none starts, before the queue counts as stuck."""
SILENT_AFTER = timedelta(minutes=5)
"""Time without an answer of the engine after which the queue counts as stuck."""
_MOST_ELEMENTS = 1000
_TRIES = 6
_PAUSE = timedelta(seconds=10)
"""Number of times that the history is read for a job that has vanished, and pause between two of them."""


class EndLedger(Protocol):
    """Record of the ends that were told."""

    def events(self) -> Collection[str]: ...

    def add(self, events: Iterable[str]) -> None:
        """Record durably that these were told; raises OSError."""


class EndFinder(Struct, eq=False):
    """Finds jobs that have ended without any snapshot that shows it, by a worker that reads the history."""

    _history: Callable[[datetime], Iterable[Job]]
    _worker: Executor
    _lock: Lock = field(default_factory=Lock)
    """Guards what the worker changes too: the jobs that were found, and those that have vanished."""
    _is_reading: bool = False
    _live: frozenset[JobId] = field(default_factory=frozenset)
    _vanished: dict[JobId, int] = field(default_factory=dict)
    """Jobs that no snapshot shows any more, with the number of times that the history lacked them."""
    _seen_at: datetime | None = None
    _again_at: datetime | None = None
    _since: datetime | None = None
    """Time from which the history is to be read; None: there is no need."""
    found: dict[JobId, Job] = field(default_factory=dict)

    def update(self, jobs: Collection[Job], now: datetime, max_age: timedelta) -> None:
        """Take the jobs of a snapshot, and read the history if some may be missing in it."""
        shown = set(_ids(jobs))
        with self._lock:
            self._vanished |= dict.fromkeys(self._live - shown, 0)
            for job_id in self._vanished.keys() & (shown | self.found.keys()):
                del self._vanished[job_id]
        self._live = frozenset(_ids(job for job in jobs if not job.state.is_terminal))
        before, self._seen_at = self._seen_at, now
        if before is None:
            self._since = now - max_age
        elif now - before > GAP or self._vanished:
            self._since = min(filter(None, (self._since, before - GAP)))
        with self._lock:
            self.found = {job_id: job for job_id, job in self.found.items() if now - (job.ended_at or now) <= max_age}
        is_early = self._again_at is not None and now < self._again_at
        if self._since is not None and not self._is_reading and not is_early:
            self._is_reading, self._again_at, since, self._since = True, now + _PAUSE, self._since, None
            self._worker.submit(self._look, since)

    def _look(self, since: datetime) -> None:
        try:
            found = {job.id: job for job in self._history(since)}
        except GputuiError as error:
            log.warning("ends of jobs cannot be looked up: %s", error)
            self._since = since
        except Exception:  # the border of a worker
            log.exception("looking up ends of jobs")
        else:
            with self._lock:
                self.found = {**self.found, **found}
                tries = {job_id: tries + 1 for job_id, tries in self._vanished.items() if job_id not in found}
                self._vanished = {job_id: number for job_id, number in tries.items() if number < _TRIES}
        finally:
            self._is_reading = False


def _ids(jobs: Iterable[Job]) -> Iterator[JobId]:
    """Yield the ids of jobs and of the elements of small arrays; that a large one vanishes is not noticed."""
    for job in jobs:
        if job.count <= _MOST_ELEMENTS:
            yield from job.ids


class StuckQueue(Struct, eq=False):
    """Notices once that nothing moves in the queue of a cluster, until something does."""

    _moved_at: datetime | None = None
    _is_told: bool = False

    def update(self, snapshot: Snapshot, engine: str, now: datetime) -> Event | None:
        silence = snapshot.leader.silent_for if snapshot.leader is not None else timedelta()
        if silence >= SILENT_AFTER:
            words = f"{engine} has not answered for {format_duration(silence)}"
            return self._tell(words, now - silence, now)
        if silence:
            return None
        gated: Mapping[JobId, object] = gated_jobs(snapshot.reasons)  # the others need only their turn and free GPUs
        entries = (job for job in snapshot.jobs if job.state is JobState.PENDING and not job.held)
        waiting = sum(job.count for job in entries if job.id not in gated)
        if not waiting or any(job.state.is_active for job in snapshot.jobs) or self._moved_at is None:
            self._moved_at, self._is_told = now, False
        elif now - self._moved_at >= STUCK_AFTER:
            lasts = format_duration(now - self._moved_at)
            wait = "waits" if waiting == 1 else "wait"
            text = f"{plural(waiting, 'job')} {wait} for GPUs, and none has started for {lasts}"
            return self._tell(text, self._moved_at, now)
        return None

    def _tell(self, words: str, since: datetime, now: datetime) -> Event | None:
        if self._is_told:
            return None
        self._is_told = True
        return queue_stuck(words, since, now)


class ClusterHooks:
    def __init__(
        self,
        cluster: Cluster,
        announcer: Callable[[Callable[[Sequence[tuple[Event, Job]]], None]], Announcer],
        ledger: EndLedger,
        settings: HookSettings,
        clock: Clock,
        worker: Executor,
        *,
        ends_idle_after: timedelta | None = None,
    ) -> None:
        """`announcer` makes the announcer, given the function that records ends.

        `ends_idle_after` is the time after which own jobs are ended that leave all their GPUs idle.
        """
        self._cluster = cluster
        self._ledger = ledger
        self._settings = settings
        self._clock = clock
        self._finder = EndFinder(cluster.history, worker)
        self._stuck = StuckQueue()
        self._nodes: tuple[Node, ...] | None = None
        self._idle = IdleSpells(ends_idle_after, lambda job: job.submitted_by == cluster.user)
        self._worker = worker
        self._unwritten: set[str] = set()
        """Ids of ends that were told, and that the ledger has not taken yet."""
        self._announcer = announcer(lambda told: self._unwritten.update(event.id for event, _ in told))

    def update(self, snapshot: Snapshot) -> None:
        """Tell of the events in a snapshot; raises OSError at the end if the ledger does not take which were told."""
        now = self._clock.now()
        is_current = snapshot.leader is not None and not snapshot.leader.silent_for
        if is_current:
            jobs = [job for job in snapshot.jobs if self._is_announced(job)]
            self._finder.update(jobs, now, self._settings.max_age)
            told = self._unwritten | set(self._ledger.events())
            every = {job.id: job for job in self._finder.found.values() if self._is_announced(job)}
            every |= {job.id: job for job in jobs if job.state.is_terminal}
            left = (job for job in untold(every.values(), now, self._settings.max_age) if end_id(job) not in told)
            self._announcer.update(
                Entries({job.id: job for job in sorted(left, key=lambda job: job.id)}), snapshot.gpus, now
            )
            for event in node_changes(self._nodes, snapshot.nodes, now) if self._nodes is not None else ():
                self._announcer.announce(event, now)
            self._nodes = snapshot.nodes
            idle = {view.gpu.uuid: view.idle_since for view in snapshot.gpus if view.idle_since is not None}
            running = [job for job in jobs if job.state is JobState.RUNNING] if idle else []
            times = {job.id: {uuid: idle[uuid] for uuid in job.gpus if uuid in idle} for job in running}
            for job, spell in self._idle.update(running, times, BootTime("", 0.0)):
                self._announcer.announce(gpus_idle(job, spell.words, spell.gpus, spell.since, now), now)
        stuck = self._stuck.update(snapshot, self._cluster.caps.engine, now)
        if stuck is not None:
            self._announcer.announce(stuck, now)
        if self._unwritten:
            self._ledger.add(sorted(self._unwritten))
            self._unwritten.clear()

    def notices(self) -> tuple[Notice, ...]:
        return self._announcer.notices(self._clock.now())

    def close(self) -> None:
        """Start no further delivery; what was not delivered is told by the next process."""
        self._announcer.close()
        self._worker.shutdown(wait=False)

    def _is_announced(self, job: Job) -> bool:
        return self._settings.cluster_jobs == "all" or job.submitted_by == self._cluster.user
