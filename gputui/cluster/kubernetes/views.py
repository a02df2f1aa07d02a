"""Nodes and GPUs of our domain from nodes of Kubernetes and the pods on them.

Kubernetes gives a pod a number of GPUs and tells nobody which: the first GPUs of a node stand for those in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from msgspec import Struct

from gputui.cluster.kubernetes.objects import KubeNode, KubePod, condition, count, gpus_in
from gputui.cluster.kubernetes.phases import told
from gputui.domain.gpu import NO_PROBE, Drain, Gpu, GpuState, GpuView, Health, HealthCode, Holder
from gputui.domain.job import Job
from gputui.domain.snapshot import Node
from gputui.domain.text import plain

REASON, BY, AT = "gputui.drain-reason", "gputui.drained-by", "gputui.drained-at"
"""Annotations of a node that gputui drained."""
_PRODUCT, _MEMORY = "nvidia.com/gpu.product", "nvidia.com/gpu.memory"
_CORDONED = "node.kubernetes.io/unschedulable"
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_GPUS = 1024
_MIG, _SHARED = "mig-", ".shared"


def gpu_label(node: str, index: int) -> str:
    """Return what stands for the UUID of a GPU of a node."""
    return f"{node}:{index}"


def nodes_of(nodes: Iterable[KubeNode], pods: Iterable[KubePod], jobs: Mapping[str, Job]) -> tuple[Node, ...]:
    """Return the nodes with their GPUs; `jobs` are ours by uid."""
    on: dict[str, list[KubePod]] = {}
    for pod in pods:
        if pod.spec.node_name and not pod.is_over and pod.spec.gpus:
            on.setdefault(pod.spec.node_name, []).append(pod)
    ordered = sorted(nodes, key=lambda node: node.metadata.name)
    return tuple(_node(node, on.get(node.metadata.name, []), jobs) for node in ordered)


def drain_of(node: KubeNode) -> Drain | None:
    """Return the drain of a cordoned node."""
    if not node.spec.unschedulable:
        return None
    meta = node.metadata
    taint = next((each for each in node.spec.taints or () if each.key == _CORDONED), None)
    at = _noted_at(meta.annotation(AT)) or (taint.time_added if taint else None) or _LONG_AGO
    return Drain(told(meta.annotation(REASON), "cordoned"), plain(meta.annotation(BY)) or "Kubernetes", at)


def drains_of(nodes: Iterable[KubeNode]) -> Mapping[str, Drain]:
    """Return the drains by GPU."""
    return {
        gpu_label(plain(node.metadata.name), index): drain
        for node in nodes
        if (drain := drain_of(node)) is not None
        for index in range(_count(node))
    }


class _Kind(Struct, frozen=True):
    """GPUs of a node that its device plugin offers as one resource."""

    resource: str
    total: int
    used: int
    broken: int
    why: str
    """Sentence about who uses them."""
    only: Job | None
    """Job that has all of them."""


def _node(node: KubeNode, pods: list[KubePod], jobs: Mapping[str, Job]) -> Node:
    views: list[GpuView] = []
    for kind in _kinds(node, pods, jobs):
        views += [_view(node, kind, place, len(views) + place) for place in range(kind.total)]
    return Node(plain(node.metadata.name), tuple(views), NO_PROBE, down=down_of(node), drain=drain_of(node))


def _kinds(node: KubeNode, pods: list[KubePod], jobs: Mapping[str, Job]) -> Iterator[_Kind]:
    allocatable, left = node.status.allocatable or {}, _MOST_GPUS
    for resource, number in gpus_in(node.status.capacity).items():
        total = min(left, number)
        left -= total
        users = [(pod, found) for pod in pods if (found := pod.spec.gpus_by_resource[resource])]
        used = min(total, sum(found for _, found in users))
        broken = total - min(total, max(used, count(allocatable.get(resource, total))))
        why = f"{used} of {total}{_words_of(resource)} in use: {', '.join(_users(users, jobs))}"
        only = jobs.get(users[0][0].job_uid) if len(users) == 1 and used == total else None
        yield _Kind(resource, total, used, broken, why, only)


def _profile(resource: str) -> str:
    """Return the profile of an instance of MIG; empty for other resources."""
    name = resource.partition("/")[2].removesuffix(_SHARED)
    return name.removeprefix(_MIG) if name.startswith(_MIG) else ""


def _words_of(resource: str) -> str:
    profile, is_shared = _profile(resource), resource.endswith(_SHARED)
    what = f" instances {profile}" if profile else ""
    return f" shares of{what or ' GPUs'}" if is_shared else what


def _view(node: KubeNode, kind: _Kind, place: int, index: int) -> GpuView:
    name, why, only = plain(node.metadata.name), kind.why, kind.only
    is_used, is_broken = place < kind.used, place >= kind.total - kind.broken
    drain, down = drain_of(node), down_of(node)
    state, health, words = GpuState.FREE, Health(), ""
    if down:
        state, health, words = GpuState.UNKNOWN, Health(HealthCode.UNKNOWN, down), down
    elif is_used:
        state, words = GpuState.ALLOCATED, "" if only else why
    elif is_broken:
        words = "the device plugin of the node calls a GPU unhealthy, and does not tell which"
        state, health = GpuState.UNKNOWN, Health(HealthCode.UNKNOWN, words)
    elif drain is not None:
        state, words = GpuState.DRAINED, f"node {name} is drained: {drain.reason}"
    job = only if is_used and not down else None
    return GpuView(
        _gpu(node, kind.resource, index),
        state,
        health,
        why=words,
        job_id=job.id if job else None,
        job_ids=(job.id,) if job else (),
        holders=(Holder("job", job.name, job.submitted_by),) if job else (),
        drain=drain,
    )


def _gpu(node: KubeNode, resource: str, index: int) -> Gpu:
    profile = _profile(resource)
    size = count(node.metadata.label(f"nvidia.com/{_MIG}{profile}.memory" if profile else _MEMORY))
    model = plain(node.metadata.label(_PRODUCT)).replace("-", " ") or None
    label = gpu_label(plain(node.metadata.name), index)
    return Gpu(label, index, model, memory_total=size * 1024**2 or None, mig_profile=profile or None)


def _count(node: KubeNode) -> int:
    return min(_MOST_GPUS, gpus_in(node.status.capacity).total())


def down_of(node: KubeNode) -> str:
    """Return why a node cannot be used; empty if it can."""
    ready = condition(node.status.conditions, "Ready")
    if ready is None or ready.status == "True":
        return ""
    return f"node {plain(node.metadata.name)} is not ready: {told(ready.message, ready.reason, 'no reason given')}"


def _users(users: Iterable[tuple[KubePod, int]], jobs: Mapping[str, Job]) -> Iterator[str]:
    """Yield who uses GPUs of a node, and how many."""
    for pod, number in users:
        job, owner = jobs.get(pod.job_uid), pod.owner
        if job is not None:
            who = f"job {job.shown_id} {plain(job.name)}"
        else:
            who = f"pod {plain(pod.metadata.namespace)}/{plain(pod.metadata.name)}"
            who += f" of {plain(owner.kind)} {plain(owner.name)}" if owner is not None else ""
        yield f"{who} has {number}"


def _noted_at(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else None
