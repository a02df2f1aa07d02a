"""Checks of a cluster: whether it answers, its nodes and GPUs, and what this user may do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gputui.cli.checks.check import CheckLevel, DoctorCheck, fail, ok, warn
from gputui.domain.cluster import ENGINES, Capability, Caps, ClusterFault
from gputui.domain.gpu import GpuState, ProbeCode
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Node, Snapshot
from gputui.domain.units import plural

_NAMED = 8
_SLURM_GPUS = "declare them: NodeName=… Gres=gpu:MODEL:N in slurm.conf, gres.conf"
_PLUGIN = "install NVIDIA's device plugin on the nodes: it tells Kubernetes of nvidia.com/gpu"
_PROBE = 'probe = "ssh" in [cluster], with gputui on the nodes and ssh to them without a question'
_NO_READINGS = "no readings: "
_HINTS = {
    "gputui is not installed": "install gputui on the nodes, or set cluster.probe_command to where it is",
    "gputui there is too old": "update gputui on the nodes",
    "Permission denied": "`ssh NODE` must work without a question, from where the cluster's commands run",
    "Host key verification": "`ssh NODE` must work without a question, from where the cluster's commands run",
    "pam_slurm_adopt": "Slurm lets users only onto nodes on which they have a job: an administrator may allow more",
    "libnvidia-ml": "NVIDIA's driver is missing on the node; run gputui doctor there",
    "NVIDIA": "run gputui doctor on the node",
}
"""What helps, by a part of the reason."""


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


def of_readings(nodes: Iterable[Node], probe: str) -> Iterator[DoctorCheck]:
    """Judge which nodes were read; `probe` is the setting."""
    having = [node for node in nodes if node.gpus]
    if probe == "off":
        yield DoctorCheck("readings", CheckLevel.OK, "none of the nodes' GPUs: cluster.probe is off", _PROBE)
        return
    unread = [node for node in having if node.probe.code is not ProbeCode.OK]
    read = len(having) - len(unread)
    if read:
        yield ok("readings", f"of the GPUs of {plural(read, 'node')}")
    why = "Their GPUs are shown as the engine has allocated them, without load, memory and faults."
    for words, names in _by_reason(unread).items():
        yield warn("readings", f"no readings of {_listed(names)}: {words}", why, _hint(words))


def of_settings(settings: Settings) -> Iterator[DoctorCheck]:
    """Name the settings that have no effect on a cluster as the others are."""
    if settings.scheduler.idle_gpus_end is not None and settings.cluster.probe == "off":
        why = "Nobody sees which GPUs are idle, so no job is ended for that."
        yield warn("settings", "scheduler.idle_gpus_end has no effect: cluster.probe is off", why, _PROBE)
    if settings.report.weekly and not settings.hooks.has_receivers:
        why = "Nobody gets the weekly report."
        hint = "name a command, a webhook or mail in [hooks]"
        yield warn("settings", "report.weekly has no effect: [hooks] has no receivers", why, hint)


def _by_reason(nodes: Iterable[Node]) -> dict[str, list[str]]:
    """Return the names of nodes by the reason why they are not read; a node's own name in it does not count."""
    found: dict[str, list[tuple[str, str]]] = {}
    for node in nodes:
        words = "it is down" if node.probe.code is ProbeCode.NO_PROBE else node.probe.text.removeprefix(_NO_READINGS)
        found.setdefault(words.replace(node.name, "NODE"), []).append((node.name, words))
    return {group[0][1] if len(group) == 1 else words: [name for name, _ in group] for words, group in found.items()}


def _hint(words: str) -> str:
    return next((hint for part, hint in _HINTS.items() if part in words), "")


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
