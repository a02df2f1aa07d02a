"""Feeds a process over a cluster with snapshots and with readings of nodes, and does its duties with them.

Duties are metrics, hooks and telemetry of jobs; one process of a machine has each for all. Each console and each
`gputui serve` offers to do them. The one that holds the lock of a duty does it; when it ends, however it ends, the
kernel releases the lock, and the next poll of another process takes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.errors import ClusterError, ClusterUnavailableError
from gputui.domain.gpu import Gpu, HealthCode, ProbeReading
from gputui.domain.idle_gpus import IdleTracker
from gputui.domain.node_readings import ReadingRules, engine_jobs, named_gpus, read_node
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Leader, Notice, Snapshot
from gputui.threads import DaemonExecutor, fault_words

if TYPE_CHECKING:
    from gputui.engine.cluster.queue import EngineQueue
    from gputui.engine.feed import Feed
    from gputui.ports import Clock, NodeProbes

log = logging.getLogger(__name__)

PATIENCE = 45.0
_LOOK = 0.5
"""Seconds between two looks whether the poll is stopped while it waits."""
LONGEST_PAUSE = 30.0
"""Maximum seconds between two tries while the cluster does not answer."""
_LATE_AFTER = 4
"""Intervals without a reading after which it is late."""


class ClusterPoll(Struct, eq=False):
    """Takes a snapshot every few seconds, and at once after a change by this process.

    While the cluster does not answer, the last snapshot stays, marked with its age, and tries become rarer.
    """

    leads = False
    """The engine schedules."""
    _queue: EngineQueue
    _feed: Feed
    _clock: Clock
    _every: timedelta
    _reader: NodeReader | None = None
    """Has the nodes read; None: nobody reads them."""
    _duties: Sequence[Duty] = ()
    """Done with each snapshot."""
    _idle: IdleTracker | None = None
    """Marks idle GPUs for this console, sooner than the process that measures marks them for all."""
    patience: float = PATIENCE
    """Seconds after which an engine counts as silent until its answer comes."""
    _worker: DaemonExecutor = field(default_factory=lambda: DaemonExecutor(1, "cluster"))
    _reading: futures.Future[Snapshot] | None = None
    _failures: int = 0
    _silent_since: datetime | None = None
    _wanted: threading.Event = field(default_factory=threading.Event)
    _stopped: bool = False

    def __post_init__(self) -> None:
        self._queue.on_refresh = self._wanted.set

    def want_pcie(self, uuid: str | None) -> None:
        if self._reader is not None:
            self._reader.want_pcie(uuid)

    def stop(self) -> None:
        """End `run`, without waiting for a call in progress."""
        self._stopped = True
        self._wanted.set()

    async def run(self) -> None:
        await asyncio.to_thread(self._run)

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._wanted.clear()
                self.poll()
                self._wanted.wait(self.pause)
        finally:
            self._worker.shutdown()
            for duty in self._duties:
                duty.close()
            if self._reader is not None:
                self._reader.close()

    @property
    def pause(self) -> float:
        return min(LONGEST_PAUSE, self._every.total_seconds() * 2.0 ** min(self._failures, 10))

    def poll(self) -> None:
        """Publish a snapshot, or the last one with a notice if the cluster does not answer."""
        try:
            snapshot = self._done(self._asked())
            if self._idle is not None:
                jobs = {job.id: job for job in snapshot.jobs if job.state.is_active}
                snapshot = replace(snapshot, nodes=self._idle.marked(snapshot.nodes, jobs, self._clock.now()))
            self._failures, self._silent_since = 0, None
        except ClusterError as error:
            silence = f"{self._queue.cluster.caps.engine} does not answer"  # which the error may say itself
            snapshot = self._silent(str(error) if silence in error.what else f"{silence}: {error}")
        except Exception as error:  # a border: an old picture must not look current
            if not self._failures:
                log.exception("the cluster cannot be read")
            snapshot = self._silent(f"the cluster cannot be read: {fault_words(error)}")
        self._feed.publish(snapshot)

    def _asked(self) -> Snapshot:
        """Return the present snapshot with readings; one that does not come in time is waited for at the next try."""
        reading = self._reading = self._reading or self._worker.submit(self._queue.read)
        deadline = time.monotonic() + self.patience
        while not reading.done() and not self._stopped and time.monotonic() < deadline:
            futures.wait((reading,), min(_LOOK, self.patience))
        if not reading.done():
            reading.add_done_callback(lambda _: self._wanted.set())
            raise ClusterUnavailableError(f"nothing has come for {self.patience:.0f} s, and it is waited for")
        self._reading = None
        snapshot = reading.result()
        return snapshot if self._reader is None else self._reader.joined(snapshot, self._clock.now())

    def _done(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with notices of the duties, which have been done with it."""
        notices = list(snapshot.notices)
        for duty in self._duties:
            duty.update(snapshot)
            notices += duty.notices()
        return replace(snapshot, notices=tuple(notices)) if len(notices) > len(snapshot.notices) else snapshot

    def _silent(self, why: str) -> Snapshot:
        """Return the last snapshot, marked as out of date, after the duties have been done with it."""
        self._failures += 1
        now, last = self._clock.now(), self._feed.latest
        since = self._silent_since = self._silent_since or now
        notice, known = Notice("error", why, since=since), last.leader
        if known is None or not known.host:
            known, last = Leader(0, "", "", self._queue.cluster.caps.engine.lower(), since), replace(last, taken_at=now)
        silence = max(now - (last.taken_at if known.host else since), timedelta(seconds=1))
        return self._done(replace(last, leader=replace(known, silent_for=silence), notices=(notice,)))


