"""Actions of users, carried out by a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import uuid4

from gputui.domain.cluster import Capability
from gputui.domain.errors import CapabilityError, NotFoundError
from gputui.domain.job_spec import MAX_PRIORITY, JobId
from gputui.engine.cluster.submissions import check_submission

if TYPE_CHECKING:
    from datetime import datetime

    from gputui.domain.edit import Edit
    from gputui.domain.gpu import Drain, Gpu
    from gputui.domain.job import Job, Placing
    from gputui.domain.job_spec import Submission
    from gputui.domain.recurring import Recurrence
    from gputui.domain.settings import Window
    from gputui.engine.cluster.store import ClusterStore
    from gputui.engine.cluster.undo import ClusterChange


class ClusterActions:
    """Actions with the rights that this process's user has in the cluster.

    The engine applies a change to one job after the other: it may refuse one after it has changed others, and says so.
    """

    def __init__(self, store: ClusterStore) -> None:
        self.on_change: Callable[[ClusterChange], None] = lambda change: None
        self.on_progress: Callable[[int, int], None] = lambda done, total: None
        self._store = store
        self._cluster = store.cluster

    def at(self, server: str) -> ClusterActions:
        """Return these actions: there is one queue."""
        del server
        return self

    def submit(self, submissions: Iterable[Submission], *, recurring: JobId | None = None) -> tuple[JobId, ...]:
        """Submit jobs, all or none; raises CapabilityError for options that the engine cannot obey."""
        del recurring
        asked = self._checked(submissions)
        try:
            return self._cluster.submit(asked, uuid4().hex, is_new=True) if asked else ()
        finally:
            self._store.refresh()

    def rehearse(self, submissions: Iterable[Submission]) -> tuple[Job, ...]:
        """Raise CapabilityError: the engine tells the start of a job alone, by `expected_start`."""
        self._checked(submissions)
        self._refuse(Capability.WHAT_IF)

    def expected_start(self, submission: Submission) -> datetime | None:
        """Return when the job would start if it were submitted now; raises the errors of `submit`."""
        [checked] = self._checked((submission,))
        self._need(Capability.TEST_ONLY)
        return self._cluster.expected_start(checked)

    def _checked(self, submissions: Iterable[Submission]) -> tuple[Submission, ...]:
        asked = tuple(submissions)
        for submission in asked:
            check_submission(submission, self._cluster.caps)
        return asked

    def edit(self, job_id: JobId, edit: Edit, seen: Job | None = None) -> bool:
        """Change time limit or priority of a job; return whether that changed anything."""
        return bool(self.edit_all((job_id,), edit, seen))

    def edit_all(self, ids: Iterable[JobId], edit: Edit, seen: Job | None = None) -> Sequence[JobId]:
        """Change time limit or priority of several jobs."""
        del seen
        chosen = tuple(ids)
        self._check_edit(chosen, edit)
        done: dict[JobId, None] = {}
        if "time_limit" in edit.spec:
            done |= dict.fromkeys(
                self._set(self._cluster.set_time_limit, chosen, "time limit", edit.spec["time_limit"])
            )
        if "priority" in edit.spec:
            done |= dict.fromkeys(self.set_priority(chosen, edit.spec["priority"]))
        if edit.held is not None:
            done |= dict.fromkeys(self.hold(chosen) if edit.held else self.release(chosen))
        return tuple(done)

    def rehearse_edit(self, job_id: JobId, edit: Edit) -> Job:
        """Return the job as `edit` would leave it; raises the same errors."""
        self._check_edit((job_id,), edit)
        job = self._store.get(job_id)
        return job.evolve(spec=edit.apply(job.spec))

    def _check_edit(self, ids: Iterable[JobId], edit: Edit) -> None:
        """Raise CapabilityError for fields that the engine does not change."""
        others = edit.spec.keys() - {"time_limit", "priority"}
        if others or edit.gpus or edit.options:
            self._need(Capability.EDIT)
            what = f"of a job of {self._cluster.caps.engine} only time limit, priority and hold can be changed"
            raise CapabilityError(what, hint="cancel it and submit it again")
        if "time_limit" in edit.spec:
            if edit.spec["time_limit"] is None:
                hint = "give it a longer one"
                raise CapabilityError(
                    f"{self._cluster.caps.engine} plans with time limits: each job has one", hint=hint
                )
            if any(self._store.get(job_id).state.is_active for job_id in ids):
                self._need(Capability.EXTEND)

    def cancel(self, ids: Iterable[JobId]) -> Sequence[JobId]:
        """End jobs, or take them out of the queue."""
        return self._cluster_call(self._cluster.cancel, ids)

    def hold(self, ids: Iterable[JobId]) -> Sequence[JobId]:
        """Keep waiting jobs from starting."""
        self._need(Capability.HOLD)
        return self._set(lambda chosen, _: self._cluster.hold(chosen), ids, "hold", True)

    def release(self, ids: Iterable[JobId]) -> Sequence[JobId]:
        """Release held jobs."""
        self._need(Capability.HOLD)
        return self._set(lambda chosen, _: self._cluster.release(chosen), ids, "hold", False)

    def requeue(self, ids: Iterable[JobId]) -> Sequence[JobId]:
        """Run jobs again."""
        return self._call(Capability.REQUEUE, self._cluster.requeue, ids)

    def signal(self, ids: Iterable[JobId], number: int) -> Sequence[JobId]:
        """Send running jobs a signal."""
        return self._call(Capability.SIGNAL, self._cluster.signal, ids, number)

    def suspend(self, ids: Iterable[JobId]) -> Sequence[JobId]:
        """Stop the processes of running jobs."""
        return self._call(Capability.SUSPEND, self._cluster.suspend, ids)

    def unsuspend(self, ids: Iterable[JobId]) -> Sequence[JobId]:
        """Continue suspended jobs."""
        return self._call(Capability.SUSPEND, self._cluster.unsuspend, ids)

    def set_priority(self, ids: Iterable[JobId], value: int) -> Sequence[JobId]:
        """Set the priority, 0 to 100."""
        chosen = tuple(ids)
        self.rehearse_priority(chosen, value, relative=False, top=False)
        return self._set(self._cluster.set_priority, chosen, "priority", value)

    def add_priority(self, ids: Iterable[JobId], delta: int) -> Sequence[JobId]:
        """Raise or lower the priority, within 0 to 100."""
        chosen = tuple(ids)
        self.rehearse_priority(chosen, delta, relative=True, top=False)
        by_value: dict[int, list[JobId]] = {}
        for job_id in chosen:
            by_value.setdefault(_within(self._store.get(job_id).priority + delta), []).append(job_id)
        done = [self._set(self._cluster.set_priority, alike, "priority", value) for value, alike in by_value.items()]
        return tuple(job_id for each in done for job_id in each)

    def rehearse_priority(self, ids: Iterable[JobId], value: int, *, relative: bool, top: bool) -> None:
        """Raise the errors that `set_priority`, `add_priority` or `top` would raise for these jobs."""
        if top:
            self._need(Capability.TOP)
            return
        for before in {self._store.get(job_id).priority for job_id in ids}:
            after = _within(before + value if relative else value)
            if after != before:
                self._need(Capability.RAISE_PRIORITY if after > before else Capability.LOWER_PRIORITY)

    def top(self, ids: Iterable[JobId]) -> Sequence[JobId]:
        """Put waiting jobs at the head of the queue, as far as the user may."""
        return self._call(Capability.TOP, self._cluster.top, ids)

    def place(self, places: Iterable[Placing]) -> Sequence[JobId]:
        """Raise CapabilityError: no engine puts a job beside another."""
        del places
        self._refuse(Capability.MOVE)

    def drain(self, uuids: Iterable[str], reason: str) -> None:
        """Start no new jobs on these nodes; raises CapabilityError for single GPUs."""
        from gputui.engine.cluster.undo import drains_of_nodes

        nodes = self._nodes(uuids)
        before = drains_of_nodes(self._store, nodes)
        self._cluster.drain(nodes, reason)
        self._store.refresh()
        self._note_nodes(before, is_drained=True)

    def resume(self, uuids: Iterable[str]) -> None:
        """Start jobs on these nodes again; raises CapabilityError for single GPUs."""
        from gputui.engine.cluster.undo import drains_of_nodes

        nodes = self._nodes(uuids)
        before = drains_of_nodes(self._store, nodes)
        self._cluster.resume(nodes)
        self._store.refresh()
        self._note_nodes(before, is_drained=False)

    def _note_nodes(self, before: Mapping[str, Drain | None], *, is_drained: bool) -> None:
        from gputui.engine.cluster.undo import NodeChange

        for node, drain in before.items():
            if (drain is not None) != is_drained:
                self.on_change(NodeChange(node, drain, is_drained))

    def _nodes(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return these names, which must be those of nodes."""
        chosen, snapshot = tuple(names), self._store.snapshot()
        nodes = {node.name for node in snapshot.nodes}
        gpus = {view.gpu.uuid for view in snapshot.gpus}
        self._need(Capability.DRAIN_NODE)
        for name in chosen:
            if name in gpus:
                self._refuse(Capability.DRAIN_GPU)
            if name not in nodes:
                raise NotFoundError(f"there is no node {name}", hint="gputui gpus lists them")
        return chosen

    def pause(self, reason: str = "") -> None:
        """Raise CapabilityError: pauses are the engine's affair."""
        del reason
        self._refuse(Capability.PAUSE)

    def unpause(self) -> None:
        """Raise CapabilityError."""
        self._refuse(Capability.PAUSE)

    def undo(self, changes: Iterable[ClusterChange]) -> list[tuple[ClusterChange, str]]:
        """Undo changes, the latest first; return each with the reason why it was not undone, empty if it was."""
        from gputui.engine.cluster.undo import undone

        return list(undone(changes, self._store))

    def reserve(self, window: Window, gpus: Iterable[Gpu]) -> Window:
        """Raise CapabilityError."""
        del window, gpus
        self._refuse(Capability.RESERVE)

    def remove_reservation(self, name: str) -> None:
        """Raise CapabilityError."""
        del name
        self._refuse(Capability.RESERVE)

    def add_recurring(self, recurrence: Recurrence, submission: Submission) -> JobId:
        """Raise CapabilityError."""
        del recurrence, submission
        self._refuse(Capability.RECURRING)

    def remove_recurring(self, ids: Iterable[JobId]) -> None:
        """Raise CapabilityError."""
        del ids
        self._refuse(Capability.RECURRING)

    pause_recurring = remove_recurring
    resume_recurring = remove_recurring

    def _call(
        self, capability: Capability, call: Callable[..., tuple[JobId, ...]], ids: Iterable[JobId], *more: object
    ) -> tuple[JobId, ...]:
        """Call a method of the cluster that needs this capability."""
        self._need(capability)
        return self._cluster_call(call, ids, *more)

    def _cluster_call(
        self, call: Callable[..., tuple[JobId, ...]], ids: Iterable[JobId], *more: object
    ) -> tuple[JobId, ...]:
        """Call a method of the cluster; what was read before is out of date then, also after an error.

        Raises NotFoundError, with no job changed, if one of them does not exist.
        """
        chosen = tuple(ids)
        for job_id in chosen:
            self._store.get(job_id)
        try:
            return call(chosen, *more) if chosen else ()
        finally:
            self._store.refresh()

    def _set(
        self, call: Callable[[Sequence[JobId], Any], tuple[JobId, ...]], ids: Iterable[JobId], name: str, value: object
    ) -> tuple[JobId, ...]:
        """Set a value of jobs by a method of the cluster, and report the changes, which can be undone."""
        from gputui.engine.cluster.undo import job_changes

        chosen = tuple(ids)
        before = {job_id: self._store.get(job_id) for job_id in chosen}
        done = self._cluster_call(call, chosen, value)
        for change in job_changes(before, done, name, value):
            self.on_change(change)
        return done

    def _need(self, capability: Capability) -> None:
        """Raise CapabilityError with the engine's sentence if it lacks this."""
        if not self._cluster.caps.has(capability):
            raise CapabilityError(self._cluster.caps.why_not(capability))

    def _refuse(self, capability: Capability) -> NoReturn:
        self._need(capability)
        raise CapabilityError(f"gputui cannot do that with {self._cluster.caps.engine}")


def _within(priority: int) -> int:
    return min(MAX_PRIORITY, max(0, priority))
