"""Conditions of GPUs: lost, sick, not read, slowed, used by others, or drained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta

from gputui.domain.gpu import GpuState, GpuView, HealthCode, Holder, ProbeCode
from gputui.domain.snapshot import Node, Snapshot
from gputui.domain.text import plain
from gputui.domain.units import format_duration
from gputui.tui.keys import keyed
from gputui.tui.present.condition import Condition
from gputui.tui.present.gpu_words import index_of, ranges

_UNREAD = frozenset({HealthCode.OK, HealthCode.UNKNOWN, HealthCode.REMAP_PENDING})
LOST, SICK, NOT_READ = "lost", "sick", "not read"
CAP = "power cap"
_BY_DESIGN = frozenset({CAP, "sync boost", "display clock"})
"""Reasons for lower clocks that are no fault of the board or its cooling."""


def fault_of(view: GpuView) -> str:
    """Return `lost`, `sick` or `not read`; empty when nothing is wrong with the GPU."""
    if view.health.code is HealthCode.LOST or view.gpu.index < 0:
        return LOST
    if view.health.code not in _UNREAD:
        return SICK
    return NOT_READ if view.stale else ""


def gpu_conditions(snapshot: Snapshot) -> list[Condition]:
    """Return the conditions of all GPUs."""
    found: list[Condition] = []
    for node in snapshot.nodes:
        where = f" of {plain(node.name, 40)}" if len(snapshot.nodes) > 1 else ""
        found += [_broken(view, where, snapshot) for view in node.gpus if fault_of(view) in {LOST, SICK}]
        found += _not_read(node, where, snapshot)
        for view in node.gpus:
            found += [*_slowed(view, where), *_foreign(view, where), *_drained(view, where)]
    return found


def _name(view: GpuView, where: str) -> str:
    return f"GPU {index_of(view) if view.gpu.index >= 0 else plain(view.gpu.uuid, 12)}{where}"


def _broken(view: GpuView, where: str, snapshot: Snapshot) -> Condition:
    fault, record = fault_of(view), snapshot.controls.faults.get(view.gpu.uuid)
    text = plain(view.health.text.removeprefix("lost: "), 300) or str(view.health.code)
    index = index_of(view)
    todo = f"after a reset `gputui resume {index}` gives it jobs again" if view.is_stopped_by_xid else ""
    return Condition(
        "error",
        f"{_name(view, where)} is {fault} and takes no job{_held(view)}: {text}",
        fault,
        subject=view.gpu.uuid,
        since=record.at if record else None,
        todo=todo or "`gputui doctor` checks the driver",
        gpu=index if view.gpu.index >= 0 else plain(view.gpu.uuid, 12),
    )


def _held(view: GpuView) -> str:
    if not view.job_ids and view.job_id is None:
        return ""
    ids = view.job_ids or (view.job_id,)
    numbers = ", ".join(map(str, ids))
    return f" (job {numbers} still holds it)" if len(ids) == 1 else f" (jobs {numbers} still hold it)"


def _not_read(node: Node, where: str, snapshot: Snapshot) -> Iterable[Condition]:
    """Return nothing while the probe itself tells why no GPU is read."""
    stale = [view for view in node.gpus if fault_of(view) == NOT_READ]
    if not stale or node.probe.code is not ProbeCode.OK:
        return
    oldest = max((view.age or timedelta(0) for view in stale), default=timedelta(0))
    since = f" for {format_duration(oldest)}" if oldest else ""
    names = ranges([index_of(view) for view in stale])
    kind = "GPU" if len(stale) == 1 else "GPUs"
    yield Condition(
        "warning",
        f"{kind} {names}{where} could not be read{since} and {'takes' if len(stale) == 1 else 'take'} no job",
        NOT_READ,
        f"{kind} {names} not read",
        subject=where,
        since=snapshot.taken_at - oldest if oldest else None,
        todo="`gputui doctor` checks the driver",
    )


def _slowed(view: GpuView, where: str) -> Iterator[Condition]:
    """Yield that the driver holds the clocks down; a power cap under load is no fault."""
    sample = view.sample
    if sample is None or view.stale or not sample.throttle:
        return
    faults = [reason for reason in sample.throttle if reason not in _BY_DESIGN]
    if not faults and CAP not in sample.throttle:
        return
    reasons = plain(", ".join(sample.throttle), 100)
    power = f" at {sample.power:.0f} of {sample.power_limit:.0f} W" if sample.power and sample.power_limit else ""
    heat = f" at {sample.temperature:.0f} °C" if sample.temperature is not None and faults else ""
    index = index_of(view)
    yield Condition(
        "warning" if faults else "information",
        f"{_name(view, where)} is slowed by the driver: {reasons}{heat or power}",
        "throttled" if faults else "capped",
        subject=view.gpu.uuid,
        todo="check cooling and power supply" if faults else f"`nvidia-smi -i {index} -pl WATTS` sets the limit",
        gpu=index,
    )


def _foreign(view: GpuView, where: str) -> Iterator[Condition]:
    """Yield that somebody uses the GPU whom the scheduler did not give it to."""
    others = [holder for holder in view.holders if holder.kind != "job"]
    is_held = view.state is GpuState.ALLOCATED
    if view.state is not GpuState.FOREIGN and not (is_held and others):
        return
    who = ", ".join(_who(holder) for holder in others) or plain(view.why, 200) or "an unknown process"
    yield Condition(
        "warning" if is_held else "information",
        f"{_name(view, where)} is used by {who}" + (f" beside job {view.job_id}" if is_held else "; it takes no job"),
        "intruder" if is_held else "foreign",
        subject=view.gpu.uuid,
        todo=f"{keyed('gpu_processes')} shows its processes and ends them",
        gpu=index_of(view),
    )


def _who(holder: Holder) -> str:
    user = f" of {plain(holder.user, 40)}" if holder.user else ""
    image = f", image {plain(holder.image, 60)}" if holder.image else ""
    pid = f" (pid {holder.pid})" if holder.pid is not None and holder.kind == "process" else ""
    return f"{holder.kind} {plain(holder.name, 60)}{pid}{user}{image}"


def _drained(view: GpuView, where: str) -> Iterator[Condition]:
    if view.drain is None:
        return
    reason = f": {plain(view.drain.reason, 200)}" if view.drain.reason else ""
    index = index_of(view)
    yield Condition(
        "information",
        f"{_name(view, where)} is drained by {plain(view.drain.by, 40)} and takes no new job{reason}",
        "drained",
        subject=view.gpu.uuid,
        since=view.drain.at,
        todo=f"`gputui resume {index}` ends that",
        gpu=index,
    )
