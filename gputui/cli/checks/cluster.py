"""Checks of a cluster: whether it answers, its nodes and GPUs, and what this user may do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gputui.cli.checks.check import CheckLevel, DoctorCheck, fail, ok, warn
from gputui.domain.cluster import ENGINES, Capability, Caps, ClusterFault
from gputui.domain.gpu import GpuState
from gputui.domain.snapshot import Node, Snapshot
from gputui.domain.units import plural

_NAMED = 8
_SLURM_GPUS = "declare them: NodeName=… Gres=gpu:MODEL:N in slurm.conf, gres.conf"
_PLUGIN = "install NVIDIA's device plugin on the nodes: it tells Kubernetes of nvidia.com/gpu"


def of_faults(faults: Iterable[ClusterFault]) -> Iterator[DoctorCheck]:
    """Yield the faults that the engine's adapter found."""
    for fault in faults:
        level = CheckLevel.FAIL if fault.stops_jobs else CheckLevel.WARN
        yield DoctorCheck(fault.name, level, fault.text, fault.hint, fault.why)


def of_snapshot(name: str, caps: Caps, snapshot: Snapshot) -> Iterator[DoctorCheck]:
    """Judge what the cluster shows."""
    yield ok("cluster", f"{caps.engine} answers: cluster {name}, {plural(len(snapshot.nodes), 'node')}")
    is_slurm = caps.engine == ENGINES["slurm"]
    yield _gpus(snapshot, is_slurm)
    yield from _away(snapshot.nodes, is_slurm)
    yield _rights(caps, is_slurm)


def _gpus(snapshot: Snapshot, is_slurm: bool) -> DoctorCheck:
    without = [node.name for node in snapshot.nodes if not node.gpus]
    if not snapshot.gpus:
        return fail("gpus", "no node has GPUs", "No job with GPUs can start.", _SLURM_GPUS if is_slurm else _PLUGIN)
    words = f"{plural(len(snapshot.gpus), 'GPU')} on {plural(len(snapshot.nodes) - len(without), 'node')}"
    return ok("gpus", words + (f"; none on {_listed(without)}" if without else ""))


def _away(nodes: Iterable[Node], is_slurm: bool) -> Iterator[DoctorCheck]:
    """Yield the nodes on which no GPU can be used, and which nobody drained."""
    away = [
        node.name
        for node in nodes
        if node.gpus and all(view.state is GpuState.UNKNOWN and view.drain is None for view in node.gpus)
    ]
    if away:
        told = "sinfo -R tells why" if is_slurm else "kubectl describe node NODE tells why"
        hint = f"{told}; gputui resume NODE once it is mended"
        yield warn("nodes", f"not available: {_listed(away)}", "No job starts there.", hint)


def _rights(caps: Caps, is_slurm: bool) -> DoctorCheck:
    operators = (Capability.RAISE_PRIORITY, Capability.DRAIN_NODE) if is_slurm else (Capability.DRAIN_NODE,)
    lacking = [caps.why_not(each) for each in operators if not caps.has(each)]
    return ok("rights", "; ".join(lacking) if lacking else "this user is an operator")


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
