"""The queues of several servers as one backend, each reached over ssh."""

from __future__ import annotations

import contextlib
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from operator import methodcaller

from msgspec import Struct
from msgspec.structs import replace

from gputui.api.backend import NumberedChange, about_of
from gputui.api.wire import Dial
from gputui.domain.action import (
    Action,
    AddRecurring,
    DrainGpus,
    Pause,
    PlaceJobs,
    RemoveTenant,
    ReserveGpus,
    ResumeGpus,
    SetStanding,
    SetTenant,
    Unpause,
    Unreserve,
)
from gputui.domain.cluster import Caps
from gputui.domain.container import ProcessRow, Shell
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.job import Job, check_running
from gputui.domain.job_spec import JobId, own_id, server_of
from gputui.domain.settings import ServerSettings
from gputui.domain.snapshot import Snapshot
from gputui.domain.ssh_address import parse_ssh_address
from gputui.domain.submit_action import Done, SubmitJobs
from gputui.domain.telemetry_series import Measured
from gputui.ports import Channel, LogStream
from gputui.ports.backend import About, Entry
from gputui.servers.connection import ServerConnection
from gputui.servers.merging import merged, own_action

LEAST = 0.5
"""Least seconds between two snapshots: changes of several servers are brought together."""
MOST = 1.0
"""Seconds after which a snapshot is published even if nothing has changed: ages of silent servers grow."""
MOST_PAST = 2000
"""Maximum number of jobs that are read from the history of each server."""
WHICH = "which server? Put the cursor on one of its jobs or GPUs"
NO_ORDER = "each server has a queue of its own, and nobody schedules across them"


class ServerChange(Struct, frozen=True):
    """A change on a server that can be undone."""

    server: str
    change: NumberedChange

    @property
    def done(self) -> str:
        return self.change.done

    def subject(self, indices: Mapping[str, str]) -> str:
        return f"{self.server}: {self.change.subject(indices)}"


