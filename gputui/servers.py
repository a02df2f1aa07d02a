"""The queues of several servers as one backend, each reached over ssh.

Each has a connection, opened again when it ends, and a mapper: its jobs get ids that are unique in the console.
"""

from __future__ import annotations

import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain, islice
from operator import methodcaller
from typing import Any, TypeVar
from weakref import WeakSet

from msgspec import Struct, field
from msgspec.structs import replace

from gputui import __version__
from gputui.api.backend import ApiBackend, NumberedChange, about_of
from gputui.api.client import ApiClient
from gputui.api.http import AboutView
from gputui.api.streams import Follower
from gputui.api.wire import Dial, Wire
from gputui.domain.action import Action, DrainGpus, Edit, PlaceJobs, ReserveGpus, ResumeGpus, Unreserve
from gputui.domain.cluster import Caps
from gputui.domain.container import ProcessRow, Shell
from gputui.domain.errors import GputuiError, InputError, InputErrors
from gputui.domain.gpu import GpuState, GpuView, ProbeCode, ProbeStatus
from gputui.domain.job import Job, Placed, Placing, check_running
from gputui.domain.job_spec import JobId, JobSpec, Submission, own_id, server_of, shared_id
from gputui.domain.runs import Run
from gputui.domain.settings import ServerSettings, Settings, parse_ssh_address
from gputui.domain.snapshot import Controls, Node, Notice, ServerView, Snapshot
from gputui.domain.submit_action import Done, SubmitJobs
from gputui.domain.telemetry_series import Measured
from gputui.domain.text import plain
from gputui.ports import Channel, LogStream
from gputui.ports.backend import WHOLE_LOG, About, Entry, LogRequest

V = TypeVar("V")
_Map = Callable[[JobId], JobId]


def _job(job: Job, new: _Map) -> Job:
    array, placed = job.array, job.placed
    return replace(
        job,
        id=new(job.id),
        spec=_spec(job.spec, new),
        array=replace(array, id=new(array.id)) if array is not None else None,
        placed=_placed(placed, new) if placed is not None else None,
        recurring=new(job.recurring) if job.recurring is not None else None,
        runs=tuple(Run(new(run.id), run.index, run.count, run.step) for run in job.runs),
    )


def _spec(spec: JobSpec, new: _Map) -> JobSpec:
    if not (spec.after or spec.after_any):
        return spec
    return replace(spec, after=tuple(map(new, spec.after)), after_any=tuple(map(new, spec.after_any)))


def _placed(placed: Placed, new: _Map) -> Placed:
    return replace(placed, past=new(placed.past), beside=new(placed.beside))


def own_action(action: Action) -> Action:
    fields = {name: own(getattr(action, name)) for name, own in _OWN.items() if hasattr(action, name)}
    if isinstance(action, PlaceJobs):
        del fields["ids"]
    if isinstance(action, Unreserve):
        fields["name"] = own_name(action.name)
    return replace(action, **fields) if fields else action


def _own_edit(edit: Edit) -> Edit:
    ids = {name: tuple(map(own_id, edit.spec[name])) for name in ("after", "after_any") if name in edit.spec}
    return replace(edit, spec={**edit.spec, **ids}) if ids else edit


def _own_submission(submission: Submission) -> Submission:
    return replace(submission, spec=_spec(submission.spec, own_id))


