"""Fatal Xids that outlive the scheduler that saw them: the driver does not repeat them to the next one.

A GPU that reported one takes no job until a reset of it is seen, or an operator resumes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.gpu import GpuSample, Health, HealthCode, ProbeReading


class GpuFault(Struct, frozen=True):
    """A fatal Xid of a GPU, and signs by which a later reset is known."""

    text: str
    """The Xid in words."""
    at: datetime
    boot: str = ""
    """Start of the machine in which it was reported: another one resets all GPUs."""
    asks_reset: bool = False
    """The driver asked for a reset afterwards; when it asks no more, there was one."""
    has_ecc: bool = False
    """True if there were uncorrected memory errors; a reset clears their count."""


def with_faults(reading: ProbeReading, faults: Mapping[str, GpuFault]) -> ProbeReading:
    """Return the reading, in which GPUs with a fault are sick although the driver says nothing of it any more."""
    hidden = {
        uuid: replace(sample, health=Health(HealthCode.XID, fault.text))
        for uuid, fault in faults.items()
        if (sample := reading.samples.get(uuid)) is not None and sample.health.is_schedulable
    }
    return replace(reading, samples=MappingProxyType({**reading.samples, **hidden})) if hidden else reading


class FaultEvidence(Struct, frozen=True):
    """Return what is known now of GPUs and the machine."""

    samples: Mapping[str, GpuSample]
    resumed: Mapping[str, datetime]
    """Times by UUID of operators' resumes."""
    boot: str
    now: datetime
    live: frozenset[str] = frozenset()
    """GPUs whose fault the running probe reported itself: it knows of resets."""


def judged(faults: Mapping[str, GpuFault], seen: FaultEvidence) -> Mapping[str, GpuFault]:
    """Return the faults that count from now on: with new ones, and without those that are over; the same if alike."""
    found = {uuid: fault for uuid, fault in faults.items() if not _is_over(uuid, fault, seen)}
    for uuid in reported(seen):
        found.setdefault(uuid, GpuFault(seen.samples[uuid].health.text, seen.now, seen.boot))
    found = {uuid: _with_signs(fault, seen.samples.get(uuid)) for uuid, fault in found.items()}
    return faults if found == dict(faults) else found


def reported(seen: FaultEvidence) -> Iterable[str]:
    """Return the GPUs that report a fatal Xid now, which was not forgiven before the reading."""
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


def _with_signs(fault: GpuFault, sample: GpuSample | None) -> GpuFault:
    if sample is None:
        return fault
    asks_reset = fault.asks_reset or sample.health.code is HealthCode.NEEDS_RESET
    return replace(fault, asks_reset=asks_reset, has_ecc=fault.has_ecc or bool(sample.ecc_uncorrected))
