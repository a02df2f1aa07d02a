"""Fatal Xids that outlive the scheduler that saw them: the driver does not report them again to the next one.

A GPU that reported one takes no job until a reset is detected, or an operator resumes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.gpu import GpuSample, Health, HealthCode, ProbeReading


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