class NodeReader(Struct, eq=False):
    """Has the nodes of each snapshot read, and adds their latest readings."""

    _probes: NodeProbes
    _settings: Settings
    has_gpu_ids: bool = True
    """False if the engine does not tell which GPUs a job has."""
    _named: dict[str, tuple[tuple[Gpu, ...], int, Mapping[str, Gpu]]] = field(default_factory=dict)
    _drivers: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Node and the driver's UUID of each GPU, by its name."""

    def joined(self, snapshot: Snapshot, now: datetime) -> Snapshot:
        """Return the snapshot with the readings; nodes that are new in it are read from now on."""
        up = (node for node in snapshot.nodes if not node.down)  # as far as the engine knows
        readable = (node for node in up if any(view.health.code is not HealthCode.UNKNOWN for view in node.gpus))
        self._probes.follow(node.name for node in readable)
        found = self._probes.readings()
        jobs, settings = engine_jobs(snapshot.jobs, now), self._settings.scheduler
        late = max(settings.stale_after, _LATE_AFTER * self._probes.interval)
        rules = ReadingRules(late, settings.memory_floor, settings.ignore_processes, self.has_gpu_ids)
        nodes = []
        for node in snapshot.nodes:
            if (reading := found.get(node.name)) is not None:
                known = self._named.get(node.name)
                if known is None or known[0] != reading.gpus or known[1] != len(node.gpus):
                    named = named_gpus(node.gpus, reading.gpus)
                    self._named[node.name] = known = reading.gpus, len(node.gpus), named
                    self._drivers |= {name: (node.name, gpu.drivers_uuid or "") for name, gpu in named.items()}
                node = read_node(node, reading, known[2], jobs, rules, now)
            nodes.append(node)
        return replace(snapshot, nodes=tuple(nodes))

    def readings(self) -> Mapping[str, ProbeReading]:
        return self._probes.readings()

    def want_pcie(self, uuid: str | None) -> None:
        node, drivers = self._drivers.get(uuid or "", (None, None))
        self._probes.want_pcie(node, drivers)

    def close(self) -> None:
        self._probes.close()


class Duty(Protocol):
    """A duty of a process, done with each snapshot. Its methods do not raise and do not block for long."""

    def update(self, snapshot: Snapshot) -> None:
        """Do it for a new snapshot, also for one that is out of date because the engine does not answer."""

    def notices(self) -> tuple[Notice, ...]: ...

    def close(self) -> None: ...


class Turn(Struct, eq=False):
    """Lock of a duty, which one process holds at a time."""

    _path: Path
    _descriptor: int | None = None

    def take(self) -> bool:
        """Take the lock if it is free; return whether this process has it. Raises OSError if there can be none."""
        if self._descriptor is not None:
            return True
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError as error:
            os.close(descriptor)
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)


class SharedDuty(Struct, eq=False):
    """Duty that this process does while it holds the lock; begun with the first snapshot after it was taken."""

    _name: str
    """Words for it in notices."""
    _turn: Turn
    _begin: Callable[[Snapshot], Duty]
    _waits: Callable[[], object] = lambda: None
    """Called once if another process does it."""
    _has_waited: bool = False
    _fault: str = ""
    _duty: Duty | None = None

    @property
    def is_mine(self) -> bool:
        return self._duty is not None

    def update(self, snapshot: Snapshot) -> None:
        try:
            if self._duty is None and snapshot.leader and snapshot.leader.host:  # it has answered
                if self._turn.take():
                    self._duty = self._begin(snapshot)
                elif not self._has_waited:
                    self._has_waited = True
                    self._waits()
            if self._duty is not None:
                self._duty.update(snapshot)
        except Exception as error:  # a border: it is told, and must not stop the console
            fault = f"no {self._name}: {fault_words(error)}"
            if fault != self._fault:
                log.error("%s", fault, exc_info=error)
            self._fault = fault
            if self._duty is None:
                self._turn.release()
        else:
            self._fault = ""

    def notices(self) -> tuple[Notice, ...]:
        found = self._duty.notices() if self._duty is not None else ()
        return (Notice("warning", self._fault, short=f"no {self._name}"), *found) if self._fault else found

    def close(self) -> None:
        duty, self._duty = self._duty, None
        try:
            if duty is not None:
                duty.close()
        except Exception:  # a border: the other duties are to end too
            log.exception("%s did not end well", self._name)
        self._turn.release()
