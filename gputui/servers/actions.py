"""Actions on several servers: each goes to the server of its job or GPU, with the rights of the ssh user there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

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
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.server_ids import server_of
from gputui.domain.submit_action import Done, SubmitJobs
from gputui.servers.console import Server, Servers
from gputui.servers.mapping import own_action
from gputui.servers.protocol import ChangeNote

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

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    def act(self, action: Action, *, server: str = "", on_progress: object = None) -> Done:
        """Carry out an action on the servers of its jobs or GPUs; one that names neither on `server`."""
        del on_progress
        return self._send("act", action, server)

    def foresee(self, action: Action, *, server: str = "") -> Done:
        """Return what `act` would do; raises the same errors."""
        return self._send("foresee", action, server)

    def _send(self, call: str, action: Action, server: str) -> Done:
        parts: list[Done] = []
        done: list[str] = []
        for target, part in self._parts(action, server):
            try:
                answer, notes = target.connection.call(call, own_action(part))
            except GputuiError as error:
                raise _partly(error, action.verb, done) from error
            changes = tuple(ServerChange(target.name, target.connection.term, note) for note in notes)
            ids, jobs = map(target.mapper.shared, answer.ids), map(target.mapper.job, answer.jobs)
            parts.append(Done(tuple(ids), changes, answer.window, tuple(jobs)))
            done.append(target.name)
        if len(parts) == 1:
            return parts[0]
        return Done(
            tuple(job_id for part in parts for job_id in part.ids),
            tuple(change for part in parts for change in part.changes),
            jobs=tuple(job for part in parts for job in part.jobs),
        )

    def _parts(self, action: Action, server: str) -> list[tuple[Server, Action]]:
        """Return the part of an action for each server, with the ids of this console."""
        servers = self._servers
        match action:
            case PlaceJobs():
                return self._places(action)
            case DrainGpus() | ResumeGpus():
                by_gpu: dict[str, list[str]] = {}
                for uuid in action.uuids:
                    by_gpu.setdefault(servers.of_gpu(uuid).name, []).append(uuid)
                return [(servers.named(name), replace(action, uuids=tuple(ours))) for name, ours in by_gpu.items()]
            case Unreserve():
                return [(servers.named(action.name.partition(":")[0]), action)]
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
                return [self._chosen(action, server)]
            case _:
                by_server = servers.by_server(action.ids)
                return [(servers.named(name), replace(action, ids=tuple(ids))) for name, ids in by_server.items()]

    def _places(self, action: PlaceJobs) -> list[tuple[Server, Action]]:
        """Return the move on the only server that it is about."""
        names = {server_of(job_id) for each in action.places for job_id in (*each.ids, each.placed.past)}
        if len(names) > 1:
            raise InputError(f"jobs of {' and '.join(sorted(names))} have no common order", hint=NO_ORDER)
        return [(self._servers.named(name), action) for name in names]

    def _chosen(self, action: Action, name: str) -> tuple[Server, Action]:
        """Return an action that names neither a job nor a GPU, and its server."""
        if not name and len(self._servers.all) != 1:
            raise InputError(WHICH)
        server = self._servers.named(name) if name else self._servers.all[0]
        if isinstance(action, SubmitJobs):
            for each in action.submissions:
                others = {server_of(job_id) for job_id in (*each.spec.after, *each.spec.after_any)}
                if others - {"", server.name}:
                    raise InputError(f"a job of {server.name} cannot wait for one of another server", where="--after")
        if isinstance(action, ReserveGpus):
            ours = {view.gpu.uuid for view in server.connection.snapshot.gpus}
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
