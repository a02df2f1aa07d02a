"""NVML readings of one GPU: each value, or None if the driver has none. Part of the probe process.

Field numbers, units and scopes are those of nvml.h.
"""

from __future__ import annotations

import time

import pynvml

from gputui.gpus.probe.calls import CALLS

TYPE_CHECKING = False  # `typing` itself takes longer to import than a sweep takes
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


_LOST = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND})
_LACKING = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND})
_GONE = frozenset({pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED})
_RECOVERY_FIELD = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, missing in older nvidia-ml-py."""
_SENT = 138
"""NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: KiB of payload, without protocol overhead."""
_RECEIVED = 139
"""NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, in KiB of payload."""
_ALL_LINKS = 0xFFFFFFFF
_MEMBERS = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal"}
"""Integer members of nvmlValue_t by nvmlValueType_t."""
_PATIENCE = 1.0
"""Seconds between requests for process samples, since the driver has no newer ones before that."""


class LostError(Exception):
    """The driver has lost the GPU."""


def error_text(error: Exception) -> str:
    """Return the driver's text for an error, with NVML's error number."""
    number = getattr(error, "value", None)
    return f"{error} (NVML error {number})" if number else str(error) or "the GPU is lost"


def by_name(name: str, *arguments: object) -> Any:
    """Call pynvml's function of that name; raises NVMLError if an older pynvml has none.

    Bytes that are not UTF-8, which pynvml cannot decode, are replaced.
    """
    function = getattr(pynvml, name, None)
    if function is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    try:
        return function(*arguments)
    except UnicodeDecodeError as error:
        return error.object.decode(errors="replace")


def call(name: str, *arguments: object, ask: Callable[..., Any] = by_name) -> Any:
    """Return the result of a function; raises LostError or NVMLError, the latter too if it is to be skipped."""
    if not CALLS.begin(name, arguments):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
    try:
        return ask(name, *arguments)
    except pynvml.NVMLError as error:
        if error.value in _LOST:
            raise LostError from None
        raise
    finally:
        CALLS.end()


def read(name: str, *arguments: object, ask: Callable[..., Any] = by_name) -> Any:
    """Return the result, or None if the function fails; raises LostError, and NVMLError if the driver is gone."""
    try:
        return call(name, *arguments, ask=ask)
    except pynvml.NVMLError as error:
        if error.value in _GONE:
            raise
        return None


def lacks(name: str, *arguments: object, ask: Callable[..., Any] = by_name) -> bool:
    """Return whether the function fails because this GPU or driver has no such value; raises LostError."""
    try:
        call(name, *arguments, ask=ask)
    except pynvml.NVMLError as error:
        return error.value in _LACKING
    return False


def light_readings(handle: object) -> dict[str, object]:
    """Return the readings of every second: about ten calls that take microseconds."""
    rates = read("nvmlDeviceGetUtilizationRates", handle)
    memory = memory_of(handle)
    power = read("nvmlDeviceGetPowerUsage", handle)
    return {
        "utilization": rates and rates.gpu / 100,
        "memory_utilization": rates and rates.memory / 100,
        "memory_used": memory and memory.used,
        "memory_total": (memory and memory.total) or None,
        "temperature": _temperature(handle),
        "power": None if power is None else power / 1000,
        "sm_clock": read("nvmlDeviceGetClockInfo", handle, pynvml.NVML_CLOCK_SM),
        "memory_clock": read("nvmlDeviceGetClockInfo", handle, pynvml.NVML_CLOCK_MEM),
        "throttle": _throttle(handle),
    }


def memory_of(handle: object) -> Any:
    """Return the memory info; version 2 of the call does not count the driver's own reserve as `used`."""
    version = getattr(pynvml, "nvmlMemory_v2", None)
    found = read("nvmlDeviceGetMemoryInfo", handle, version) if version else None
    return found or read("nvmlDeviceGetMemoryInfo", handle)


def _temperature(handle: object) -> Any:
    value = read("nvmlDeviceGetTemperature", handle, pynvml.NVML_TEMPERATURE_GPU)
    return read("nvmlDeviceGetTemperatureV", handle, pynvml.NVML_TEMPERATURE_GPU) if value is None else value


def _throttle(handle: object) -> Any:
    bits = read("nvmlDeviceGetCurrentClocksEventReasons", handle)
    return read("nvmlDeviceGetCurrentClocksThrottleReasons", handle) if bits is None else bits


