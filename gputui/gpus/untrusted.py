"""Checks of lines from the probes of other machines, which may send anything.

A line that no probe would write raises UntrustedError; texts are cut and have no control characters. For all probes
`plausible` removes the figures that cannot be true.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from msgspec.structs import replace

from gputui.domain.consumption import Consumption
from gputui.domain.gpu import GpuProcess, Link
from gputui.domain.text import plain
from gputui.gpus import wire
from gputui.gpus.plausible import MOST_BYTES, within

MOST_GPUS = 128
"""Maximum number of GPUs and MIG instances of a node."""
MOST_PROCESSES = 512
"""Maximum number of processes on a GPU that are kept."""
_MOST_LINKS = MOST_GPUS
_MOST_XIDS = 100
_HIGHEST_XID = 1000
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,80}", re.ASCII)
_CONTAINER = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MOST_PID = 2**22
_USED: Mapping[str, float] = {
    "cpu": 1e12,
    "memory": MOST_BYTES,
    "memory_peak": MOST_BYTES,
    "io_read": 2**60,
    "io_written": 2**60,
}
"""Highest value of each count of a control group."""
_MOST_AGE = 60.0
"""Highest age of such a reading, in seconds."""


class UntrustedError(ValueError):
    """A line that no probe would write."""


def checked_facts(facts: wire.Facts) -> wire.Facts:
    """Return the facts with figures and texts that do no harm; raises UntrustedError."""
    if len(facts.gpus) > MOST_GPUS:
        raise UntrustedError(f"it lists {len(facts.gpus)} GPUs")
    facts.gpus = tuple(map(_checked_gpu, facts.gpus))
    if len({gpu.uuid for gpu in facts.gpus}) != len(facts.gpus):
        raise UntrustedError("it lists a GPU twice")
    facts.driver = _text(facts.driver, 40)
    return facts


def checked_sweep(sweep: wire.Sweep, known: Collection[str]) -> wire.Sweep:
    """Return the sweep without readings of unknown GPUs, and with figures and texts that do no harm."""
    sweep.samples = tuple(_cleaned(reading) for reading in sweep.samples[:MOST_GPUS] if reading.uuid in known)
    sweep.xids = tuple(
        (uuid, code)
        for uuid, code in sweep.xids[:_MOST_XIDS]
        if 0 < code < _HIGHEST_XID and (uuid is None or uuid in known)
    )
    sweep.host = None  # the console shows no hosts of a cluster
    return sweep


def _checked_gpu(gpu: wire.GpuFacts) -> wire.GpuFacts:
    if not _UUID.fullmatch(gpu.uuid) or not 0 <= gpu.index < MOST_GPUS:
        raise UntrustedError(f"it lists a GPU {_short(gpu.uuid, 20)!r} with index {gpu.index}")
    if gpu.mig_parent is not None and not _UUID.fullmatch(gpu.mig_parent):
        raise UntrustedError("it lists an instance of no GPU")
    return replace(
        gpu,
        error=_short(gpu.error, 100),
        model=_text(gpu.model, 60),
        mig_profile=_text(gpu.mig_profile, 16),
        pci_bus_id=_text(gpu.pci_bus_id, 20),
        mig_index=within(gpu.mig_index, MOST_GPUS),
        links=tuple(map(_link, gpu.links[:_MOST_LINKS])),
    )


def _link(link: Link) -> Link:
    return Link(link.peer[:100], _short(link.kind, 8), within(link.lanes, 1000) or 0)


def _cleaned(reading: wire.Reading) -> wire.Reading:
    processes = reading.processes
    return replace(
        reading,
        error=_short(reading.error, 100),
        unidentified=_short(reading.unidentified, 100),
        processes=tuple(map(_process, processes[:MOST_PROCESSES])) if isinstance(processes, tuple) else processes,
    )


def _process(process: GpuProcess) -> GpuProcess:
    is_container = process.container_id is not None and _CONTAINER.fullmatch(process.container_id)
    return replace(
        process,
        pid=within(process.pid, _MOST_PID) or 0,
        user=_text(process.user, 40),
        command=_text(process.command, 200),
        container_id=process.container_id if is_container else None,
        session=None,
        attempt=None,
        ticks=None,
        used=_used(process.used) if process.used is not None else None,
        used_age=within(process.used_age, _MOST_AGE) or 0.0,
    )


def _used(used: Consumption) -> Consumption:
    return Consumption(**{name: within(getattr(used, name), most) for name, most in _USED.items()})


def _text(text: str | None, most: int) -> str | None:
    return None if text is None else _short(text, most) or None


def _short(text: str, most: int) -> str:
    return plain(text[: 4 * most], most)  # cut first: making a long text plain takes long
