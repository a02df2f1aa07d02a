"""What is read of the one GPU that somebody looks at, beside PCIe: NVLink and the share of each process.

Part of the probe process. Field numbers, units and the scope that stands for all links are those of nvml.h.
"""

from __future__ import annotations

import time

import pynvml

from gputui.gpus.nvml import read

_SENT = 138
"""NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: KiB of data, without what the protocol adds."""
_RECEIVED = 139
"""NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX."""
_ALL_LINKS = 0xFFFFFFFF
_MEMBERS = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal"}
"""Whole numbers of nvmlValue_t, by nvmlValueType_t."""
_PATIENCE = 1.0
"""Seconds in which the driver may have no newer samples of processes than those it gave."""


class Focus:
    """The GPU looked at, and what it told last: rates need two readings."""

    def __init__(self, uuid: str | None = None) -> None:
        self.uuid = uuid
        self._counted: dict[int, int] = {}
        self._counted_at = 0.0
        self._shares: dict[int, float] = {}
        self._shares_at = 0.0
        self._newest = 0

    def nvlink(self, handle: object) -> dict[str, object]:
        """Bytes a second over all its links since the last time; None at first, and after a counter went back."""
        before, since = self._counted, self._counted_at
        self._counted, self._counted_at = _counters(handle), time.monotonic()
        seconds = self._counted_at - since

        def rate(field: int) -> float | None:
            more = self._counted.get(field, -1) - before.get(field, 1 << 64)
            return more * 1024 / seconds if more >= 0 and seconds > 0 else None

        return {"nvlink_tx": rate(_SENT), "nvlink_rx": rate(_RECEIVED)}

    def shares(self, handle: object) -> dict[int, float]:
        """The share of time, 0 to 1, in which each process kept the multiprocessors busy; only of those told of."""
        now = time.monotonic()
        if not self._shares_at or now - self._shares_at >= _PATIENCE:
            self._shares_at = now
            self._shares = self._ask(handle)
        return self._shares

    def _ask(self, handle: object) -> dict[int, float]:
        samples = read("nvmlDeviceGetProcessUtilization", handle, self._newest) or ()
        latest = sorted((sample.timeStamp, sample.pid, sample.smUtil) for sample in samples)
        self._newest = max(self._newest, latest[-1][0]) if latest else self._newest
        # some drivers give nonsense above 100 for processes that have just begun
        return {pid: percent / 100 for _, pid, percent in latest if percent <= 100}


def _counters(handle: object) -> dict[int, int]:
    """KiB counted since the driver was loaded, by field; without those that this GPU does not count."""
    values = read("nvmlDeviceGetFieldValues", handle, [(_SENT, _ALL_LINKS), (_RECEIVED, _ALL_LINKS)]) or ()
    return {
        value.fieldId: int(getattr(value.value, _MEMBERS[value.valueType]))
        for value in values
        if value.nvmlReturn == pynvml.NVML_SUCCESS and value.valueType in _MEMBERS
    }
