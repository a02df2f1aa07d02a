"""The console's end: connections to several servers, and one snapshot of them all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from gputui.domain.errors import GputuiError
from gputui.domain.job_spec import JobId
from gputui.domain.server_ids import server_of
from gputui.domain.settings import ServerSettings
from gputui.domain.snapshot import Snapshot
from gputui.servers.connection import ServerConnection
from gputui.servers.mapping import IdMapper
from gputui.servers.merging import merged

LEAST = 0.5
"""Least seconds between two snapshots: changes of several servers are brought together."""
MOST = 1.0
"""Seconds after which a snapshot is published even if nothing has changed: ages of silent servers grow."""


class Server:
    """Server with its connection, and the translation of its ids."""

    def __init__(self, connection: ServerConnection, mapper: IdMapper) -> None:
        self.connection = connection
        self.mapper = mapper
        self.name = connection.name


class Servers:
    """All servers of a console. Publishes their merged snapshot from a thread of its own."""

    def __init__(
        self, settings: Sequence[ServerSettings], now: Callable[[], datetime], publish: Callable[[Snapshot], object]
    ) -> None:
        self._now = now
        self._publish = publish
        self._changed = threading.Event()
        self._closed = threading.Event()
        self.all = tuple(
            Server(ServerConnection(each, now, self._changed.set), IdMapper(number, each.name))
            for number, each in enumerate(settings, 1)
        )
        self._thread = threading.Thread(target=self._run, name="servers", daemon=True)

    def start(self) -> None:
        """Begin to connect and to publish."""
        for server in self.all:
            server.connection.start()
        self._thread.start()

    def close(self, timeout: float = 5.0) -> None:
        """End all connections."""
        self._closed.set()
        self._changed.set()
        for server in self.all:
            server.connection.close()
        deadline = time.monotonic() + timeout
        for server in self.all:
            server.connection.join(max(0.0, deadline - time.monotonic()))
        if self._thread.ident is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def named(self, name: str) -> Server:
        """Return the server of that name; raises GputuiError."""
        for server in self.all:
            if server.name == name:
                return server
        raise GputuiError(f"no server is called {name!r}", hint=", ".join(server.name for server in self.all))

    def of_job(self, job_id: JobId) -> Server:
        """Return the server of a job."""
        return self.named(server_of(job_id))

    def by_server(self, ids: Iterable[JobId]) -> dict[str, list[JobId]]:
        """Return the ids of jobs by the name of their server."""
        found: dict[str, list[JobId]] = {}
        for job_id in ids:
            found.setdefault(server_of(job_id), []).append(job_id)
        return found

    def of_gpu(self, uuid: str) -> Server:
        """Return the server of a GPU; raises GputuiError."""
        for server in self.all:
            if any(view.gpu.uuid == uuid for view in server.connection.snapshot.gpus):
                return server
        raise GputuiError(f"no server has GPU {uuid}")

    def snapshot(self) -> Snapshot:
        """Return the present snapshot of all servers."""
        views = [server.connection.view(server.mapper.snapshot(server.connection.snapshot)) for server in self.all]
        return merged(views, self._now())

    def _run(self) -> None:
        while not self._closed.is_set():
            self._changed.wait(MOST)
            self._changed.clear()
            self._publish(self.snapshot())
            self._closed.wait(LEAST)
