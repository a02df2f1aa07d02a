"""Figures that cannot be true count as not read: drivers do report 686,103 % and 4,294,967,295 °C."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from msgspec import UNSET, Struct
from msgspec.structs import replace

from gputui.domain.gpu import GpuProcess
from gputui.gpus import wire

_Number = TypeVar("_Number", int, float)
_Values = TypeVar("_Values", bound=Struct)
MOST_BYTES = 2**50
_MOST_WATTS = 20_000.0
_FIGURES: Mapping[str, float] = {
    "utilization": 1.0,
    "memory_utilization": 1.0,
    "sm_activity": 1.0,
    "memory_activity": 1.0,
    "memory_used": MOST_BYTES,
    "memory_total": MOST_BYTES,
    "temperature": 200.0,
    "power": _MOST_WATTS,
    "sm_clock": 10**5,
    "memory_clock": 10**5,
    "throttle": 2**31,
    "pcie_tx": 1e13,
    "pcie_rx": 1e13,
    "nvlink_tx": 1e14,
    "nvlink_rx": 1e14,
}
"""Highest value of each figure of a sweep: about ten times what boards reach."""
_SLOW_FIGURES: Mapping[str, float] = {
    "ecc_corrected": 2**63,
    "ecc_uncorrected": 2**63,
    "recovery": 1000,
    "power_limit": _MOST_WATTS,
    "fan": 10.0,
}
_FACTS: Mapping[str, float] = {
    "memory_total": MOST_BYTES,
    "numa_node": 4096,
    "minor": 4096,
    "power_limit": _MOST_WATTS,
    "default_power_limit": _MOST_WATTS,
}


def bound_facts(facts: wire.Facts) -> None:
    """Remove the figures of GPUs that cannot be true."""
    facts.cuda = within(facts.cuda, 10**6)
    facts.gpus = tuple(_bounded(gpu, _FACTS) for gpu in facts.gpus)


def bound_sweep(sweep: wire.Sweep) -> None:
    """Remove the readings that cannot be true."""
    sweep.samples = tuple(map(_reading, sweep.samples))


def _reading(reading: wire.Reading) -> wire.Reading:
    reading = _bounded(reading, _FIGURES)
    used, processes = reading.memory_used, reading.processes
    return replace(
        reading,
        memory_used=within(used, reading.memory_total) if reading.memory_total else used,
        slow=reading.slow and _bounded(reading.slow, _SLOW_FIGURES),
        processes=tuple(map(_process, processes)) if isinstance(processes, tuple) else processes,
    )


def _process(process: GpuProcess) -> GpuProcess:
    memory, sm = within(process.memory, MOST_BYTES), within(process.sm, 1.0)
    return process if (memory, sm) == (process.memory, process.sm) else replace(process, memory=memory, sm=sm)


def _bounded(values: _Values, highest: Mapping[str, float]) -> _Values:
    """Return the values; each figure that is not from 0 to its highest value counts as not read."""
    figures = ((name, getattr(values, name), most) for name, most in highest.items())
    wrong = [
        name for name, value, most in figures if value is not None and value is not UNSET and not 0 <= value <= most
    ]
    return replace(values, **dict.fromkeys(wrong)) if wrong else values


def within(value: _Number | None, most: float) -> _Number | None:
    """Return the value if it is a number from 0 to `most`, else None."""
    return value if value is not None and 0 <= value <= most else None
