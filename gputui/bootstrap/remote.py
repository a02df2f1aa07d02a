"""Construction of the server's end of a console over several servers."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gputui import __version__, bootstrap
from gputui.bootstrap import adapters, job_access
from gputui.config import Options
from gputui.servers.protocol import ACTIONS, CALLS, OLDEST, PROTOCOL, Hello

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from gputui.domain.container import ProcessRow
    from gputui.domain.job import Job
    from gputui.domain.job_spec import JobId
    from gputui.domain.snapshot import Snapshot
    from gputui.domain.telemetry_series import Measured
    from gputui.ports import JobStore, LogStream
    from gputui.ports.actions import Performer


class LocalBackend:
    """The queue of this machine, with the rights of this process's user. It never schedules."""

    def __init__(self, options: Options, store: JobStore) -> None:
        self._options = options
        self._store = store
        self._logs = job_access.open_logs(options, store)
        self.actions: Performer = bootstrap.actions(store, options)

    def hello(self) -> Hello:
        """Return versions, host, user and settings of this machine."""
        settings = self._options.settings
        return Hello(
            gputui=__version__,
            protocol=PROTOCOL,
            oldest=OLDEST,
            host=socket.gethostname(),
            user=bootstrap.actor().user,
            home=str(Path.cwd()),
            calls=(*CALLS, *ACTIONS),
            scheduler=settings.scheduler,
            policy=settings.policy,
        )

    def version(self) -> object:
        """Return a token that changes with the queue and with the leader's view."""
        from gputui.engine.files.live_file import LIVE_FILE

        with suppress(OSError):
            status = (self._options.state / LIVE_FILE).stat()
            return self._store.version(), status.st_ino, status.st_mtime_ns
        return self._store.version(), 0, 0

    def snapshot(self) -> Snapshot:
        """Return the queue, the leader's last readings, and the plan."""
        return bootstrap.current_snapshot(self._options, self._store)

    def open_log(
        self, job_id: JobId, attempt: int | None, *, tail: int | None, follow: bool, stamped: bool
    ) -> LogStream:
        """Return the output of an attempt."""
        return self._logs.open(job_id, attempt, tail=tail, follow=follow, stamped=stamped)

    def history(self, since: datetime | None) -> Iterable[Job]:
        """Return finished jobs that left the queue file, the latest month first."""
        return self._store.past(since)

    def measured(self, job_id: JobId) -> Mapping[int, Measured]:
        """Return the telemetry of each attempt of a job."""
        return job_access.measured(self._options, self._store.get(job_id))

    def processes(self, job_id: JobId) -> tuple[ProcessRow, ...]:
        """Return the present processes of a job, if this user may see them."""
        with closing(job_access.open_job_exec(self._options, self._store)) as entry:
            return entry.processes(self._store.get(job_id))

    def images(self) -> Iterable[str]:
        """Return the names of the engine's images."""
        return adapters.local_images(self._options)


def serve_console(options: Options) -> None:
    """Serve a console on stdin and stdout until stdin ends."""
    from gputui.servers.service import Service

    with closing(bootstrap.open_store(options)) as store:
        backend = LocalBackend(options, store)
        Service(backend, sys.stdin.buffer, sys.stdout.buffer, give_up=lambda: os._exit(1)).run()
