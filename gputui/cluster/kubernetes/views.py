"""Nodes and GPUs of our domain from nodes of Kubernetes and the pods on them.

Kubernetes gives a pod a number of GPUs and tells nobody which: the first GPUs of a node stand for those in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from gputui.cluster.kubernetes.objects import GPU_RESOURCE, KubeNode, KubePod, condition, count
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


def _node(node: KubeNode, pods: list[KubePod], jobs: Mapping[str, Job]) -> Node:
    name, total = plain(node.metadata.name), _count(node)
    used = min(total, sum(pod.spec.gpus for pod in pods))
    broken = total - min(total, max(used, count((node.status.allocatable or {}).get(GPU_RESOURCE, total))))
    holders = [jobs[pod.job_uid] for pod in pods if pod.job_uid in jobs]
    why = _why(used, total, pods, jobs)
    only = holders[0] if len(pods) == 1 and holders and used == total else None
    views = [_view(node, name, index, index < used, index >= total - broken, why, only) for index in range(total)]
    return Node(name, tuple(views), NO_PROBE, down=down_of(node), drain=drain_of(node))


def _view(node: KubeNode, name: str, index: int, is_used: bool, is_broken: bool, why: str, only: Job | None) -> GpuView:
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
        _gpu(node, name, index),
        state,
        health,
        why=words,
        job_id=job.id if job else None,
        job_ids=(job.id,) if job else (),
        holders=(Holder("job", job.name, job.submitted_by),) if job else (),
        drain=drain,
    )


def _gpu(node: KubeNode, name: str, index: int) -> Gpu:
    size = count(node.metadata.label(_MEMORY))
    model = plain(node.metadata.label(_PRODUCT)).replace("-", " ") or None
    return Gpu(gpu_label(name, index), index, model, memory_total=size * 1024**2 or None)


def _count(node: KubeNode) -> int:
    return min(_MOST_GPUS, count((node.status.capacity or {}).get(GPU_RESOURCE, 0)))


def down_of(node: KubeNode) -> str:
    """Return why a node cannot be used; empty if it can."""
    ready = condition(node.status.conditions, "Ready")
    if ready is None or ready.status == "True":
        return ""
    return f"node {plain(node.metadata.name)} is not ready: {told(ready.message, ready.reason, 'no reason given')}"


def _why(used: int, total: int, pods: Iterable[KubePod], jobs: Mapping[str, Job]) -> str:
    """Return who uses GPUs of a node."""
    users = []
    for pod in pods:
        job = jobs.get(pod.job_uid)
        who = f"job {job.shown_id}" if job else f"pod {plain(pod.metadata.namespace)}/{plain(pod.metadata.name)}"
        users.append(f"{who} has {pod.spec.gpus}")
    return f"{used} of {total} in use: {', '.join(users)}"


def _noted_at(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else None
