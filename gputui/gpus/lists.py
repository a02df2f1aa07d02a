"""Lists of the processes on a GPU, each for one call to the driver. Part of the probe process.

pynvml asks twice, for the number and then for the list, and each time the driver holds its lock for milliseconds;
so the call is made here with room for all that is likely, and pynvml's own way is kept for what does not fit.
"""

from __future__ import annotations

import ctypes

import pynvml

from gputui.gpus.nvml import read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ROOM = 64
_UNKNOWN = 0xFFFFFFFFFFFFFFFF
"""NVML_VALUE_NOT_AVAILABLE: the driver does not say how much memory."""


def processes(handle: object, others: dict[int, tuple[int | None, bool]]) -> list[tuple[int, int | None, bool]] | None:
    """Pid, memory and whether it computes, of each process; None when the list cannot be read.

    `others` are those the seldom read lists told of last, see `other_processes`.
    """
    found = _listed("Compute", handle)
    if found is None:
        return None
    merged = dict(others)
    merged.update({pid: (memory, True) for pid, memory in found})
    return [(pid, memory, compute) for pid, (memory, compute) in merged.items()]


def other_processes(handle: object) -> dict[int, tuple[int | None, bool]]:
    """Those that draw, and clients of MPS. These lists cost the driver as much as the main one and change seldom."""
    drawing = _listed("Graphics", handle) or []
    clients = _listed("MPSCompute", handle) or []
    merged: dict[int, tuple[int | None, bool]] = {pid: (memory, False) for pid, memory in drawing}
    merged.update({pid: (memory, True) for pid, memory in clients})
    return merged


def _listed(kind: str, handle: object) -> list[tuple[int, int | None]] | None:
    """Pid and memory of each; None when the list cannot be read."""
    found = read(f"nvmlDeviceGet{kind}RunningProcesses", handle, ask=_ask_once)
    return None if found is None else [(p.pid, None if p.usedGpuMemory == _UNKNOWN else p.usedGpuMemory) for p in found]


def _ask_once(name: str, handle: object) -> Any:
    """The list, for one call where it is not longer than expected."""
    try:
        function = pynvml._nvmlGetFunctionPointer(f"{name}_v3")
        room = (pynvml.c_nvmlProcessInfo_v3_t * _ROOM)()
    except (AttributeError, pynvml.NVMLError):  # another pynvml, or an old driver
        return getattr(pynvml, name)(handle)
    count = ctypes.c_uint(_ROOM)
    code = function(handle, ctypes.byref(count), room)
    if code == pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
        return getattr(pynvml, name)(handle)
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)
    return room[: count.value]
