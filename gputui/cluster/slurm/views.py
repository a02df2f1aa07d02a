"""Nodes and GPUs of our domain from Slurm's nodes and the jobs on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from gputui.cluster.slurm.jobs import gpu_name
from gputui.cluster.slurm.node_rows import NodeRow
from gputui.domain.gpu import NO_PROBE, Drain, Gpu, GpuState, GpuView, Health, HealthCode, Holder
from gputui.domain.job import Job
from gputui.domain.snapshot import Node

_DOWN = frozenset(
    {"DOWN", "NOT_RESPONDING", "UNKNOWN", "FUTURE", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN"}
    | {"FAIL", "FAILING", "ERROR", "INVAL", "INVALID_REG"}
)
_SHUT = frozenset(
    {"DRAIN", "DRAINING", "DRAINED", "MAINT", "MAINTENANCE", "REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED"}
)
_BLOCKED = frozenset({"BLOCKED", "POWER_DOWN"})


def nodes_of(rows: Iterable[NodeRow], jobs: Iterable[Job]) -> tuple[Node, ...]:
    """Return the nodes with their GPUs."""
    holders: dict[str, list[Job]] = {}
    for job in jobs:
        for name in job.gpus:
            holders.setdefault(name, []).append(job)
    return tuple(_node(row, holders) for row in rows)


def drain_of(row: NodeRow) -> Drain | None:
    """Return the drain of a node."""
    if not _SHUT.intersection(row.states):
        return None
    at = datetime.fromtimestamp(row.reason_at, UTC) if row.reason_at else datetime.fromtimestamp(0, UTC)
    return Drain(row.reason or "no reason given", row.reason_by or "Slurm", at)


def why_down(row: NodeRow) -> str:
    """Return why a node cannot be reached; empty if it is up."""
    state = next((state for state in row.states if state in _DOWN), None)
    return f"node {row.name} is {_words(state)}" + (f": {row.reason}" if row.reason else "") if state else ""


def why_shut(row: NodeRow) -> str:
    """Return why a node that is up starts no jobs; empty if it does."""
    if (drain := drain_of(row)) is not None:
        return f"node {row.name} is drained: {drain.reason}"
    held = _BLOCKED.intersection(row.states)
    return f"node {row.name} is {_words(min(held))}" if held else ""


def _node(row: NodeRow, holders: Mapping[str, list[Job]]) -> Node:
    named = {index for index in range(len(row.gpus)) if gpu_name(row.name, index) in holders}
    unnamed = max(0, row.used_count - len(set(row.used) | named))  # allocated, but Slurm does not tell which
    taken = set(row.used) | named
    for index in range(len(row.gpus)):
        if unnamed and index not in taken:
            taken.add(index)
            unnamed -= 1
    gpus = tuple(_view(row, index, index in taken, holders) for index in range(len(row.gpus)))
    return Node(row.name, gpus, NO_PROBE, down=why_down(row), drain=drain_of(row))


def _view(row: NodeRow, index: int, is_taken: bool, holders: Mapping[str, list[Job]]) -> GpuView:
    name = gpu_name(row.name, index)
    jobs, drain = holders.get(name, []), drain_of(row)
    state, why, health = GpuState.FREE, "", Health()
    if down := why_down(row):
        state, why, health = GpuState.UNKNOWN, down, Health(HealthCode.UNKNOWN, down)
    elif is_taken:
        state, why = GpuState.ALLOCATED, "" if jobs else "allocated by Slurm"
    elif shut := why_shut(row):
        state, why = GpuState.DRAINED if drain is not None else GpuState.UNKNOWN, shut
    return GpuView(
        Gpu(name, index, row.gpus[index].upper() or None),
        state,
        health,
        why=why,
        job_id=jobs[0].id if jobs else None,
        job_ids=tuple(job.id for job in jobs),
        holders=tuple(Holder("job", job.name, job.submitted_by) for job in jobs),
        drain=drain,
    )


def _words(state: str) -> str:
    return "down" if state == "NOT_RESPONDING" else state.lower().replace("_", " ")