class IdMapper(Struct, eq=False):
    """Gives the jobs of one server ids that are unique in a console. Unchanged objects stay the same objects."""

    _number: int
    name: str
    _jobs: dict[JobId, tuple[Job, Job]] = field(default_factory=dict)
    """Each job as it came, and as it is shown, by its own id."""
    _last: dict[str, tuple[object, object]] = field(default_factory=dict)

    def shared(self, job_id: JobId) -> JobId:
        return shared_id(self._number, self.name, job_id)

    def job(self, job: Job) -> Job:
        return _job(job, self.shared)

    def snapshot(self, snapshot: Snapshot) -> Snapshot:
        new = self.shared
        return replace(
            snapshot,
            nodes=self._once("nodes", snapshot.nodes, self._all_nodes),
            jobs=self._once("jobs", snapshot.jobs, self._all_jobs),
            order=self._once("order", snapshot.order, lambda order: tuple(map(new, order))),
            reasons=self._once("reasons", snapshot.reasons, self._by_id),
            expected_starts=self._once("starts", snapshot.expected_starts, self._by_id),
            progress=self._by_id(snapshot.progress),
            recurring=tuple(
                replace(each, id=new(each.id), last_job_id=None if each.last_job_id is None else new(each.last_job_id))
                for each in snapshot.recurring
            ),
            windows=tuple(
                replace(view, window=replace(view.window, name=f"{self.name}:{view.window.name}"))
                for view in snapshot.windows
            ),
            leads_here=False,
            server_name=self.name,
        )

    def _once(self, name: str, value: V, make: Callable[[V], V]) -> V:
        """Return the translated value; the same object for the same value."""
        known = self._last.get(name)
        if known is None or known[0] is not value:
            known = self._last[name] = value, make(value)
        return known[1]  # type: ignore[return-value]  # what `make` returned for this very value

    def _all_jobs(self, jobs: Iterable[Job]) -> tuple[Job, ...]:
        known, self._jobs = self._jobs, {}
        for job in jobs:
            pair = known.get(job.id)
            self._jobs[job.id] = pair if pair is not None and pair[0] is job else (job, self.job(job))
        return tuple(shown for _, shown in self._jobs.values())

    def _by_id(self, values: Mapping[JobId, V]) -> Mapping[JobId, V]:
        return {self.shared(job_id): value for job_id, value in values.items()}

    def _all_nodes(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """Return the nodes, named by the server; of several, each with its own name behind that."""
        names = (f"{self.name}/{node.name}" if len(nodes) > 1 else self.name for node in nodes)
        views = (tuple(map(self._view, node.gpus)) for node in nodes)
        return tuple(replace(node, name=name, gpus=gpus) for node, name, gpus in zip(nodes, names, views, strict=True))

    def _view(self, view: GpuView) -> GpuView:
        if view.job_id is None and not view.job_ids and not view.process_jobs:
            return view
        return replace(
            view,
            job_id=None if view.job_id is None else self.shared(view.job_id),
            job_ids=tuple(map(self.shared, view.job_ids)),
            sharers=tuple(replace(each, job_id=self.shared(each.job_id)) for each in view.sharers),
            process_jobs={pid: self.shared(job_id) for pid, job_id in view.process_jobs.items()},
            trespassers=tuple(map(self.shared, view.trespassers)),
            holders=tuple(
                each if each.job_id is None else replace(each, job_id=self.shared(each.job_id)) for each in view.holders
            ),
        )


def own_name(name: str) -> str:
    """Return the name of a reservation on its server: `maintenance` of `gpu1:maintenance`."""
    return name.partition(":")[2] if ":" in name else name


_OWN: Mapping[str, Callable[[Any], Any]] = {
    "ids": lambda ids: tuple(map(own_id, ids)),
    "submission": _own_submission,
    "submissions": lambda submissions: tuple(map(_own_submission, submissions)),
    "places": lambda places: tuple(
        Placing(tuple(map(own_id, each.ids)), _placed(each.placed, own_id)) for each in places
    ),
    "edit": _own_edit,
    "seen": lambda job: _job(job, own_id) if job is not None else None,
    "window": lambda window: replace(window, name=own_name(window.name)),
}
"""Translation of the fields of actions that have ids or names of a console over several servers."""


def merged(servers: Sequence[ServerView], now: datetime) -> Snapshot:
    """Return the snapshot of all servers, in their order; readings of a silent one are old."""
    servers = _without_twins(servers)
    parts = [server.snapshot for server in servers]
    controls = [part.controls for part in parts]
    return Snapshot(
        taken_at=now,
        nodes=tuple(node for server in servers for node in _nodes(server, now)),
        jobs=_joined([part.jobs for part in parts]),
        controls=Controls(
            paused=bool(controls) and all(each.paused for each in controls),
            drains={uuid: drain for each in controls for uuid, drain in each.drains.items()},
            resumed={uuid: at for each in controls for uuid, at in each.resumed.items()},
            faults={uuid: fault for each in controls for uuid, fault in each.faults.items()},
        ),
        order=_joined([part.order for part in parts]),
        reasons={job_id: reason for part in parts for job_id, reason in part.reasons.items()},
        expected_starts={job_id: at for part in parts for job_id, at in part.expected_starts.items()},
        progress={job_id: words for part in parts for job_id, words in part.progress.items()},
        recurring=_joined([part.recurring for part in parts]),
        windows=_joined([part.windows for part in parts]),
        fragmentation=sum(part.fragmentation for part in parts),
        servers=tuple(servers),
    )


def _joined(parts: Sequence[tuple[object, ...]]) -> tuple:  # type: ignore[type-arg]
    return tuple(chain.from_iterable(parts)) if len(parts) != 1 else parts[0]


def _without_twins(servers: Sequence[ServerView]) -> tuple[ServerView, ...]:
    """Return the servers without GPUs that an earlier one has too: two queues of one machine, or one queue twice."""
    owners: dict[str, str] = {}
    found = []
    for server in servers:
        uuids = [view.gpu.uuid for view in server.snapshot.gpus]
        twin = next((owners[uuid] for uuid in uuids if uuid in owners), "")
        owners |= {uuid: server.name for uuid in uuids if uuid not in owners}
        if twin:
            own = server.snapshot
            gpus = [tuple(view for view in node.gpus if owners[view.gpu.uuid] == server.name) for node in own.nodes]
            nodes = tuple(replace(node, gpus=left) for node, left in zip(own.nodes, gpus, strict=True))
            what, short = f"it has the same GPUs as {twin}, which are shown there", f"the GPUs of {twin}"
            notices = (Notice("warning", what, short=short), *own.notices)
            server = replace(server, snapshot=replace(own, nodes=nodes, notices=notices))
        found.append(server)
    return tuple(found)


def _nodes(server: ServerView, now: datetime) -> tuple[Node, ...]:
    """Return the nodes of a server without what its own notices tell."""
    nodes = server.snapshot.nodes or (Node(server.name),)
    if not server.problem:
        return tuple(replace(node, runtimes=()) for node in nodes)
    age = now - server.seen_at if server.seen_at else None
    status = ProbeStatus(ProbeCode.OK if any(node.gpus for node in nodes) else ProbeCode.FAILED, server.problem)
    why = f"{server.name} does not answer"

    def old(view: GpuView) -> GpuView:
        state = GpuState.UNKNOWN if view.state is GpuState.FREE else view.state
        total = view.age + age if view.age is not None and age is not None else None
        return replace(view, age=total, stale=True, state=state, why=view.why or why, closed=view.closed or why)

    return tuple(replace(node, runtimes=(), probe=status, host=None, gpus=tuple(map(old, node.gpus))) for node in nodes)


BEGIN_WITHIN = 45.0
"""Seconds for ssh to connect, and for the first event."""
ANSWER_WITHIN = 90.0
"""Seconds for an answer; the server's lock of the queue is waited for up to 60."""
KEEP = 25.0
"""Seconds for which an idle connection serves the next request; the server closes it after 30."""
LONGEST_PAUSE = 30.0
"""Seconds between two tries to connect, at most."""
_UNREAD = frozenset({"body", "query"})


class ServerConnection:
    """Keeps one server connected. Only `ask` blocks; methods may be called from any thread."""

    def __init__(
        self,
        settings: ServerSettings,
        number: int,
        now: Callable[[], datetime],
        changed: Callable[[], object],
        dial: Dial,
    ) -> None:
        """`number` is that of the server in this console, from 1; `changed` is called after each change of `view`."""
        self.name = settings.name
        self.settings = settings
        self.mapper = IdMapper(number, settings.name)
        """Translation of its ids."""
        self._now, self._changed, self._dial_on = now, changed, dial
        self._wires: WeakSet[Wire] = WeakSet()
        self._closed = threading.Event()
        self._backend = ApiBackend(self._client(ANSWER_WITHIN))
        self.follower = Follower(self._client(BEGIN_WITHIN), self._hear, now, longest_pause=LONGEST_PAUSE)
        """Description of the server and its snapshots, with the server's own ids."""
        self._known: AboutView | None = None

    def _client(self, patience: float) -> ApiClient:
        name = "it", "what was asked may still be done"  # in sentences that name the server already
        return ApiClient(self._dial, patience=patience, name=lambda _: name, keep=KEEP)

    def _dial(self, seconds: float) -> Wire:
        if self._closed.is_set():
            raise GputuiError("the connection is closed")
        wire = self._dial_on(seconds)
        self._wires.add(wire)
        return wire

    def _hear(self) -> None:
        if self.follower.about is not self._known:  # by another connection, and perhaps another process there
            self._known = self.follower.about
            self._backend.described = None
        self._changed()

    def view(self) -> ServerView:
        """Return the server with its last snapshot, whose ids and names are those of this console."""
        follower, about = self.follower, self.follower.about
        settings = Settings(scheduler=about.scheduler, policy=about.policy) if about else Settings()
        seen_at = self._now() - timedelta(seconds=follower.age) if follower.has_snapshot else None
        return ServerView(
            self.name, self.mapper.snapshot(follower.snapshot), settings, seen_at, plain(follower.problem, 400)
        )

    def ask(self, call: Callable[[ApiBackend], V]) -> V:
        """Return what the server answers; raises GputuiError, which names the server."""
        if problem := self.follower.problem:
            raise GputuiError(f"it does not answer: {problem}", where=self.name)
        try:
            return call(self._backend)
        except GputuiError as error:
            theirs = self.follower.about.gputui if self.follower.about else __version__
            if theirs != __version__ and error.where in _UNREAD:
                what = f"its gputui {plain(theirs, 20)} does not know this: {error.what}"
                raise GputuiError(what, where=self.name, hint="update gputui there") from error
            for each in (error, *(error.errors if isinstance(error, InputErrors) else ())):
                each.where = f"{self.name}: {each.where}" if each.where else self.name
            raise

    def close(self) -> None:
        self._closed.set()
        self.follower.close()
        self._backend.close()
        for wire in tuple(self._wires):
            wire.close()


LEAST = 0.5
"""Least seconds between two snapshots: changes of several servers are brought together."""
MOST = 1.0
"""Seconds after which a snapshot is published even if nothing has changed: ages of silent servers grow."""
MOST_PAST = 2000
"""Maximum number of jobs that are read from the history of each server."""
WHICH = "which server? Put the cursor on one of its jobs or GPUs"
NO_ORDER = "each server has a queue of its own, and nobody schedules across them"


class ServerChange(Struct, frozen=True):
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
        for server in self.servers:
            server.follower.start()

    def publish(self, take: Callable[[Snapshot], object]) -> None:
        """Connect, and call `take` with each snapshot, until the backend is closed."""
        self.start()
        while not self._closed.is_set():
            self._changed.wait(MOST)
            self._changed.clear()
            take(self.read())
            self._closed.wait(LEAST)

    def stop(self) -> None:
        self._closed.set()
        self._changed.set()

    def close(self, timeout: float = 3.0) -> None:
        self.stop()
        for server in self.servers:
            server.close()
        deadline = time.monotonic() + timeout
        for server in self.servers:
            server.follower.join(max(0.0, deadline - time.monotonic()))

    def named(self, name: str) -> ServerConnection:
        for server in self.servers:
            if server.name == name:
                return server
        raise GputuiError(f"no server is called {name!r}", hint=", ".join(server.name for server in self.servers))

    def of_job(self, job_id: JobId) -> ServerConnection:
        return self.named(server_of(job_id))

    def about(self, server: str = "") -> About:
        names = [each.name for each in self.servers]
        view = self.named(server or names[0]).follower.about if server or len(names) == 1 else None
        if view is None:
            return About(server or ", ".join(names), self._user, "", Caps("gputui"))
        about = about_of(view, view.home)
        return about if server else replace(about, host=names[0], user=self._user)

    def snapshots(self) -> RemoteBackend:
        return self

    def version(self) -> object:
        return [id(server.follower.snapshot) for server in self.servers]

    def read(self) -> Snapshot:
        return merged([server.view() for server in self.servers], self._now())

    def act(self, action: Action, /, *, server: str = "", on_progress: object = None) -> Done:
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
                names_of = {
                    view.gpu.uuid: each.name for each in self.servers[::-1] for view in each.follower.snapshot.gpus
                }
                for uuid in action.uuids:
                    if uuid not in names_of:
                        raise GputuiError(f"no server has GPU {uuid}")
                    by_gpu.setdefault(names_of[uuid], []).append(uuid)
                return [(self.named(each), replace(action, uuids=tuple(ours))) for each, ours in by_gpu.items()]
            case Unreserve():
                return [(self.named(action.name.partition(":")[0]), action)]
            case _ if hasattr(action, "ids"):
                for job_id in action.ids:
                    by_server.setdefault(server_of(job_id), []).append(job_id)
                return [(self.named(each), replace(action, ids=tuple(ids))) for each, ids in by_server.items()]
            case _:
                return [self._chosen(action, name)]

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
            ours = {view.gpu.uuid for view in server.follower.snapshot.gpus}
            if any(uuid not in ours for uuid in action.window.gpus):
                raise InputError(f"a reservation of {server.name} has no GPUs of other servers", where="--gpus")
            action = replace(action, gpus=tuple(gpu for gpu in action.gpus if gpu.uuid in ours))
        return server, action

    def undo(self, changes: Iterable[ServerChange], on_progress: object = None) -> list[tuple[ServerChange, str]]:
        """Undo changes, server by server; return each with the reason why it was not undone."""
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
        """Yield ended jobs that left the queue files; raises GputuiError at the end if a server does not answer."""
        silent = []
        for server in self.servers:
            try:
                found = server.ask(lambda queue: list(islice(queue.history(since), MOST_PAST)))
            except GputuiError as error:
                silent.append(str(error))
            else:
                yield from map(server.mapper.job, found)
        if silent:
            raise GputuiError("; ".join(silent))

    def log(self, job_id: JobId, request: LogRequest = WHOLE_LOG) -> LogStream:
        return self.of_job(job_id).ask(lambda queue: queue.log(own_id(job_id), request))

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
        return {}

    def images(self, server: str = "") -> Iterable[str]:
        """Return the images of a server's engine; empty if it does not answer."""
        try:
            return self.named(server or self.servers[0].name).ask(lambda queue: queue.images())
        except GputuiError:
            return ()