class RemoteBackend:
    """The queues of several servers, each with the rights of the ssh user there.

    Each server carries out its part of an action for all ids or none. An action on jobs of several goes to one after
    the other; if one refuses, the error names those that have carried it out.
    """

    def __init__(
        self,
        settings: Sequence[ServerSettings],
        now: Callable[[], datetime],
        user: str,
        dial: Callable[[ServerSettings], Dial],
    ) -> None:
        """`user` is the one here, who may be another one on a server. `dial` returns the way to one."""
        self._now = now
        self._user = user
        self._changed = threading.Event()
        self._closed = threading.Event()
        self.servers = tuple(
            ServerConnection(each, number, now, self._changed.set, dial(each))
            for number, each in enumerate(settings, 1)
        )

    def start(self) -> None:
        """Begin to connect; a second call does nothing."""
        for server in self.servers:
            server.start()

    def publish(self, take: Callable[[Snapshot], object]) -> None:
        """Connect, and call `take` with each snapshot, until the backend is closed."""
        self.start()
        while not self._closed.is_set():
            self._changed.wait(MOST)
            self._changed.clear()
            take(self.read())
            self._closed.wait(LEAST)

    def stop(self) -> None:
        """End `publish`, without waiting."""
        self._closed.set()
        self._changed.set()

    def close(self, timeout: float = 3.0) -> None:
        self.stop()
        for server in self.servers:
            server.close()
        deadline = time.monotonic() + timeout
        for server in self.servers:
            server.join(max(0.0, deadline - time.monotonic()))

    def named(self, name: str) -> ServerConnection:
        """Return the server of that name; raises GputuiError."""
        for server in self.servers:
            if server.name == name:
                return server
        raise GputuiError(f"no server is called {name!r}", hint=", ".join(server.name for server in self.servers))

    def of_job(self, job_id: JobId) -> ServerConnection:
        """Return the server of a job; raises GputuiError."""
        return self.named(server_of(job_id))

    def about(self, server: str = "") -> About:
        names = [each.name for each in self.servers]
        told = self.named(server or names[0]).about if server or len(names) == 1 else None
        if told is None:
            return About(server or ", ".join(names), self._user, "", Caps("gputui"))
        about = about_of(told, told.home)
        return about if server else replace(about, host=names[0], user=self._user)

    def snapshots(self) -> RemoteBackend:
        return self

    def version(self) -> object:
        return [id(server.snapshot) for server in self.servers]

    def read(self) -> Snapshot:
        """Return the snapshots of all servers as one."""
        return merged([server.view() for server in self.servers], self._now())

    def act(self, action: Action, /, *, server: str = "", on_progress: object = None) -> Done:
        del on_progress
        return self._send("act", action, server)

    def foresee(self, action: Action, /, *, server: str = "") -> Done:
        return self._send("foresee", action, server)

    def _send(self, call: str, action: Action, name: str) -> Done:
        parts: list[Done] = []
        done: list[str] = []
        for server, part in self._parts(action, name):
            try:
                answer: Done = server.ask(methodcaller(call, own_action(part)))
            except GputuiError as error:
                if not done:
                    raise
                what = f"{error.what}; {action.verb} is done on {', '.join(done)}"
                raise GputuiError(what, where=error.where, hint=error.hint) from error
            changes = tuple(ServerChange(server.name, change) for change in answer.changes)
            ids, jobs = map(server.mapper.shared, answer.ids), map(server.mapper.job, answer.jobs)
            parts.append(Done(tuple(ids), changes, answer.window, tuple(jobs)))
            done.append(server.name)
        if len(parts) == 1:
            return parts[0]
        return Done(
            tuple(job_id for part in parts for job_id in part.ids),
            tuple(change for part in parts for change in part.changes),
            jobs=tuple(job for part in parts for job in part.jobs),
        )

    def _parts(self, action: Action, name: str) -> list[tuple[ServerConnection, Action]]:
        """Return the part of an action for each server of its jobs or GPUs, with the ids of this console.

        An action that names neither goes to the server called `name`.
        """
        by_server: dict[str, list[JobId]] = {}
        by_gpu: dict[str, list[str]] = {}
        match action:
            case PlaceJobs():
                names = {server_of(job_id) for each in action.places for job_id in (*each.ids, each.placed.past)}
                if len(names) > 1:
                    raise InputError(f"jobs of {' and '.join(sorted(names))} have no common order", hint=NO_ORDER)
                return [(self.named(each), action) for each in names]
            case DrainGpus() | ResumeGpus():
                for uuid in action.uuids:
                    by_gpu.setdefault(self._of_gpu(uuid).name, []).append(uuid)
                return [(self.named(each), replace(action, uuids=tuple(ours))) for each, ours in by_gpu.items()]
            case Unreserve():
                return [(self.named(action.name.partition(":")[0]), action)]
            case (
                SubmitJobs()
                | AddRecurring()
                | ReserveGpus()
                | Pause()
                | Unpause()
                | SetStanding()
                | SetTenant()
                | RemoveTenant()
            ):
                return [self._chosen(action, name)]
            case _:
                for job_id in action.ids:
                    by_server.setdefault(server_of(job_id), []).append(job_id)
                return [(self.named(each), replace(action, ids=tuple(ids))) for each, ids in by_server.items()]

    def _of_gpu(self, uuid: str) -> ServerConnection:
        for server in self.servers:
            if any(view.gpu.uuid == uuid for view in server.snapshot.gpus):
                return server
        raise GputuiError(f"no server has GPU {uuid}")

    def _chosen(self, action: Action, name: str) -> tuple[ServerConnection, Action]:
        """Return an action that names neither a job nor a GPU, and its server."""
        if not name and len(self.servers) != 1:
            raise InputError(WHICH)
        server = self.named(name) if name else self.servers[0]
        if isinstance(action, SubmitJobs):
            for each in action.submissions:
                others = {server_of(job_id) for job_id in (*each.spec.after, *each.spec.after_any)}
                if others - {"", server.name}:
                    raise InputError(f"a job of {server.name} cannot wait for one of another server", where="--after")
        if isinstance(action, ReserveGpus):
            ours = {view.gpu.uuid for view in server.snapshot.gpus}
            if any(uuid not in ours for uuid in action.window.gpus):
                raise InputError(f"a reservation of {server.name} has no GPUs of other servers", where="--gpus")
            action = replace(action, gpus=tuple(gpu for gpu in action.gpus if gpu.uuid in ours))
        return server, action

    def undo(self, changes: Iterable[ServerChange], on_progress: object = None) -> list[tuple[ServerChange, str]]:
        """Undo changes, server by server; return each with the reason why it was not undone."""
        del on_progress
        by_server: dict[str, list[ServerChange]] = {}
        for change in changes:
            by_server.setdefault(change.server, []).append(change)
        done: list[tuple[ServerChange, str]] = []
        for name, ours in by_server.items():
            numbered = [each.change for each in ours]
            answers = self.named(name).ask(methodcaller("undo", numbered))
            done += [(each, why) for each, (_, why) in zip(ours, answers, strict=True)]
        return done

    def job(self, job_id: JobId) -> Job:
        server = self.of_job(job_id)
        return server.mapper.job(server.ask(lambda queue: queue.job(own_id(job_id))))

    def history(self, since: datetime | None = None) -> Iterable[Job]:
        """Yield ended jobs that left the queue files, as far as servers answer."""
        for server in self.servers:
            with contextlib.suppress(GputuiError):
                found = server.ask(lambda queue: list(islice(queue.history(since), MOST_PAST)))
                yield from map(server.mapper.job, found)

    def log(
        self,
        job_id: JobId,
        attempt: int | None = None,
        *,
        tail: int | None = None,
        follow: bool = False,
        stamped: bool = False,
    ) -> LogStream:
        return self.of_job(job_id).ask(
            lambda queue: queue.log(own_id(job_id), attempt, tail=tail, follow=follow, stamped=stamped)
        )

    def enter(self, job_id: JobId, request: Entry) -> Channel:
        return self.of_job(job_id).ask(lambda queue: queue.enter(own_id(job_id), request))

    def shell(self, job_id: JobId) -> Shell:
        """Return the command that opens a shell in the job, in a terminal of its server."""
        check_running(self.job(job_id))
        server = self.of_job(job_id).settings
        words = ("exec", "-it", str(own_id(job_id)), "sh")
        if not server.address:
            return Shell((sys.executable, "-P", "-m", "gputui", *words), f"on {server.name}")
        address = parse_ssh_address(server.address, server.name)
        return Shell(("ssh", "-t", *address.words, f"{server.command} {shlex.join(words)}"), f"on {server.name}", True)

    def processes(self, job_id: JobId) -> tuple[ProcessRow, ...]:
        return self.of_job(job_id).ask(lambda queue: queue.processes(own_id(job_id)))

    def measured(self, job_id: JobId) -> Mapping[int, Measured]:
        return self.of_job(job_id).ask(lambda queue: queue.measured(own_id(job_id)))

    def why_unread(self, job: Job) -> Mapping[int, str]:
        del job
        return {}

    def images(self, server: str = "") -> Iterable[str]:
        """Return the images of a server's engine; empty if it does not answer."""
        try:
            return self.named(server or self.servers[0].name).ask(lambda queue: queue.images())
        except GputuiError:
            return ()
