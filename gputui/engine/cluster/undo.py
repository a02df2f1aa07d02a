"""Undo of changes of a cluster, by the opposite wish, while their jobs and nodes are as the action left them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from gputui.domain.action import DrainGpus, EditJobs, Hold, Release, ResumeGpus, SetPriority
from gputui.domain.edit import Edit
from gputui.domain.errors import ClusterError, NotFoundError
from gputui.domain.gpu import Drain
from gputui.domain.job import Job
from gputui.domain.state import JobState
from gputui.domain.units import format_duration, plural

if TYPE_CHECKING:
    from gputui.domain.job_spec import JobId
    from gputui.engine.cluster.store import ClusterStore
    from gputui.ports import Cluster

_VALUES: Mapping[str, Callable[[Job], Any]] = {
    "hold": lambda job: job.held,
    "priority": lambda job: job.priority,
    "time limit": lambda job: job.spec.time_limit,
}
"""Values of a job that can be set back, by name."""


class ClusterJobChange(Struct, frozen=True):
    """Change of one value of jobs that had the same value before."""

    ids: tuple[JobId, ...]
    words: str
    """Displayed id of the first job."""
    name: str
    """Name of the value: `hold`, `priority` or `time limit`."""
    before: Any
    after: Any

    def subject(self, indices: Mapping[str, str]) -> str:
        """Return the name of the changed jobs."""
        del indices
        return f"job {self.words}" if len(self.ids) == 1 else plural(len(self.ids), "job")

    @property
    def done(self) -> str:
        """Sentence about the restored state."""
        is_one = len(self.ids) == 1
        if isinstance(self.before, timedelta):
            return f"{'has' if is_one else 'have'} the time limit {format_duration(self.before)} again"
        if self.name == "priority":
            return f"{'has' if is_one else 'have'} priority {self.before} again"
        return f"{'is' if is_one else 'are'} held again" if self.before else "may start again"

    def obstacle(self, store: ClusterStore) -> str:
        """Return why the change is not undone; empty if nothing is in the way."""
        try:
            jobs = [store.get(job_id) for job_id in self.ids]
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
        """Return the name of the node."""
        del indices
        return f"node {self.node}"

    @property
    def done(self) -> str:
        """Sentence about the restored state."""
        return f"is drained again: {self.before.reason}".rstrip(": ") if self.before else "takes jobs again"

    def obstacle(self, store: ClusterStore) -> str:
        """Return why the change is not undone; empty if nothing is in the way."""
        is_drained = drains_of_nodes(store, (self.node,))[self.node] is not None
        return "" if is_drained == self.is_drained else "has been changed since"

    def revert(self, cluster: Cluster) -> None:
        """Drain or resume the node; raises ClusterError."""
        nodes = (self.node,)
        cluster.act(ResumeGpus(nodes) if self.before is None else DrainGpus(nodes, self.before.reason))


ClusterChange: TypeAlias = ClusterJobChange | NodeChange


def job_changes(
    before: Mapping[JobId, Job], done: Iterable[JobId], name: str, after: object
) -> Iterator[ClusterJobChange]:
    """Yield the changes of one value by an action that set it to `after` for the jobs that are `done`."""
    alike: dict[Any, list[JobId]] = {}
    for job_id in done:
        value = _VALUES[name](before[job_id]) if job_id in before else None
        if value not in (None, after):
            alike.setdefault(value, []).append(job_id)
    for value, ids in alike.items():
        yield ClusterJobChange(tuple(ids), before[ids[0]].shown_id, name, value, after)


def drains_of_nodes(store: ClusterStore, names: Iterable[str]) -> dict[str, Drain | None]:
    """Return the drain of each of these nodes; None for one that takes jobs, or is gone."""
    views = {node.name: node.gpus for node in store.snapshot().nodes}
    return {name: next((view.drain for view in views.get(name, ()) if view.drain is not None), None) for name in names}


def undone(changes: Iterable[ClusterChange], store: ClusterStore) -> Iterator[tuple[ClusterChange, str]]:
    """Undo changes, the latest first; yield each with the reason why it was not undone, empty if it was."""
    for change in reversed(list(changes)):
        store.refresh()
        why = change.obstacle(store)
        if not why:
            try:
                change.revert(store.cluster)
            except ClusterError as error:
                why = f"stays as it is: {error}"
        yield change, why
    store.refresh()
