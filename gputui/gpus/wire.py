"""The lines a probe process writes, as the supervisor reads them."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType
from msgspec.json import Decoder

from gputui.domain.gpu import GpuProcess, Link


class Card(Struct):
    """What does not change about a GPU."""

    index: int
    uuid: str
    error: str = ""
    model: str | None = None
    memory_total: int | None = None
    pci_bus_id: str | None = None
    numa_node: int | None = None
    minor: int | None = None
    links: tuple[Link, ...] = ()
    mig_parent: str | None = None
    mig_profile: str | None = None
    mig_index: int | None = None
    mig_enabled: bool = False
    power_limit: float | None = None
    persistence: bool | None = None


class Slow(Struct):
    """What is read seldom."""

    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery: int | None = None
    power_limit: float | None = None
    fan: float | None = None


class Reading(Struct):
    """One GPU in one sweep."""

    uuid: str
    error: str = ""
    utilization: float | None = None
    memory_utilization: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    temperature: float | None = None
    power: float | None = None
    sm_clock: int | None = None
    memory_clock: int | None = None
    throttle: int | None = None
    pcie_tx: float | None = None
    pcie_rx: float | None = None
    nvlink_tx: float | None = None
    nvlink_rx: float | None = None
    slow: Slow | None = None
    processes: tuple[GpuProcess, ...] | UnsetType | None = UNSET
    """Unset when the lists were not asked for in this sweep; None when this one could not be read."""


class Facts(Struct, tag="facts", tag_field="kind"):
    """Which GPUs there are."""

    gpus: tuple[Card, ...]
    driver: str | None = None
    cuda: int | None = None
    """Version as NVML numbers it: 12080 is 12.8."""


class Sweep(Struct, tag="sweep", tag_field="kind"):
    """One sweep over all of them."""

    samples: tuple[Reading, ...] = ()
    xids: tuple[tuple[str | None, int], ...] = ()
    lists: bool = False
    hosts_pids: bool = True


class Failed(Struct, tag="failed", tag_field="kind"):
    """Why the probe process ends."""

    code: str
    text: str


DECODER: Decoder[Facts | Sweep | Failed] = Decoder(Facts | Sweep | Failed)
