"""Wire format of the probe process: one JSON line per message, as decoded by the supervisor."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from gputui.domain.decoding import JsonDecoder, json_decoder
from gputui.domain.gpu import GpuProcess, Link
from gputui.domain.host import HostFigures


class GpuFacts(Struct):
    """Constant facts of a GPU or MIG instance."""

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
    unified: bool = False
    power_limit: float | None = None
    default_power_limit: float | None = None
    persistence: bool | None = None


class SlowReadings(Struct):
    """Readings that seldom change."""

    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery: int | None = None
    power_limit: float | None = None
    fan: float | None = None


class Reading(Struct):
    """Reading of one GPU in one sweep."""

    uuid: str
    error: str = ""
    unidentified: str = ""
    """Why no job can be given a GPU whose values are read; empty if its UUID is its own."""
    utilization: float | None = None
    memory_utilization: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    temperature: float | None = None
    power: float | None = None
    sm_clock: int | None = None
    memory_clock: int | None = None
    throttle: int | None = None
    sm_activity: float | UnsetType | None = UNSET
    memory_activity: float | UnsetType | None = UNSET
    """Means since the last sweep that read them; unset if this one did not."""
    pcie_tx: float | None = None
    pcie_rx: float | None = None
    nvlink_tx: float | None = None
    nvlink_rx: float | None = None
    slow: SlowReadings | None = None
    processes: tuple[GpuProcess, ...] | UnsetType | None = UNSET
    """Processes; unset if this sweep read no lists, None if this list could not be read."""
    lists_processes: bool = True
    """False if the driver has no such list at all."""


class DiskReading(Struct):
    """Reading of a file system."""

    mount: str
    roles: tuple[str, ...]
    total: int
    free: int


class HostReading(HostFigures, frozen=True):
    """Reading of the host in one sweep; rates are missing in the first."""

    disks: tuple[DiskReading, ...] | UnsetType = UNSET
    """Disks; unset if none was read since the last reading."""


class Facts(Struct, tag="facts", tag_field="kind"):
    """List of all GPUs, with driver and CUDA versions."""

    gpus: tuple[GpuFacts, ...]
    driver: str | None = None
    cuda: int | None = None
    """CUDA version as NVML numbers it: 12080 is 12.8."""


class Sweep(Struct, tag="sweep", tag_field="kind"):
    """Sweep over all GPUs."""

    samples: tuple[Reading, ...] = ()
    xids: tuple[tuple[str | None, int], ...] = ()
    lists: bool = False
    hosts_pids: bool = True
    host: HostReading | None = None
    """Reading of the host; None in a sweep without lists, and from a probe of an earlier version."""


class Failed(Struct, tag="failed", tag_field="kind"):
    """Failure that ends the probe process."""

    code: str
    text: str


DECODER: JsonDecoder[Facts | Sweep | Failed] = json_decoder(Facts | Sweep | Failed)
