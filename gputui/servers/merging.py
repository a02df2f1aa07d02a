"""Several servers as one: ids and names that are unique in a console, and one snapshot of all.

Nobody schedules across servers: each keeps its own order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, TypeVar

from msgspec.structs import replace

from gputui.domain.action import Action, Edit, PlaceJobs, Unreserve
from gputui.domain.gpu import GpuState, GpuView, ProbeCode, ProbeStatus
from gputui.domain.job import Job, Placed, Placing
from gputui.domain.job_spec import JobId, JobSpec, Submission, own_id, shared_id
from gputui.domain.recurring import RecurringJob
from gputui.domain.runs import Run
from gputui.domain.snapshot import Controls, Node, Notice, ServerView, Snapshot

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
    """Return an action with the ids and names of its server."""
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


class IdMapper:
    """Gives the jobs of one server ids that are unique in a console. Unchanged objects stay the same objects."""

    def __init__(self, number: int, name: str) -> None:
        self._number = number
        self.name = name
        self._jobs: dict[JobId, tuple[Job, Job]] = {}
        """Each job as it came, and as it is shown, by its own id."""
        self._last: dict[str, tuple[object, object]] = {}

    def shared(self, job_id: JobId) -> JobId:
        """Return the id in this console."""
        return shared_id(self._number, self.name, job_id)

    def job(self, job: Job) -> Job:
        """Return a job with ids of this console."""
        return _job(job, self.shared)

    def snapshot(self, snapshot: Snapshot) -> Snapshot:
        """Return a server's snapshot with ids and names of this console."""
        new = self.shared
        return replace(
            snapshot,
            nodes=self._once("nodes", snapshot.nodes, self._all_nodes),
            jobs=self._once("jobs", snapshot.jobs, self._all_jobs),
            order=self._once("order", snapshot.order, lambda order: tuple(map(new, order))),
            reasons=self._once("reasons", snapshot.reasons, self._by_id),
            expected_starts=self._once("starts", snapshot.expected_starts, self._by_id),
            progress=self._by_id(snapshot.progress),
            recurring=tuple(map(self._recurring, snapshot.recurring)),
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

    def _recurring(self, entry: RecurringJob) -> RecurringJob:
        last = None if entry.last_job_id is None else self.shared(entry.last_job_id)
        return replace(entry, id=self.shared(entry.id), last_job_id=last)


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
        found.append(_without_gpus_of(server, twin, owners) if twin else server)
    return tuple(found)


def _without_gpus_of(server: ServerView, twin: str, owners: Mapping[str, str]) -> ServerView:
    own = server.snapshot
    nodes = tuple(
        replace(node, gpus=tuple(view for view in node.gpus if owners[view.gpu.uuid] == server.name))
        for node in own.nodes
    )
    notice = Notice("warning", f"it has the same GPUs as {twin}, which are shown there", short=f"the GPUs of {twin}")
    return replace(server, snapshot=replace(own, nodes=nodes, notices=(notice, *own.notices)))


def _nodes(server: ServerView, now: datetime) -> tuple[Node, ...]:
    """Return the nodes of a server without what its own notices tell."""
    nodes = server.snapshot.nodes or (Node(server.name),)
    if not server.problem:
        return tuple(replace(node, runtimes=()) for node in nodes)
    age = now - server.seen_at if server.seen_at else None
    status = ProbeStatus(ProbeCode.OK if any(node.gpus for node in nodes) else ProbeCode.FAILED, server.problem)
    why = f"{server.name} does not answer"
    return tuple(
        replace(node, runtimes=(), probe=status, host=None, gpus=tuple(_old(view, age, why) for view in node.gpus))
        for node in nodes
    )


def _old(view: GpuView, age: timedelta | None, why: str) -> GpuView:
    """Return a GPU as it was last seen."""
    state = GpuState.UNKNOWN if view.state is GpuState.FREE else view.state
    total = view.age + age if view.age is not None and age is not None else None
    return replace(view, age=total, stale=True, state=state, why=view.why or why, closed=view.closed or why)
