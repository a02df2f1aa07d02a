"""Activity of multiprocessors and memory from the driver's performance counters (GPM). Part of the probe process.

GPUs have them from Hopper on. The driver compares two samples, so a reading is the mean over the time between them.
"""

from __future__ import annotations

import pynvml

from gputui.gpus.probe.nvml import LostError, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gputui.gpus.probe.enumerate import Device

_SM, _MEMORY = 2, 10
"""NVML_GPM_METRIC_SM_UTIL and NVML_GPM_METRIC_DRAM_BW_UTIL, both in percent."""

_UNKNOWN = {"sm_activity": None, "memory_activity": None}


class ActivityReader:
    """Reader of one GPU or MIG instance."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._whole = device.parent or device
        self._instance = read("nvmlDeviceGetGpuInstanceId", device.handle) if device.parent else None
        self._last: Any = None
        self._spare: Any = None
        support = read("nvmlGpmQueryDeviceSupport", self._whole.handle)
        is_known = device.parent is None or self._instance is not None
        self._is_supported = bool(support and support.isSupportedDevice and is_known)

    def read(self) -> dict[str, object]:
        """Return the means since the last call, 0 to 1, None at the first; nothing where the GPU has no counters."""
        if not self._is_supported:
            return {}
        taken = self._take(self._spare or read("nvmlGpmSampleAlloc"))
        self._last, self._spare, before = taken, self._last, self._last
        return dict(_UNKNOWN) if taken is None or before is None else _metrics(before, taken)

    def close(self) -> None:
        """Free the samples."""
        for sample in filter(None, (self._last, self._spare)):
            read("nvmlGpmSampleFree", sample)
        self._last = self._spare = None

    def _take(self, sample: Any) -> Any:
        """Return the sample, filled; None where the driver gives none."""
        if sample is None:
            return None
        if self._instance is None:
            return read("nvmlGpmSampleGet", self._whole.handle, sample)
        return read("nvmlGpmMigSampleGet", self._whole.handle, self._instance, sample)


def _metrics(before: Any, after: Any) -> dict[str, object]:
    wanted = pynvml.c_nvmlGpmMetricsGet_t()
    wanted.version, wanted.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 2
    wanted.sample1, wanted.sample2 = before, after
    wanted.metrics[0].metricId, wanted.metrics[1].metricId = _SM, _MEMORY
    if read("nvmlGpmMetricsGet", wanted) is None:
        return dict(_UNKNOWN)
    return {"sm_activity": _share(wanted.metrics[0]), "memory_activity": _share(wanted.metrics[1])}


def _share(metric: Any) -> float | None:
    value = float(metric.value)
    is_known = metric.nvmlReturn == pynvml.NVML_SUCCESS and value >= 0  # NaN compares with nothing
    return min(1.0, value / 100) if is_known else None


class Activity:
    """Readers of all devices."""

    def __init__(self) -> None:
        self._readers: dict[str, ActivityReader] = {}

    def read(self, device: Device) -> dict[str, object]:
        """Return the activity of a device that can be reached; raises LostError."""
        reader = self._readers.get(device.uuid)
        if reader is None:
            reader = self._readers[device.uuid] = ActivityReader(device)
        return reader.read()

    def close(self) -> None:
        """Free everything: handles may be others from now on."""
        for reader in self._readers.values():
            try:
                reader.close()
            except LostError:
                continue
        self._readers.clear()
