"""Logs, history, measurements, processes and shells of jobs on several servers."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from gputui.domain.container import ProcessRow, Shell
from gputui.domain.errors import GputuiError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.server_ids import own_id, server_of
from gputui.domain.settings import ServerSettings
from gputui.domain.ssh_address import parse_ssh_address
from gputui.domain.telemetry_series import Measured
from gputui.servers.connection import ServerConnection, command_of
from gputui.servers.console import Servers
from gputui.servers.protocol import LogPart, OpenedLog

MOST_PAST = 2000
"""Maximum number of jobs that are read from the history of each server."""


class ServerLog:
    """Stream of a log on a server."""

    def __init__(self, connection: ServerConnection, opened: OpenedLog) -> None:
        self._connection = connection
        self._number = opened.number
        self.is_stamped = opened.is_stamped
        self._is_closed = False
        self._tell: Callable[[bytes], None] = lambda _: None

    def watch(self, tell: Callable[[bytes], None]) -> None:
        """Have `tell` called with a line that has not ended, about once a second."""
        self._tell = tell

    def __iter__(self) -> Iterator[bytes]:
        while not self._is_closed:
            part: LogPart
            part, _ = self._connection.call("log_read", self._number)
            yield from part.lines
            if part.rest:
                self._tell(part.rest)
            if part.is_over:
                return

    def close(self) -> None:
        """End the iteration, from any thread; the server closes the log when it is next read, or at the latest then."""
        self._is_closed = True
        with contextlib.suppress(GputuiError):
            self._connection.tell("log_close", self._number)


class ServersAccess:
    """Access to the jobs of several servers. Methods block, may be called from any thread, and raise GputuiError."""

    def __init__(self, servers: Servers, settings: Sequence[ServerSettings]) -> None:
        self._servers = servers
        self._settings = {each.name: each for each in settings}

    def open(
        self, job_id: JobId, attempt: int | None, *, tail: int | None, follow: bool, stamped: bool = False
    ) -> ServerLog:
        """Return the output of an attempt."""
        connection = self._servers.of_job(job_id).connection
        opened, _ = connection.call("log_open", own_id(job_id), attempt, tail, follow, stamped)
        return ServerLog(connection, opened)

    def past(self, since: datetime | None) -> Iterable[Job]:
        """Yield finished jobs that left the queue files, as far as servers answer."""
        for server in self._servers.all:
            with contextlib.suppress(GputuiError):
                found, _ = server.connection.call("history", since, MOST_PAST)
                yield from map(server.mapper.job, found)

    def measured(self, job: Job) -> Mapping[int, Measured]:
        """Return the telemetry of each attempt of a job."""
        found: dict[int, Measured]
        found, _ = self._servers.of_job(job.id).connection.call("measured", own_id(job.id))
        return found

    def shell(self, job: Job) -> Shell:
        """Return the command that opens a shell in the job, in a terminal of its server."""
        server = self._settings[server_of(job.id)]
        words = ("exec", "-it", str(own_id(job.id)), "sh")
        if not server.address:
            return Shell(tuple(command_of(server, *words)), f"on {server.name}")
        address = parse_ssh_address(server.address, server.name)
        return Shell(("ssh", "-t", *address.words, f"{server.command} {shlex.join(words)}"), f"on {server.name}", True)

    def processes(self, job: Job) -> tuple[ProcessRow, ...]:
        """Return the present processes of the job."""
        found: tuple[ProcessRow, ...]
        found, _ = self._servers.of_job(job.id).connection.call("processes", own_id(job.id))
        return found

    def close(self) -> None:
        """Do nothing: the connections are closed with the console."""
