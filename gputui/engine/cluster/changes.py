"""Changes of jobs and nodes by a cluster: what each action needs, and how it is undone.

A change is undone by the opposite wish, while its jobs and nodes are as the action left them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.action import (
    Action,
    AddRecurring,
    Cancel,
    DrainGpus,
    Edit,
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
from gputui.domain.errors import CapabilityError, ClusterError, NotFoundError
from gputui.domain.gpu import Drain
from gputui.domain.job import Job
from gputui.domain.job_spec import MAX_PRIORITY, JobId
from gputui.domain.state import JobState
from gputui.domain.submit_action import Done, Ids
from gputui.domain.text import format_limit, plural
from gputui.domain.verbs import VERBS

if TYPE_CHECKING:
    from gputui.engine.cluster.queue import EngineQueue

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
    action = _checked(queue, action)
    match action:
        case EditJobs():
            _check_edit(queue, action)
            ids, edit = action.ids, action.edit
            parts = [act(queue, Release(ids))] if edit.held is False else []  # Slurm fixes the priority of a held job
            if "time_limit" in edit.spec:
                limit = edit.spec["time_limit"]
                parts.append(_set(queue, EditJobs(ids, Edit({"time_limit": limit})), "time limit", limit))
            if "priority" in edit.spec:
                parts.append(act(queue, SetPriority(ids, edit.spec["priority"])))
            if edit.held:
                parts.append(act(queue, Hold(ids)))
            return _joined(parts)
        case Hold() | Release():
            return _set(queue, action, "hold", isinstance(action, Hold))
        case SetPriority():
            return _set_priority(queue, action)
        case Cancel() | Requeue() | Suspend() | Unsuspend() | Top() | Signal():
            return Done(_call(queue, action))
        case DrainGpus() | ResumeGpus():
            nodes, drains = _check_nodes(queue, action.uuids), isinstance(action, DrainGpus)
            before = {node: _drain_of(queue, node) for node in nodes}
            queue.cluster.act(action)
            queue.refresh()
            changes = []
            for node, drain in before.items():
                if (drain is not None) != drains:
                    back = ResumeGpus((node,)) if drain is None else DrainGpus((node,), drain.reason)
                    words = "takes jobs again" if drain is None else f"is drained again: {drain.reason}".rstrip(": ")
                    changes.append(EngineChange(f"node {node}", words, back, "drain", drains))
            return Done(changes=tuple(changes))
    raise _refusal(queue)


def foresee(queue: EngineQueue, action: Action) -> Done:
    """Return the jobs as `act` would leave them; raises the same errors, but for those of the engine."""
    action = _checked(queue, action)
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


def _checked(queue: EngineQueue, action: Action) -> Action:
    """Return the action on jobs that exist; an array that was submitted elsewhere a moment ago is all its elements.

    Raises NotFoundError if one of them does not exist, CapabilityError if the engine has no such function.
    """
    if type(action) in NEEDS:
        queue.cluster.caps.need(NEEDS[type(action)])
    if not isinstance(action, JobAction):
        return action
    found: dict[JobId, None] = {}
    for job_id in action.ids:
        job = queue.get(job_id)
        is_whole = job.array is not None and job.array.id == job_id != job.id
        alike = queue.arrays().get(job_id, {}).values() if is_whole else ()
        found |= dict.fromkeys(alike or (job_id,))
    return action if tuple(found) == action.ids else replace(action, ids=tuple(found))


def _check_edit(queue: EngineQueue, action: EditJobs) -> None:
    edit, caps = action.edit, queue.cluster.caps
    if edit.spec.keys() - {"time_limit", "priority"} or edit.gpus or edit.options:
        caps.need(Capability.EDIT)
        what = f"of a job of {caps.engine} only time limit, priority and hold can be changed"
        raise CapabilityError(what, hint="cancel it and submit it again")
    if "time_limit" in edit.spec:
        if edit.spec["time_limit"] is None:
            what = f"{caps.engine} plans with time limits: each job has one"
            raise CapabilityError(what, hint="give it a longer one")
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
    action.check()


def _after(action: SetPriority, before: int) -> int:
    return min(MAX_PRIORITY, max(0, before + action.value if action.relative else action.value))


def _drain_of(queue: EngineQueue, name: str) -> Drain | None:
    return next((node.drain for node in queue.read().nodes if node.name == name), None)


def _check_nodes(queue: EngineQueue, names: Iterable[str]) -> tuple[str, ...]:
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
    """Have the cluster change jobs; what was read before is out of date then, also after an error."""
    try:
        return queue.cluster.act(action) if action.ids else ()
    finally:
        queue.refresh()


def _set(queue: EngineQueue, action: JobAction, name: str, after: object) -> Done:
    """Have the cluster set a value of jobs; those whose values were alike are one change."""
    before = {job_id: queue.get(job_id) for job_id in action.ids}
    done = _call(queue, action)
    if isinstance(action, Hold):  # some engines hold held jobs again; they check whose job it is
        held = {job_id for job_id, job in before.items() if job.held and job.hold_reason is None}
        done = tuple(job_id for job_id in done if job_id not in held)
    alike: dict[Any, list[JobId]] = {}
    for job_id in done:
        value = _VALUES[name](before[job_id]) if job_id in before else None
        if value not in (None, after):
            alike.setdefault(value, []).append(job_id)
    changes = []
    for value, ids in alike.items():
        words = f"job {before[ids[0]].shown_id}" if len(ids) == 1 else plural(len(ids), "job")
        changes.append(EngineChange(words, *_back(name, tuple(ids), value), name, after))
    return Done(done, tuple(changes))


def _back(name: str, ids: Ids, before: Any) -> tuple[str, JobAction]:
    is_one = len(ids) == 1
    if name == "hold":
        words = f"{'is' if is_one else 'are'} held again" if before else "may start again"
        return words, Hold(ids) if before else Release(ids)
    has = "has" if is_one else "have"
    if name == "priority":
        return f"{has} priority {before} again", SetPriority(ids, before)
    return f"{has} the time limit {format_limit(before)} again", EditJobs(ids, Edit({"time_limit": before}))


def _refusal(queue: EngineQueue) -> CapabilityError:
    return CapabilityError(f"gputui cannot do that with {queue.cluster.caps.engine}")


def _joined(parts: Sequence[Done]) -> Done:
    ids = dict.fromkeys(job_id for part in parts for job_id in part.ids)
    return Done(tuple(ids), tuple(change for part in parts for change in part.changes))


_VALUES: Mapping[str, Callable[[Job], Any]] = {
    "hold": lambda job: job.held,
    "priority": lambda job: job.priority,
    "time limit": lambda job: job.spec.time_limit,
}
"""Values of a job that can be set back, by name."""


class EngineChange(Struct, frozen=True):
    """Change of one value of jobs that had the same value before, or of a node."""

    words: str
    """Name of what was changed."""
    done: str
    action: JobAction | DrainGpus | ResumeGpus
    """Opposite wish."""
    name: str
    """Name of the value: `hold`, `priority`, `time limit`, `drain`."""
    after: Any

    def subject(self, indices: Mapping[str, str]) -> str:
        return self.words


def undone(queue: EngineQueue, changes: Iterable[EngineChange]) -> Iterator[tuple[EngineChange, str]]:
    """Undo changes, the latest first; yield each with the reason why it was not undone, empty if it was."""
    for change in reversed(list(changes)):
        queue.refresh()
        why = _obstacle(queue, change)
        if not why:
            try:
                queue.cluster.act(change.action)
            except ClusterError as error:
                why = f"stays as it is: {error}"
        yield change, why
    queue.refresh()


def _obstacle(queue: EngineQueue, change: EngineChange) -> str:
    """Return why a change is not undone; empty if its jobs or its node are as the action left them."""
    if isinstance(change.action, DrainGpus | ResumeGpus):
        values = [_drain_of(queue, node) is not None for node in change.action.uuids]
    else:
        try:
            jobs = [queue.get(job_id) for job_id in change.action.ids]
        except NotFoundError:
            return "no longer exists"
        if change.name == "hold" and (begun := [job for job in jobs if job.state is not JobState.PENDING]):
            return f"is {begun[0].state} now"
        values = [_VALUES[change.name](job) for job in jobs]
    return "has been changed since" if any(value != change.after for value in values) else ""
