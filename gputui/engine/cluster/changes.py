"""Changes of jobs and nodes by a cluster: what each action needs, and how it is undone.

A change is undone by the opposite wish, while its jobs and nodes are as the action left them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from gputui.domain.action import (
    Action,
    AddRecurring,
    Cancel,
    DrainGpus,
    EditJobs,
    Hold,
    JobAction,
    Release,
    Requeue,
    ReserveGpus,
    ResumeGpus,
    SetPriority,
    Signal,
    Suspend,
    Top,
    Unreserve,
    Unsuspend,
)
from gputui.domain.cluster import Capability
from gputui.domain.edit import Edit
from gputui.domain.errors import CapabilityError, ClusterError, NotFoundError
from gputui.domain.gpu import Drain
from gputui.domain.job import Job
from gputui.domain.job_spec import MAX_PRIORITY, JobId
from gputui.domain.state import JobState
from gputui.domain.submit_action import Done
from gputui.domain.units import format_duration, plural
from gputui.domain.verbs import VERBS

if TYPE_CHECKING:
    from gputui.engine.cluster.queue import EngineQueue
    from gputui.ports import Cluster

_SPLIT = {SetPriority, DrainGpus, ResumeGpus}
"""Actions that need one capability or another, by what they change."""
NEEDS: Mapping[type[Action], Capability] = {
    **{verb.wish: verb.capability for verb in VERBS if verb.capability and verb.wish not in _SPLIT},
    ReserveGpus: Capability.RESERVE,
    Unreserve: Capability.RESERVE,
    AddRecurring: Capability.RECURRING,
}
"""Capability that an action needs."""


def act(queue: EngineQueue, action: Action) -> Done:
    """Carry out an action on jobs or nodes that exist."""
    if type(action) in NEEDS:
        queue.cluster.caps.need(NEEDS[type(action)])
    match action:
        case EditJobs():
            return _edit(queue, action)
        case Hold() | Release():
            return _set(queue, action, "hold", isinstance(action, Hold))
        case SetPriority():
            return _set_priority(queue, action)
        case Cancel() | Requeue() | Suspend() | Unsuspend() | Top() | Signal():
            return Done(_call(queue, action))
        case DrainGpus() | ResumeGpus():
            return _drain(queue, action)
    raise _refusal(queue)


def foresee(queue: EngineQueue, action: Action) -> Done:
    """Return the jobs as `act` would leave them; raises the same errors, but for those of the engine."""
    if type(action) in NEEDS:
        queue.cluster.caps.need(NEEDS[type(action)])
    match action:
        case EditJobs():
            _check_edit(queue, action)
        case SetPriority():
            _check_priority(queue, action)
        case DrainGpus() | ResumeGpus():
            _check_nodes(queue, action.uuids)
            return Done()
    if not isinstance(action, JobAction):
        raise _refusal(queue)
    now, by = queue.read().taken_at, queue.cluster.user
    return Done(action.ids, jobs=tuple(action.apply(queue.get(job_id), now, by) for job_id in action.ids))


def _edit(queue: EngineQueue, action: EditJobs) -> Done:
    """Change time limit, priority or hold of jobs."""
    _check_edit(queue, action)
    ids, edit = action.ids, action.edit
    parts: list[Done] = []
    if "time_limit" in edit.spec:
        limit = edit.spec["time_limit"]
        parts.append(_set(queue, EditJobs(ids, Edit({"time_limit": limit})), "time limit", limit))
    if "priority" in edit.spec:
        parts.append(act(queue, SetPriority(ids, edit.spec["priority"])))
    if edit.held is not None:
        parts.append(act(queue, Hold(ids) if edit.held else Release(ids)))
    return _joined(parts)


def _check_edit(queue: EngineQueue, action: EditJobs) -> None:
    """Raise CapabilityError for fields that the engine does not change."""
    edit, caps = action.edit, queue.cluster.caps
    if edit.spec.keys() - {"time_limit", "priority"} or edit.gpus or edit.options:
        caps.need(Capability.EDIT)
        what = f"of a job of {caps.engine} only time limit, priority and hold can be changed"
        raise CapabilityError(what, hint="cancel it and submit it again")
    if "time_limit" in edit.spec:
        if edit.spec["time_limit"] is None:
            what = f"{caps.engine} plans with time limits: each job has one"
            raise CapabilityError(what, hint="give it a longer one")
        if any(queue.get(job_id).state.is_active for job_id in action.ids):
            caps.need(Capability.EXTEND)


def _set_priority(queue: EngineQueue, action: SetPriority) -> Done:
    _check_priority(queue, action)
    by_value: dict[int, list[JobId]] = {}
    for job_id in action.ids:
        by_value.setdefault(_after(action, queue.get(job_id).priority), []).append(job_id)
    parts = (_set(queue, SetPriority(tuple(ids), value), "priority", value) for value, ids in by_value.items())
    return _joined(list(parts))


def _check_priority(queue: EngineQueue, action: SetPriority) -> None:
    for before in {queue.get(job_id).priority for job_id in action.ids}:
        after = _after(action, before)
        if after != before:
            queue.cluster.caps.need(Capability.RAISE_PRIORITY if after > before else Capability.LOWER_PRIORITY)


def _after(action: SetPriority, before: int) -> int:
    """Return a job's priority after the action."""
    return min(MAX_PRIORITY, max(0, before + action.value if action.relative else action.value))


