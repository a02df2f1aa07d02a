"""Wire format of the probe process: one JSON line per message, as decoded by the supervisor."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from gputui.domain.decoding import JsonDecoder, json_decoder
from gputui.domain.gpu import Gpu, GpuFigures, GpuProcess
from gputui.domain.host import DiskUse, HostFigures


class GpuFacts(Gpu, frozen=True, kw_only=True):
    """Constant facts of a GPU or MIG instance, whose index is the driver's."""

    error: str = ""


class SlowReadings(Struct, frozen=True):
    """Readings that seldom change."""

    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery: int | None = None
    power_limit: float | None = None
    fan: float | None = None


class Reading(GpuFigures, frozen=True, kw_only=True):
    """Reading of one GPU in one sweep."""

    uuid: str
    error: str = ""
    unidentified: str = ""
    """Why no job can be given a GPU whose values are read; empty if its UUID is its own."""
    throttle: int | None = None
    sm_activity: float | UnsetType | None = UNSET
    memory_activity: float | UnsetType | None = UNSET
    """Means since the last sweep that read them; unset if this one did not."""
    slow: SlowReadings | None = None
    processes: tuple[GpuProcess, ...] | UnsetType | None = UNSET
    """Processes; unset if this sweep read no lists, None if this list could not be read."""


class HostReading(HostFigures, frozen=True):
    """Reading of the host in one sweep; rates are missing in the first."""

    disks: tuple[DiskUse, ...] | UnsetType = UNSET
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
