"""Feeds a console with snapshots of a cluster, also while the cluster does not answer."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gputui.domain.errors import ClusterError
from gputui.domain.idle_gpus import IdleTracker
from gputui.domain.snapshot import EMPTY, Notice, Snapshot

if TYPE_CHECKING:
    from gputui.engine.cluster.duties import Duty
    from gputui.engine.cluster.node_readings import NodeReader
    from gputui.engine.cluster.store import ClusterStore
    from gputui.engine.feed import Feed
    from gputui.ports import Clock

log = logging.getLogger(__name__)

LONGEST_PAUSE = 30.0
"""Maximum seconds between two tries while the cluster does not answer."""


class ClusterPoll:
    """Takes a snapshot every few seconds, and at once after a change by this process.

    While the cluster does not answer, the last snapshot stays, marked with its age, and tries become rarer.
    """

    leads = False
    """The engine schedules."""

    def __init__(
        self,
        store: ClusterStore,
        feed: Feed,
        clock: Clock,
        every: timedelta,
        reader: NodeReader | None = None,
        duties: Sequence[Duty] = (),
        idle: IdleTracker | None = None,
    ) -> None:
        """`reader` has the nodes read; None: nobody reads them. `duties` are done with each snapshot.

        `idle` marks idle GPUs for this console, sooner than the process that measures marks them for all.
        """
        self._store = store
        self._feed = feed
        self._clock = clock
        self._every = every.total_seconds()
        self._reader = reader
        self._duties = duties
        self._idle = idle
        self._failures = 0
        self._silent_since: datetime | None = None
        self._wanted = threading.Event()
        self._stopped = False
        store.on_refresh = self._wanted.set

    def want_pcie(self, uuid: str | None) -> None:
        """Read the details of this GPU, where nodes are read."""
        if self._reader is not None:
            self._reader.want_pcie(uuid)

    def stop(self) -> None:
        """End `run`, without waiting for a call in progress."""
        self._stopped = True
        self._wanted.set()

    async def run(self) -> None:
        """Feed the console until it is stopped."""
        await asyncio.to_thread(self._run)

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._wanted.clear()
                self.poll()
                self._wanted.wait(self.pause)
        finally:
            for duty in self._duties:
                duty.close()
            if self._reader is not None:
                self._reader.close()

    @property
    def pause(self) -> float:
        """Seconds until the next try."""
        return min(LONGEST_PAUSE, self._every * 2.0 ** min(self._failures, 10))

    def poll(self) -> None:
        """Publish a snapshot, or the last one with a notice if the cluster does not answer."""
        try:
            snapshot = self._store.snapshot()
        except ClusterError as error:
            self._failures += 1
            self._feed.publish(self._done(self._silent(error)))
            return
        self._failures, self._silent_since = 0, None
        self._feed.publish(self._marked(self._done(self._joined(snapshot))))

    def _done(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with notices of the duties, which have been done with it."""
        notices = list(snapshot.notices)
        for duty in self._duties:
            try:
                duty.update(snapshot)
                notices += duty.notices()
            except Exception:  # a border: a duty that fails must not stop the console
                log.exception("a duty for the cluster failed")
        return replace(snapshot, notices=tuple(notices)) if len(notices) > len(snapshot.notices) else snapshot

    def _joined(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the readings of nodes."""
        return snapshot if self._reader is None else self._reader.joined(snapshot, self._clock.now())

    def _marked(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with idle GPUs marked."""
        if self._idle is None:
            return snapshot
        jobs = {job.id: job for job in snapshot.jobs if job.state.is_active}
        return replace(snapshot, nodes=self._idle.marked(snapshot.nodes, jobs, self._clock.now()))

    def _silent(self, error: ClusterError) -> Snapshot:
        """Return the last snapshot, marked as out of date."""
        now, last = self._clock.now(), self._feed.latest
        since = self._silent_since = self._silent_since or now
        known = last is not EMPTY and last.leader is not None
        engine = self._store.cluster.caps.engine
        notice = Notice("error", f"{engine} does not answer: {error}", since=since)
        silence = max(now - last.taken_at, timedelta(seconds=1))
        leader = replace(last.leader, silent_for=silence) if last.leader is not None else None
        return replace(last, taken_at=last.taken_at if known else now, leader=leader, notices=(notice,))
