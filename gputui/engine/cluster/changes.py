"""Changes of jobs and nodes by a cluster: what each action needs, and what can be undone."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from gputui.domain.errors import CapabilityError, NotFoundError
from gputui.domain.job_spec import MAX_PRIORITY, JobId
from gputui.domain.submit_action import Done
from gputui.domain.verbs import VERBS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gputui.engine.cluster.store import ClusterStore

_SPLIT = {SetPriority, DrainGpus, ResumeGpus}
"""Actions that need one capability or another, by what they change."""
NEEDS: Mapping[type[Action], Capability] = {
    **{verb.wish: verb.capability for verb in VERBS if verb.capability and verb.wish not in _SPLIT},
    ReserveGpus: Capability.RESERVE,
    Unreserve: Capability.RESERVE,
    AddRecurring: Capability.RECURRING,
}
"""Capability that an action needs."""


class ClusterChanges:
    """Carries out actions on jobs and nodes that exist."""

    def __init__(self, store: ClusterStore) -> None:
        self._store = store
        self._cluster = store.cluster

    def act(self, action: Action) -> Done:
        """Carry out an action; raises CapabilityError with the engine's sentence for what it cannot do."""
        if type(action) in NEEDS:
            self._cluster.caps.need(NEEDS[type(action)])
        match action:
            case EditJobs():
                return self._edit(action)
            case Hold() | Release():
                return self._set(action, "hold", isinstance(action, Hold))
            case SetPriority():
                return self._set_priority(action)
            case Cancel() | Requeue() | Suspend() | Unsuspend() | Top() | Signal():
                return Done(self._call(action))
            case DrainGpus() | ResumeGpus():
                return self._drain(action)
        raise self._refusal()

    def foresee(self, action: Action) -> Done:
        """Return the jobs as `act` would leave them; raises the same errors, but for those of the engine."""
        if type(action) in NEEDS:
            self._cluster.caps.need(NEEDS[type(action)])
        match action:
            case EditJobs():
                self._check_edit(action)
            case SetPriority():
                self._check_priority(action)
            case DrainGpus() | ResumeGpus():
                self._nodes(action.uuids)
                return Done()
        if not isinstance(action, JobAction):
            raise self._refusal()
        now, by = self._store.snapshot().taken_at, self._cluster.user
        return Done(action.ids, jobs=tuple(action.apply(self._store.get(job_id), now, by) for job_id in action.ids))

    def _edit(self, action: EditJobs) -> Done:
        """Change time limit, priority or hold of jobs."""
        self._check_edit(action)
        ids, edit = action.ids, action.edit
        parts: list[Done] = []
        if "time_limit" in edit.spec:
            limit = edit.spec["time_limit"]
            parts.append(self._set(EditJobs(ids, Edit({"time_limit": limit})), "time limit", limit))
        if "priority" in edit.spec:
            parts.append(self.act(SetPriority(ids, edit.spec["priority"])))
        if edit.held is not None:
            parts.append(self.act(Hold(ids) if edit.held else Release(ids)))
        return _joined(parts)

    def _check_edit(self, action: EditJobs) -> None:
        """Raise CapabilityError for fields that the engine does not change."""
        edit = action.edit
        if edit.spec.keys() - {"time_limit", "priority"} or edit.gpus or edit.options:
            self._cluster.caps.need(Capability.EDIT)
            what = f"of a job of {self._cluster.caps.engine} only time limit, priority and hold can be changed"
            raise CapabilityError(what, hint="cancel it and submit it again")
        if "time_limit" in edit.spec:
            if edit.spec["time_limit"] is None:
                what = f"{self._cluster.caps.engine} plans with time limits: each job has one"
                raise CapabilityError(what, hint="give it a longer one")
            if any(self._store.get(job_id).state.is_active for job_id in action.ids):
                self._cluster.caps.need(Capability.EXTEND)

    def _set_priority(self, action: SetPriority) -> Done:
        self._check_priority(action)
        if not action.relative:
            return self._set(action, "priority", action.value)
        by_value: dict[int, list[JobId]] = {}
        for job_id in action.ids:
            by_value.setdefault(_after(action, self._store.get(job_id).priority), []).append(job_id)
        parts = (self._set(SetPriority(tuple(ids), value), "priority", value) for value, ids in by_value.items())
        return _joined(list(parts))

    def _check_priority(self, action: SetPriority) -> None:
        for before in {self._store.get(job_id).priority for job_id in action.ids}:
            after = _after(action, before)
            if after != before:
                self._cluster.caps.need(Capability.RAISE_PRIORITY if after > before else Capability.LOWER_PRIORITY)

    def _drain(self, action: DrainGpus | ResumeGpus) -> Done:
        """Drain nodes, or resume them; raises CapabilityError for single GPUs."""
        from gputui.engine.cluster.undo import NodeChange, drains_of_nodes

        nodes, drains = self._nodes(action.uuids), isinstance(action, DrainGpus)
        before = drains_of_nodes(self._store, nodes)
        self._cluster.act(action)
        self._store.refresh()
        changed = {node: drain for node, drain in before.items() if (drain is not None) != drains}
        return Done(changes=tuple(NodeChange(node, drain, drains) for node, drain in changed.items()))

    def _nodes(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return these names, which must be those of nodes."""
        chosen, snapshot = tuple(names), self._store.snapshot()
        self._cluster.caps.need(Capability.DRAIN_NODE)
        nodes = {node.name for node in snapshot.nodes}
        gpus = {view.gpu.uuid for view in snapshot.gpus}
        for name in chosen:
            if name in gpus:
                self._cluster.caps.need(Capability.DRAIN_GPU)
                raise self._refusal()
            if name not in nodes:
                raise NotFoundError(f"there is no node {name}", hint="gputui gpus lists them")
        return chosen

    def _call(self, action: JobAction) -> tuple[JobId, ...]:
        """Have the cluster change jobs; what was read before is out of date then, also after an error.

        Raises NotFoundError, with no job changed, if one of them does not exist.
        """
        for job_id in action.ids:
            self._store.get(job_id)
        try:
            return self._cluster.act(action) if action.ids else ()
        finally:
            self._store.refresh()

    def _set(self, action: JobAction, name: str, value: object) -> Done:
        """Have the cluster set a value of jobs."""
        from gputui.engine.cluster.undo import job_changes

        before = {job_id: self._store.get(job_id) for job_id in action.ids}
        done = self._call(action)
        return Done(done, tuple(job_changes(before, done, name, value)))

    def _refusal(self) -> CapabilityError:
        return CapabilityError(f"gputui cannot do that with {self._cluster.caps.engine}")


def _after(action: SetPriority, before: int) -> int:
    """Return a job's priority after the action."""
    return min(MAX_PRIORITY, max(0, before + action.value if action.relative else action.value))


def _joined(parts: Sequence[Done]) -> Done:
    """Return the results of several actions on the same jobs as one."""
    ids = dict.fromkeys(job_id for part in parts for job_id in part.ids)
    return Done(tuple(ids), tuple(change for part in parts for change in part.changes))
