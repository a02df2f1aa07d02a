"""GPUs that are lost, sick or not read, and descriptions of them for the jobs that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gputui.domain.gpu import GpuView, HealthCode
from gputui.domain.gpu_names import index_of, index_ranges
from gputui.domain.job_spec import JobId
from gputui.domain.text import plain

LOST, SICK, NOT_READ = "lost", "sick", "not read"
TRESPASS = "used without being held"
_USABLE = frozenset({HealthCode.OK, HealthCode.UNKNOWN, HealthCode.REMAP_PENDING})


def fault_of(view: GpuView) -> str:
    """Return `lost`, `sick` or `not read`; empty if the GPU is fine."""
    if view.health.code is HealthCode.LOST or view.gpu.index < 0:
        return LOST
    if view.health.code not in _USABLE:
        return SICK
    return NOT_READ if view.stale else ""


def faulty_gpus(views: Iterable[GpuView]) -> Mapping[JobId, str]:
    """Return `GPU 4 lost`, or `GPU 0,4-5 lost, GPU 7 sick`, for each job that holds lost or sick GPUs.

    Also `GPU 3 used without being held` for a job that uses GPUs which it does not hold.
    """
    found: dict[JobId, dict[str, list[str]]] = {}
    for view in views:
        for job_id in view.trespassers:
            found.setdefault(job_id, {}).setdefault(TRESPASS, []).append(_name(view))
        if (fault := fault_of(view)) in {LOST, SICK}:
            for job_id in view.job_ids or (() if view.job_id is None else (view.job_id,)):
                found.setdefault(job_id, {}).setdefault(fault, []).append(_name(view))
    return {job_id: _words(names) for job_id, names in found.items()}


def _name(view: GpuView) -> str:
    """Return the index, or the beginning of the UUID if the driver does not list the GPU."""
    return index_of(view) if view.gpu.index >= 0 else plain(view.gpu.uuid, 12)


def _words(names: Mapping[str, list[str]]) -> str:
    return ", ".join(f"GPU {index_ranges(names[fault])} {fault}" for fault in (LOST, SICK, TRESPASS) if fault in names)