def slow_readings(handle: object) -> dict[str, object]:
    """Return readings that seldom change: memory errors, remapped rows, recovery action, power limit, fan."""
    rows = read("nvmlDeviceGetRemappedRows", handle)
    fan = read("nvmlDeviceGetFanSpeed", handle)
    return {
        "ecc_corrected": _errors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        "ecc_uncorrected": _errors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        "remap_pending": rows and bool(rows[2]),
        "remap_failed": rows and bool(rows[3]),
        "recovery": _recovery(handle),
        "power_limit": power_limit(handle),
        "fan": None if fan is None else fan / 100,
    }


def _errors(handle: object, kind: int) -> Any:
    return read("nvmlDeviceGetTotalEccErrors", handle, kind, pynvml.NVML_VOLATILE_ECC)


def _recovery(handle: object) -> int | None:
    values = read("nvmlDeviceGetFieldValues", handle, [_RECOVERY_FIELD])
    if not values or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal)


def power_limit(handle: object) -> float | None:
    """Return the enforced power limit in watts."""
    limit = read("nvmlDeviceGetEnforcedPowerLimit", handle)
    limit = read("nvmlDeviceGetPowerManagementLimit", handle) if limit is None else limit
    return None if limit is None else limit / 1000


def default_power_limit(handle: object) -> float | None:
    """Return the power limit in watts that the board has without anybody's settings."""
    limit = read("nvmlDeviceGetPowerManagementDefaultLimit", handle)
    return None if limit is None else limit / 1000


def pcie_throughput(handle: object) -> dict[str, object]:
    """Return PCIe throughput in bytes per second. The driver measures each direction for 20 ms."""
    sent = read("nvmlDeviceGetPcieThroughput", handle, pynvml.NVML_PCIE_UTIL_TX_BYTES)
    received = read("nvmlDeviceGetPcieThroughput", handle, pynvml.NVML_PCIE_UTIL_RX_BYTES)
    return {"pcie_tx": sent and sent * 1024, "pcie_rx": received and received * 1024}


class DetailReadings:
    """Detail readings of the GPU that a console shows: NVLink throughput and shares of processes.

    Rates are differences between two readings.
    """

    def __init__(self, uuid: str | None = None) -> None:
        self.uuid = uuid
        self._counted: dict[int, int] = {}
        self._counted_at = 0.0
        self._shares: dict[int, float] = {}
        self._shares_at = 0.0
        self._newest = 0

    def nvlink(self, handle: object) -> dict[str, object]:
        """Return NVLink throughput in bytes per second since the last call; None at first and after a counter reset."""
        before, since = self._counted, self._counted_at
        self._counted, self._counted_at = _counters(handle), time.monotonic()
        seconds = self._counted_at - since

        def rate(field: int) -> float | None:
            more = self._counted.get(field, -1) - before.get(field, 1 << 64)
            return more * 1024 / seconds if more >= 0 and seconds > 0 else None

        return {"nvlink_tx": rate(_SENT), "nvlink_rx": rate(_RECEIVED)}

    def shares(self, handle: object) -> dict[int, float]:
        """Return the fraction of time, 0 to 1, in which each sampled process kept the multiprocessors busy."""
        now = time.monotonic()
        if not self._shares_at or now - self._shares_at >= _PATIENCE:
            self._shares_at = now
            self._shares = self._ask(handle)
        return self._shares

    def _ask(self, handle: object) -> dict[int, float]:
        samples = read("nvmlDeviceGetProcessUtilization", handle, self._newest) or ()
        latest = sorted((sample.timeStamp, sample.pid, sample.smUtil) for sample in samples)
        self._newest = max(self._newest, latest[-1][0]) if latest else self._newest
        # some drivers report values above 100 for processes that have just started
        return {pid: percent / 100 for _, pid, percent in latest if percent <= 100}


def _counters(handle: object) -> dict[int, int]:
    """Return KiB since the driver was loaded, by field; without fields that this GPU does not count."""
    values = read("nvmlDeviceGetFieldValues", handle, [(_SENT, _ALL_LINKS), (_RECEIVED, _ALL_LINKS)]) or ()
    return {
        value.fieldId: int(getattr(value.value, _MEMBERS[value.valueType]))
        for value in values
        if value.nvmlReturn == pynvml.NVML_SUCCESS and value.valueType in _MEMBERS
    }
