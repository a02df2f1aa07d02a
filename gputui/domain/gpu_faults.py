"""Faults of GPUs: lost and sick ones in words for the jobs that hold them, and fatal Xids.

Fatal Xids outlive the scheduler that saw them, since the driver does not report them again to the next one. A GPU that
reported one takes no job until a reset is detected, or an operator resumes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.gpu import GpuSample, GpuView, Health, HealthCode, ProbeReading, index_of, index_ranges
from gputui.domain.job_spec import JobId
from gputui.domain.text import plain


class GpuFault(Struct, frozen=True):
    """A fatal Xid of a GPU, and the signs by which a later reset is detected."""

    text: str
    """Description of the Xid."""
    at: datetime
    boot: str = ""
    """Boot id of the machine at the time of the report; after another boot all GPUs have been reset."""
    asks_reset: bool = False
    """True if the driver asked for a reset afterwards; once it no longer asks, there was one."""
    has_ecc: bool = False
    """True if there were uncorrected memory errors; a reset clears their count."""


def with_faults(reading: ProbeReading, faults: Mapping[str, GpuFault]) -> ProbeReading:
    """Return the reading with faulty GPUs marked sick, even if the driver no longer reports the fault."""
    hidden = {
        uuid: replace(sample, health=Health(HealthCode.XID, fault.text))
        for uuid, fault in faults.items()
        if (sample := reading.samples.get(uuid)) is not None and sample.health.is_schedulable
    }
    return replace(reading, samples=MappingProxyType({**reading.samples, **hidden})) if hidden else reading


class FaultEvidence(Struct, frozen=True):
    """Current knowledge about GPUs and the machine."""

    samples: Mapping[str, GpuSample]
    resumed: Mapping[str, datetime]
    """Times by UUID of operators' resumes."""
    boot: str
    now: datetime
    live: frozenset[str] = frozenset()
    """GPUs whose fault the running probe reported itself; it detects resets."""


def judged(faults: Mapping[str, GpuFault], seen: FaultEvidence) -> Mapping[str, GpuFault]:
    """Return the current faults: new ones added, resolved ones removed; the same object if unchanged."""
    found = {uuid: fault for uuid, fault in faults.items() if not _is_over(uuid, fault, seen)}
    for uuid in reported(seen):
        found.setdefault(uuid, GpuFault(seen.samples[uuid].health.text, seen.now, seen.boot))
    for uuid, fault in found.items():
        if (sample := seen.samples.get(uuid)) is not None:
            asks_reset = fault.asks_reset or sample.health.code is HealthCode.NEEDS_RESET
            found[uuid] = replace(fault, asks_reset=asks_reset, has_ecc=fault.has_ecc or bool(sample.ecc_uncorrected))
    return faults if found == dict(faults) else found


def reported(seen: FaultEvidence) -> Iterable[str]:
    """Return the GPUs that report a fatal Xid now and were not resumed before the reading."""
    for uuid, sample in seen.samples.items():
        resumed_at = seen.resumed.get(uuid)
        if sample.health.code is HealthCode.XID and (resumed_at is None or sample.sampled_at > resumed_at):
            yield uuid


def _is_over(uuid: str, fault: GpuFault, seen: FaultEvidence) -> bool:
    resumed_at = seen.resumed.get(uuid)
    if resumed_at is not None and resumed_at >= fault.at:
        return True
    if fault.boot and seen.boot and fault.boot != seen.boot:
        return True
    sample = seen.samples.get(uuid)
    if sample is None or not sample.health.is_schedulable:
        return False
    has_no_ecc = fault.has_ecc and sample.ecc_uncorrected == 0
    return uuid in seen.live or fault.asks_reset or has_no_ecc


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