def _drain(queue: EngineQueue, action: DrainGpus | ResumeGpus) -> Done:
    """Drain nodes, or resume them; raises CapabilityError for single GPUs."""
    nodes, drains = _check_nodes(queue, action.uuids), isinstance(action, DrainGpus)
    before = _drains(queue, nodes)
    queue.cluster.act(action)
    queue.refresh()
    changed = {node: drain for node, drain in before.items() if (drain is not None) != drains}
    return Done(changes=tuple(NodeChange(node, drain, drains) for node, drain in changed.items()))


def _check_nodes(queue: EngineQueue, names: Iterable[str]) -> tuple[str, ...]:
    """Return these names, which must be those of nodes."""
    chosen, snapshot = tuple(names), queue.read()
    queue.cluster.caps.need(Capability.DRAIN_NODE)
    nodes = {node.name for node in snapshot.nodes}
    gpus = {view.gpu.uuid for view in snapshot.gpus}
    for name in chosen:
        if name in gpus:
            queue.cluster.caps.need(Capability.DRAIN_GPU)
            raise _refusal(queue)
        if name not in nodes:
            raise NotFoundError(f"there is no node {name}", hint="gputui gpus lists them")
    return chosen


def _call(queue: EngineQueue, action: JobAction) -> tuple[JobId, ...]:
    """Have the cluster change jobs; what was read before is out of date then, also after an error.

    Raises NotFoundError, with no job changed, if one of them does not exist.
    """
    for job_id in action.ids:
        queue.get(job_id)
    try:
        return queue.cluster.act(action) if action.ids else ()
    finally:
        queue.refresh()


def _set(queue: EngineQueue, action: JobAction, name: str, after: object) -> Done:
    """Have the cluster set a value of jobs; those whose values were alike are one change."""
    before = {job_id: queue.get(job_id) for job_id in action.ids}
    done = _call(queue, action)
    alike: dict[Any, list[JobId]] = {}
    for job_id in done:
        value = _VALUES[name](before[job_id]) if job_id in before else None
        if value not in (None, after):
            alike.setdefault(value, []).append(job_id)
    changes = (ValueChange(tuple(ids), before[ids[0]].shown_id, name, value, after) for value, ids in alike.items())
    return Done(done, tuple(changes))


def _refusal(queue: EngineQueue) -> CapabilityError:
    return CapabilityError(f"gputui cannot do that with {queue.cluster.caps.engine}")


