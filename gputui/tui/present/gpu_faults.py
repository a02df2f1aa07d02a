"""GPUs that take no job because something is wrong with them: lost, sick, or not read."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from gputui.domain.gpu import GpuView, HealthCode, ProbeCode
from gputui.domain.snapshot import Node, Notice, Snapshot
from gputui.domain.text import plain
from gputui.domain.units import format_duration
from gputui.tui.present.cells import Span
from gputui.tui.present.gpu_names import index_of
from gputui.tui.present.labels import ranges
from gputui.tui.present.style import AMBER, DIM, RED

_UNREAD = frozenset({HealthCode.OK, HealthCode.UNKNOWN, HealthCode.REMAP_PENDING})
LOST, SICK, NOT_READ = "lost", "sick", "not read"


def fault_of(view: GpuView) -> str:
    """Return `lost`, `sick` or `not read`; empty when nothing is wrong with the GPU."""
    if view.health.code is HealthCode.LOST or view.gpu.index < 0:
        return LOST
    if view.health.code not in _UNREAD:
        return SICK
    return NOT_READ if view.stale else ""


def fault_counts(snapshot: Snapshot) -> list[Span]:
    """Return `, 1 lost, 2 sick, 3 not read` for the status line."""
    faults = [fault_of(view) for view in snapshot.gpus]
    spans: list[Span] = []
    for fault, style in ((LOST, RED), (SICK, RED), (NOT_READ, AMBER)):
        if count := faults.count(fault):
            spans += [(", ", DIM), (f"{count} {fault}", style)]
    return spans


def gpu_faults(snapshot: Snapshot) -> list[Notice]:
    """Return a notice for each GPU that is lost or sick, and one for all that are not read."""
    found = []
    for node in snapshot.nodes:
        where = f" of {plain(node.name, 40)}" if len(snapshot.nodes) > 1 else ""
        found += [Notice("error", _broken(view, where)) for view in node.gpus if fault_of(view) in {LOST, SICK}]
        found += _not_read(node, where)
    return found


def _broken(view: GpuView, where: str) -> str:
    fault = fault_of(view)
    name = f"GPU {index_of(view)}{where}" if view.gpu.index >= 0 else f"GPU {plain(view.gpu.uuid, 12)}{where}"
    text = plain(view.health.text.removeprefix("lost: "), 300) or str(view.health.code)
    return f"{name} is {fault} and takes no job{_held(view)}: {text}"


def _held(view: GpuView) -> str:
    if not view.job_ids and view.job_id is None:
        return ""
    ids = view.job_ids or (view.job_id,)
    numbers = ", ".join(map(str, ids))
    return f" (job {numbers} still holds it)" if len(ids) == 1 else f" (jobs {numbers} still hold it)"


def _not_read(node: Node, where: str) -> Iterable[Notice]:
    """Return nothing while the probe itself tells why no GPU is read."""
    stale = [view for view in node.gpus if fault_of(view) == NOT_READ]
    if not stale or node.probe.code is not ProbeCode.OK:
        return
    oldest = max((view.age or timedelta(0) for view in stale), default=timedelta(0))
    since = f" for {format_duration(oldest)}" if oldest else ""
    names = ranges([index_of(view) for view in stale])
    kind = "GPU" if len(stale) == 1 else "GPUs"
    text = f"{kind} {names}{where} could not be read{since} and {'takes' if len(stale) == 1 else 'take'} no job"
    yield Notice("warning", f"{text}: `gputui doctor` checks the driver")
