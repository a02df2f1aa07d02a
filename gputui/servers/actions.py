"""Actions on several servers: each goes to the server of its job or GPU, with the rights of the ssh user there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from gputui.domain.edit import Edit
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.gpu import Gpu
from gputui.domain.job import Job, Placing
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.recurring import Recurrence
from gputui.domain.server_ids import own_id, server_of
from gputui.domain.settings import Window
from gputui.servers.console import Server, Servers
from gputui.servers.mapping import own_job, own_name, own_placing, own_spec, own_submission, own_window
from gputui.servers.protocol import ChangeNote, Edited

WHICH = "which server? Put the cursor on one of its jobs or GPUs"


class ServerChange(Struct, frozen=True):
    """A change on a server that can be undone."""

    server: str
    term: int
    """Number of the connection by which it was made."""
    note: ChangeNote

    @property
    def done(self) -> str:
        """Sentence about the restored state."""
        return self.note.done

    def subject(self, indices: Mapping[str, str]) -> str:
        """Return the name of the changed object."""
        del indices
        return f"{self.server}: {self.note.subject}"


class ServersActions:
    """Actions of this user on several servers. Each server carries out its part for all ids or none.

    An action on jobs of several servers goes to one after the other; if one refuses, the error names those that have
    carried it out.
    """

    def __init__(self, servers: Servers, server: str = "") -> None:
        self._servers = servers
        self._server = server
        """Server of actions that name neither a job nor a GPU; empty: unknown, unless there is only one."""
        self.on_change: Callable[[Any], None] = lambda change: None
        self.on_progress: Callable[[int, int], None] = lambda done, total: None

    def at(self, server: str) -> ServersActions:
        """Return the actions whose jobs and pauses are for that server."""
        made = ServersActions(self._servers, server)
        made.on_change, made.on_progress = self.on_change, self.on_progress
        return made

    @property
    def _chosen(self) -> Server:
        """Return the server of an action that names neither a job nor a GPU."""
        if self._server:
            return self._servers.named(self._server)
        if len(self._servers.all) == 1:
            return self._servers.all[0]
        raise InputError(WHICH)

    def _call(self, server: Server, name: str, *arguments: object) -> Any:
        """Return the result of a request, and report its changes."""
        result, changes = server.connection.call(name, *arguments)
        for note in changes:
            self.on_change(ServerChange(server.name, server.connection.term, note))
        return result

    def _on_jobs(self, name: str, ids: Iterable[JobId], *further: object) -> tuple[JobId, ...]:
        """Carry out an action on jobs, server by server; return the ids of those changed."""
        changed: list[JobId] = []
        done: list[str] = []
        for server_name, wanted in self._servers.by_server(ids).items():
            server = self._servers.named(server_name)
            try:
                found = self._call(server, name, tuple(map(own_id, wanted)), *further)
            except GputuiError as error:
                raise _partly(error, name, done) from error
            changed += map(server.mapper.shared, found or ())
            done.append(server_name)
        return tuple(changed)

    def hold(self, ids: Iterable[JobId]) -> Sequence[JobId]:
        """Keep waiting jobs from starting."""
        return self._on_jobs("hold", ids)

    def release(self, ids: Iterable[JobId]) -> Sequence[JobId]:
        """Release held jobs."""
        return self._on_jobs("release", ids)

    def cancel(self, ids: Iterable[JobId]) -> Sequence[JobId]:
        """End jobs, or take them out of the queue."""
        return self._on_jobs("cancel", ids)

    def requeue(self, ids: Iterable[JobId]) -> Sequence[JobId]:
        """Run jobs again."""
        return self._on_jobs("requeue", ids)

    def suspend(self, ids: Iterable[JobId]) -> Sequence[JobId]:
        """Stop the processes of running jobs for a while."""
        return self._on_jobs("suspend", ids)

    def unsuspend(self, ids: Iterable[JobId]) -> Sequence[JobId]:
        """Continue suspended jobs."""
        return self._on_jobs("unsuspend", ids)

    def signal(self, ids: Iterable[JobId], number: int) -> Sequence[JobId]:
        """Send running jobs a signal."""
        return self._on_jobs("signal", ids, number)

    def add_priority(self, ids: Iterable[JobId], delta: int) -> Sequence[JobId]:
        """Raise or lower the priority by `delta`."""
        return self._on_jobs("add_priority", ids, delta)

    def top(self, ids: Iterable[JobId]) -> Sequence[JobId]:
        """Put waiting jobs at the head of their server's queue."""
        return self._on_jobs("top", ids)

    def place(self, places: Iterable[Placing]) -> Sequence[JobId]:
        """Put waiting jobs beside others of the same server."""
        wanted = tuple(places)
        servers = {server_of(job_id) for each in wanted for job_id in (*each.ids, each.placed.past)}
        if len(servers) > 1:
            raise InputError(f"jobs of {' and '.join(sorted(servers))} have no common order", hint=NO_ORDER)
        if not wanted:
            return ()
        server = self._servers.of_job(wanted[0].placed.past)
        found = self._call(server, "place", tuple(map(own_placing, wanted)))
        return tuple(map(server.mapper.shared, found))

    def submit(self, submissions: Iterable[Submission]) -> tuple[JobId, ...]:
        """Put jobs into the queue of the chosen server."""
        wanted, server = tuple(submissions), self._chosen
        for each in wanted:
            self._check_dependencies(each, server)
        found = self._call(server, "submit", tuple(map(own_submission, wanted)))
        return tuple(map(server.mapper.shared, found))

    def _check_dependencies(self, submission: Submission, server: Server) -> None:
        """Raise InputError if the job waits for one of another server."""
        others = {server_of(job_id) for job_id in (*submission.spec.after, *submission.spec.after_any)}
        if others - {"", server.name}:
            raise InputError(f"a job of {server.name} cannot wait for one of another server", where="--after")

    def edit(self, job_id: JobId, edit: Edit, seen: Job | None = None) -> bool:
        """Edit a job; return whether that changed anything."""
        server = self._servers.of_job(job_id)
        if seen is None:
            seen = server.mapper.snapshot(server.connection.snapshot).job(job_id)
        if seen is None:
            raise GputuiError("the job is no longer in the queue", where=server.name)
        before, after = own_spec(seen.spec), own_spec(edit.apply(seen.spec))
        return bool(self._call(server, "edit", Edited(own_id(job_id), before, after, edit.held, own_job(seen))))

    def drain(self, uuids: Iterable[str], reason: str) -> None:
        """Start no new jobs on these GPUs."""
        for server, ours in self._by_gpu(uuids):
            self._call(server, "drain", ours, reason)

    def resume(self, uuids: Iterable[str]) -> None:
        """Resume starts on these GPUs."""
        for server, ours in self._by_gpu(uuids):
            self._call(server, "resume", ours)

    def _by_gpu(self, uuids: Iterable[str]) -> list[tuple[Server, tuple[str, ...]]]:
        found: dict[str, list[str]] = {}
        for uuid in uuids:
            found.setdefault(self._servers.of_gpu(uuid).name, []).append(uuid)
        return [(self._servers.named(name), tuple(ours)) for name, ours in found.items()]

    def pause(self, reason: str = "") -> None:
        """Start no new jobs on the chosen server."""
        self._call(self._chosen, "pause", reason)

    def unpause(self) -> None:
        """Start jobs on the chosen server again."""
        self._call(self._chosen, "unpause")

    def pause_recurring(self, ids: Iterable[JobId]) -> None:
        """Make no run of these recurring jobs."""
        self._on_jobs("pause_recurring", ids)

    def resume_recurring(self, ids: Iterable[JobId]) -> None:
        """Make runs of these recurring jobs again."""
        self._on_jobs("resume_recurring", ids)

    def remove_recurring(self, ids: Iterable[JobId]) -> None:
        """End these recurring jobs."""
        self._on_jobs("remove_recurring", ids)

    def add_recurring(self, recurrence: Recurrence, submission: Submission) -> JobId:
        """Submit a job to the chosen server whenever the cron expression is due."""
        server = self._chosen
        found: JobId = self._call(server, "add_recurring", recurrence, own_submission(submission))
        return server.mapper.shared(found)

    def reserve(self, window: Window, gpus: Iterable[Gpu]) -> Window:
        """Reserve some of these GPUs, which are of one server."""
        offered, server = tuple(gpus), self._chosen
        ours = {view.gpu.uuid for view in server.connection.snapshot.gpus}
        if any(uuid not in ours for uuid in window.gpus):
            raise InputError(f"a reservation of {server.name} has no GPUs of other servers", where="--gpus")
        made: Window = self._call(
            server, "reserve", own_window(window), tuple(gpu for gpu in offered if gpu.uuid in ours)
        )
        return made

    def remove_reservation(self, name: str) -> None:
        """Remove a reservation, named with its server: `gpu1:maintenance`."""
        self._call(self._servers.named(name.partition(":")[0]), "remove_reservation", own_name(name))

    def undo(self, changes: Iterable[ServerChange]) -> list[tuple[ServerChange, str]]:
        """Undo changes, server by server; return each with the reason why it was not undone."""
        by_server: dict[str, list[ServerChange]] = {}
        for change in changes:
            by_server.setdefault(change.server, []).append(change)
        return [pair for name, ours in by_server.items() for pair in self._undo(self._servers.named(name), ours)]

    def _undo(self, server: Server, changes: Sequence[ServerChange]) -> list[tuple[ServerChange, str]]:
        if any(change.term != server.connection.term for change in changes):
            return [(change, "was changed over an earlier connection") for change in changes]
        why, _ = server.connection.call("undo", tuple(change.note.number for change in changes))
        return list(zip(changes, why, strict=True))


NO_ORDER = "each server has a queue of its own, and nobody schedules across them"


def _partly(error: GputuiError, name: str, done: Sequence[str]) -> GputuiError:
    """Return the error, with the servers that have carried the action out before it."""
    if not done:
        return error
    return GputuiError(f"{error.what}; {name} is done on {', '.join(done)}", where=error.where, hint=error.hint)