def _joined(parts: Sequence[Done]) -> Done:
    """Return the results of several actions on the same jobs as one."""
    ids = dict.fromkeys(job_id for part in parts for job_id in part.ids)
    return Done(tuple(ids), tuple(change for part in parts for change in part.changes))


_VALUES: Mapping[str, Callable[[Job], Any]] = {
    "hold": lambda job: job.held,
    "priority": lambda job: job.priority,
    "time limit": lambda job: job.spec.time_limit,
}
"""Values of a job that can be set back, by name."""


class ValueChange(Struct, frozen=True):
    """Change of one value of jobs that had the same value before."""

    ids: tuple[JobId, ...]
    words: str
    """Displayed id of the first job."""
    name: str
    """Name of the value: `hold`, `priority` or `time limit`."""
    before: Any
    after: Any

    def subject(self, indices: Mapping[str, str]) -> str:
        del indices
        return f"job {self.words}" if len(self.ids) == 1 else plural(len(self.ids), "job")

    @property
    def done(self) -> str:
        is_one = len(self.ids) == 1
        if isinstance(self.before, timedelta):
            return f"{'has' if is_one else 'have'} the time limit {format_duration(self.before)} again"
        if self.name == "priority":
            return f"{'has' if is_one else 'have'} priority {self.before} again"
        return f"{'is' if is_one else 'are'} held again" if self.before else "may start again"

    def obstacle(self, queue: EngineQueue) -> str:
        """Return why the change is not undone; empty if nothing is in the way."""
        try:
            jobs = [queue.get(job_id) for job_id in self.ids]
        except NotFoundError:
            return "no longer exists"
        if self.name == "hold" and (begun := [job for job in jobs if job.state is not JobState.PENDING]):
            return f"is {begun[0].state} now"
        if any(_VALUES[self.name](job) != self.after for job in jobs):
            return "has been changed since"
        return ""

    def revert(self, cluster: Cluster) -> None:
        """Set the value back; raises ClusterError."""
        if self.name == "hold":
            cluster.act(Hold(self.ids) if self.before else Release(self.ids))
        elif self.name == "priority":
            cluster.act(SetPriority(self.ids, self.before))
        else:
            cluster.act(EditJobs(self.ids, Edit({"time_limit": self.before})))


class NodeChange(Struct, frozen=True):
    """Drain of a node, or its end."""

    node: str
    before: Drain | None
    is_drained: bool
    """True if the action drained it."""

    def subject(self, indices: Mapping[str, str]) -> str:
        del indices
        return f"node {self.node}"

    @property
    def done(self) -> str:
        return f"is drained again: {self.before.reason}".rstrip(": ") if self.before else "takes jobs again"

    def obstacle(self, queue: EngineQueue) -> str:
        """Return why the change is not undone; empty if nothing is in the way."""
        is_drained = _drains(queue, (self.node,))[self.node] is not None
        return "" if is_drained == self.is_drained else "has been changed since"

    def revert(self, cluster: Cluster) -> None:
        """Drain or resume the node; raises ClusterError."""
        nodes = (self.node,)
        cluster.act(ResumeGpus(nodes) if self.before is None else DrainGpus(nodes, self.before.reason))


Change: TypeAlias = ValueChange | NodeChange


def _drains(queue: EngineQueue, names: Iterable[str]) -> dict[str, Drain | None]:
    """Return the drain of each of these nodes; None for one that takes jobs, or is gone."""
    views = {node.name: node.gpus for node in queue.read().nodes}
    return {name: next((view.drain for view in views.get(name, ()) if view.drain is not None), None) for name in names}


def undone(queue: EngineQueue, changes: Iterable[Change]) -> Iterator[tuple[Change, str]]:
    """Undo changes, the latest first; yield each with the reason why it was not undone, empty if it was."""
    for change in reversed(list(changes)):
        queue.refresh()
        why = change.obstacle(queue)
        if not why:
            try:
                change.revert(queue.cluster)
            except ClusterError as error:
                why = f"stays as it is: {error}"
        yield change, why
    queue.refresh()
