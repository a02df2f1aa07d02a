"""The queue of this machine as a backend."""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import closing, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from msgspec.structs import replace

from gputui import bootstrap
from gputui.bootstrap import adapters, job_access
from gputui.config.options import present_directory
from gputui.domain.cluster import Caps
from gputui.ports.backend import About

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from gputui.config import Options
    from gputui.domain.action import Action
    from gputui.domain.container import ProcessRow, Shell
    from gputui.domain.gpu import Gpu
    from gputui.domain.job import Job
    from gputui.domain.job_spec import JobId
    from gputui.domain.snapshot import Snapshot
    from gputui.domain.submit_action import Done
    from gputui.domain.telemetry_series import Measured
    from gputui.engine.files.logs import Logs
    from gputui.engine.job_exec import Entrance
    from gputui.ports import Channel, GpuProbe, JobStore, LogStream
    from gputui.ports.actions import Performer
    from gputui.ports.backend import Entry


class StoreSnapshots:
    """Snapshots of a store, and of what its leader publishes."""

    def __init__(self, options: Options, store: JobStore) -> None:
        self._options = options
        self._store = store

    def version(self) -> object:
        from gputui.engine.files.live_file import LIVE_FILE

        with suppress(OSError):
            status = (self._options.state / LIVE_FILE).stat()
            return self._store.version(), status.st_ino, status.st_mtime_ns
        return self._store.version(), 0, 0

    def read(self) -> Snapshot:
        return bootstrap.current_snapshot(self._options, self._store)


class StoreBackend:
    """The queue of this machine, with the rights of this process's user. It never schedules."""

    def __init__(self, options: Options, waiting: Callable[[str], None] | None = None) -> None:
        """`waiting` is called as by `bootstrap.open_store`."""
        self._options = options
        self._waiting = waiting
        self._opening = threading.Lock()
        self._queue: JobStore | None = None
        self._streams: WeakSet[LogStream] = WeakSet()

    @property
    def queue(self) -> JobStore:
        with self._opening:  # the threads of a console begin to use it at the same time
            if self._queue is None:
                self._queue = bootstrap.open_store(self._options, self._waiting)
            return self._queue

    @cached_property
    def _actions(self) -> Performer:
        return bootstrap.actions(self.queue, self._options)

    @cached_property
    def _logs(self) -> Logs:
        return job_access.open_logs(self._options, self.queue)

    def about(self, server: str = "") -> About:
        del server
        return self._about

    @cached_property
    def _about(self) -> About:
        settings, home = self._options.settings, str(present_directory() or "")
        host, user, runtimes = socket.gethostname(), bootstrap.actor().user, adapters.runtime_names(self._options)
        return About(host, user, home, Caps("gputui", runs_jobs=True), runtimes, settings.scheduler, settings.policy)

    def snapshots(self) -> StoreSnapshots:
        return StoreSnapshots(self._options, self.queue)

    def act(
        self, action: Action, /, *, server: str = "", on_progress: Callable[[int, int], None] | None = None
    ) -> Done:
        return self._actions.act(action, server=server, on_progress=on_progress)

    def foresee(self, action: Action, /) -> Done:
        return self._actions.foresee(action)

    def undo(
        self, changes: Iterable[Any], on_progress: Callable[[int, int], None] | None = None
    ) -> Sequence[tuple[Any, str]]:
        return self._actions.undo(changes, on_progress)

    def job(self, job_id: JobId) -> Job:
        return self.queue.get(job_id)

    def history(self, since: datetime | None = None) -> Iterable[Job]:
        return self.queue.past(since)

    def log(
        self,
        job_id: JobId,
        attempt: int | None = None,
        *,
        tail: int | None = None,
        follow: bool = False,
        stamped: bool = False,
    ) -> LogStream:
        stream = self._logs.open(job_id, attempt, tail=tail, follow=follow, stamped=stamped)
        self._streams.add(stream)
        return stream

    @cached_property
    def _entrance(self) -> Entrance:
        return job_access.open_entrance(self._options, self.queue)

    def enter(self, job_id: JobId, request: Entry) -> Channel:
        return self._entrance.enter(self.queue.get(job_id), request)

    def shell(self, job_id: JobId) -> Shell:
        return self._entrance.shell(self.queue.get(job_id))

    def processes(self, job_id: JobId) -> tuple[ProcessRow, ...]:
        return self._entrance.processes(self.queue.get(job_id))

    def measured(self, job_id: JobId) -> Mapping[int, Measured]:
        return job_access.measured(self._options, self.queue.get(job_id))

    def images(self, server: str = "") -> Iterable[str]:
        del server
        return adapters.local_images(self._options)

    def close(self) -> None:
        for stream in tuple(self._streams):
            stream.close()
        if (entrance := self.__dict__.pop("_entrance", None)) is not None:
            entrance.close()
        if self._queue is not None:  # a thread that is opening it is not waited for
            self._queue.close()

    def is_scheduled(self) -> bool:
        return bootstrap.is_scheduled(self._options)

    def known_gpus(self) -> tuple[Gpu, ...]:
        return bootstrap.known_gpus(self._options)

    def with_gpus(self, snapshot: Snapshot, tell: Callable[[str], object], probe: GpuProbe | None = None) -> Snapshot:
        if not snapshot.gpus:
            adapters.silence_probe_log()
            measured = adapters.measured_snapshot(self._options, self.queue, probe=probe)
            snapshot = replace(measured, leader=snapshot.leader, notices=snapshot.notices)
        return snapshot

    def why_unread(self, job: Job) -> Mapping[int, str]:
        del job
        return {}


def serve_console(options: Options) -> None:
    """Serve a console on stdin and stdout until stdin ends."""
    from gputui.servers.service import Service

    with closing(bootstrap.open_backend(options)) as backend:
        Service(backend, sys.stdin.buffer, sys.stdout.buffer, give_up=lambda: os._exit(1)).run()
