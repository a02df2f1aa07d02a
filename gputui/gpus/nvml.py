"""Single NVML calls: a value, or None where the driver has none to give.

Part of the probe process, so it imports next to nothing.
"""

from __future__ import annotations

import pynvml

TYPE_CHECKING = False  # `typing` itself takes longer to import than a sweep takes
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_LOST = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND})
_GONE = frozenset({pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED})
_RECOVERY_FIELD = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, which older nvidia-ml-py do not name."""


class LostError(Exception):
    """The GPU does not answer any more."""


def words_of(error: Exception) -> str:
    """Return the driver's words for an error, with NVML's number, by which advice can be looked up."""
    number = getattr(error, "value", None)
    return f"{error} (NVML error {number})" if number else str(error) or "the GPU is lost"


def by_name(name: str, *arguments: object) -> Any:
    """Call pynvml's function of that name, which an older pynvml may not have."""
    function = getattr(pynvml, name, None)
    if function is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    return function(*arguments)


def call(name: str, *arguments: object, ask: Callable[..., Any] = by_name) -> Any:
    """What the function returns; raises LostError, or NVMLError for whatever else is wrong."""
    try:
        return ask(name, *arguments)
    except pynvml.NVMLError as error:
        if error.value in _LOST:
            raise LostError from None
        raise


def read(name: str, *arguments: object, ask: Callable[..., Any] = by_name) -> Any:
    """What it returns, None when it cannot; raises LostError, and NVMLError when the driver itself is gone."""
    try:
        return call(name, *arguments, ask=ask)
    except pynvml.NVMLError as error:
        if error.value in _GONE:
            raise
        return None


def light(handle: object) -> dict[str, object]:
    """The readings of every second: some ten calls that cost the driver microseconds."""
    rates = read("nvmlDeviceGetUtilizationRates", handle)
    memory = memory_of(handle)
    power = read("nvmlDeviceGetPowerUsage", handle)
    return {
        "utilization": rates and rates.gpu / 100,
        "memory_utilization": rates and rates.memory / 100,
        "memory_used": memory and memory.used,
        "memory_total": memory and memory.total,
        "temperature": _temperature(handle),
        "power": None if power is None else power / 1000,
        "sm_clock": read("nvmlDeviceGetClockInfo", handle, pynvml.NVML_CLOCK_SM),
        "memory_clock": read("nvmlDeviceGetClockInfo", handle, pynvml.NVML_CLOCK_MEM),
        "throttle": _throttle(handle),
    }


def memory_of(handle: object) -> Any:
    """Its memory; by the second version of the call, whose `used` leaves out what the driver keeps for itself."""
    version = getattr(pynvml, "nvmlMemory_v2", None)
    found = read("nvmlDeviceGetMemoryInfo", handle, version) if version else None
    return found or read("nvmlDeviceGetMemoryInfo", handle)


def _temperature(handle: object) -> Any:
    value = read("nvmlDeviceGetTemperature", handle, pynvml.NVML_TEMPERATURE_GPU)
    return read("nvmlDeviceGetTemperatureV", handle, pynvml.NVML_TEMPERATURE_GPU) if value is None else value


def _throttle(handle: object) -> Any:
    bits = read("nvmlDeviceGetCurrentClocksEventReasons", handle)
    return read("nvmlDeviceGetCurrentClocksThrottleReasons", handle) if bits is None else bits


def slow(handle: object) -> dict[str, object]:
    """What changes seldom: errors counted, rows remapped, what the driver wants done, limits, fan."""
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
    """Watts it may draw now."""
    limit = read("nvmlDeviceGetEnforcedPowerLimit", handle)
    limit = read("nvmlDeviceGetPowerManagementLimit", handle) if limit is None else limit
    return None if limit is None else limit / 1000


def pcie(handle: object) -> dict[str, object]:
    """Bytes a second over PCIe. Each direction is measured for 20 ms."""
    sent = read("nvmlDeviceGetPcieThroughput", handle, pynvml.NVML_PCIE_UTIL_TX_BYTES)
    received = read("nvmlDeviceGetPcieThroughput", handle, pynvml.NVML_PCIE_UTIL_RX_BYTES)
    return {"pcie_tx": sent and sent * 1024, "pcie_rx": received and received * 1024}
