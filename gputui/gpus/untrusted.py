"""Checks of lines from the probes of other machines, which may send anything.

A line that no probe would write raises UntrustedError. Figures that cannot be true count as not read; texts are cut and
have no control characters.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from gputui.domain.consumption import Consumption
from gputui.domain.gpu import GpuProcess, Link
from gputui.domain.text import plain
from gputui.gpus import wire

_Number = TypeVar("_Number", int, float)
MOST_GPUS = 128
"""Maximum number of GPUs and MIG instances of a node."""
MOST_PROCESSES = 512
"""Maximum number of processes on a GPU that are kept."""
_MOST_LINKS = MOST_GPUS
_MOST_XIDS = 100
_HIGHEST_XID = 1000
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,80}", re.ASCII)
_CONTAINER = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MOST_BYTES = 2**50
_MOST_PID = 2**22
_FIGURES: Mapping[str, float] = {
    "utilization": 1.0,
    "memory_utilization": 1.0,
    "sm_activity": 1.0,
    "memory_activity": 1.0,
    "memory_used": _MOST_BYTES,
    "memory_total": _MOST_BYTES,
    "temperature": 1000.0,
    "power": 1e6,
    "sm_clock": 10**6,
    "memory_clock": 10**6,
    "throttle": 2**63,
    "pcie_tx": 1e15,
    "pcie_rx": 1e15,
    "nvlink_tx": 1e15,
    "nvlink_rx": 1e15,
}
"""Highest value of each figure."""
_USED: Mapping[str, float] = {
    "cpu": 1e12,
    "memory": _MOST_BYTES,
    "memory_peak": _MOST_BYTES,
    "io_read": 2**60,
    "io_written": 2**60,
}
"""Highest value of each count of a control group."""
_MOST_AGE = 60.0
"""Highest age of such a reading, in seconds."""
_SLOW_FIGURES: Mapping[str, float] = {
    "ecc_corrected": 2**63,
    "ecc_uncorrected": 2**63,
    "recovery": 1000,
    "power_limit": 1e6,
    "fan": 10.0,
}


class UntrustedError(ValueError):
    """A line that no probe would write."""


def checked_facts(facts: wire.Facts) -> wire.Facts:
    """Return the facts with figures and texts that do no harm; raises UntrustedError."""
    if len(facts.gpus) > MOST_GPUS:
        raise UntrustedError(f"it lists {len(facts.gpus)} GPUs")
    for gpu in facts.gpus:
        _check_gpu(gpu)
    if len({gpu.uuid for gpu in facts.gpus}) != len(facts.gpus):
        raise UntrustedError("it lists a GPU twice")
    facts.driver = _text(facts.driver, 40)
    facts.cuda = _within(facts.cuda, 10**6)
    return facts


def checked_sweep(sweep: wire.Sweep, known: Collection[str]) -> wire.Sweep:
    """Return the sweep without readings of unknown GPUs, and with figures and texts that do no harm."""
    sweep.samples = tuple(reading for reading in sweep.samples[:MOST_GPUS] if reading.uuid in known)
    for reading in sweep.samples:
        _clean(reading)
    sweep.xids = tuple(
        (uuid, code)
        for uuid, code in sweep.xids[:_MOST_XIDS]
        if 0 < code < _HIGHEST_XID and (uuid is None or uuid in known)
    )
    sweep.host = None  # the console shows no hosts of a cluster
    return sweep


def _check_gpu(gpu: wire.GpuFacts) -> None:
    if not _UUID.fullmatch(gpu.uuid) or not 0 <= gpu.index < MOST_GPUS:
        raise UntrustedError(f"it lists a GPU {_short(gpu.uuid, 20)!r} with index {gpu.index}")
    if gpu.mig_parent is not None and not _UUID.fullmatch(gpu.mig_parent):
        raise UntrustedError("it lists an instance of no GPU")
    gpu.error = _short(gpu.error, 100)
    gpu.model, gpu.mig_profile = _text(gpu.model, 60), _text(gpu.mig_profile, 16)
    gpu.pci_bus_id = _text(gpu.pci_bus_id, 20)
    gpu.memory_total = _within(gpu.memory_total, _MOST_BYTES)
    gpu.numa_node, gpu.minor = _within(gpu.numa_node, 4096), _within(gpu.minor, 4096)
    gpu.mig_index = _within(gpu.mig_index, MOST_GPUS)
    gpu.power_limit = _within(gpu.power_limit, 1e6)
    gpu.links = tuple(map(_link, gpu.links[:_MOST_LINKS]))


def _link(link: Link) -> Link:
    return Link(link.peer[:100], _short(link.kind, 8), _within(link.lanes, 1000) or 0)


def _clean(reading: wire.Reading) -> None:
    reading.error = _short(reading.error, 100)
    _bound(reading, _FIGURES)
    if reading.slow is not None:
        _bound(reading.slow, _SLOW_FIGURES)
    if isinstance(reading.processes, tuple):
        reading.processes = tuple(map(_process, reading.processes[:MOST_PROCESSES]))


def _bound(values: wire.Reading | wire.SlowReadings, highest: Mapping[str, float]) -> None:
    """Make each figure that is not from 0 to its highest value count as not read."""
    for name, most in highest.items():
        value = getattr(values, name)
        if value is not None and value is not UNSET and not 0 <= value <= most:
            setattr(values, name, None)


def _process(process: GpuProcess) -> GpuProcess:
    is_container = process.container_id is not None and _CONTAINER.fullmatch(process.container_id)
    return replace(
        process,
        pid=_within(process.pid, _MOST_PID) or 0,
        memory=_within(process.memory, _MOST_BYTES),
        user=_text(process.user, 40),
        command=_text(process.command, 200),
        container_id=process.container_id if is_container else None,
        session=None,
        attempt=None,
        sm=_within(process.sm, 1.0),
        ticks=None,
        used=_used(process.used) if process.used is not None else None,
        used_age=_within(process.used_age, _MOST_AGE) or 0.0,
    )


def _used(used: Consumption) -> Consumption:
    return Consumption(**{name: _within(getattr(used, name), most) for name, most in _USED.items()})


def _text(text: str | None, most: int) -> str | None:
    return None if text is None else _short(text, most) or None


def _short(text: str, most: int) -> str:
    return plain(text[: 4 * most], most)  # cut first: making a long text plain takes long


def _within(value: _Number | None, most: float) -> _Number | None:
    """Return the value if it is a number from 0 to `most`, else None."""
    return value if value is not None and 0 <= value <= most else None
