"""Xid events of the driver, collected without waiting. Part of the probe process."""

from __future__ import annotations

import ctypes

import pynvml

from gputui.gpus.probe.enumerate import Device
from gputui.gpus.probe.nvml import LostError, call, read


class Xids:
    """Event set with all GPUs that support events."""

    def __init__(self, devices: list[Device]) -> None:
        self._set: object = read("nvmlEventSetCreate")
        self._uuids: dict[int, str] = {}
        for device in devices:
            if self._set is not None and device.parent is None and device.handle is not None:
                self._uuids[_address(device.handle)] = device.uuid
                self._register(device.handle)

    def _register(self, handle: object) -> None:
        try:
            read("nvmlDeviceRegisterEvents", handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
        except LostError:
            return

    def collect(self) -> list[tuple[str | None, int]]:
        """Return UUID (None when the driver does not name it) and code of each event since the last call."""
        found: list[tuple[str | None, int]] = []
        while self._set is not None and len(found) < 100:
            try:
                event = call("nvmlEventSetWait_v2", self._set, 0)
            except (pynvml.NVMLError, LostError):
                break  # no event, or a lost GPU, which the sweep reports by itself
            found.append((self._uuid(event.device), int(event.eventData)))
        return found

    def _uuid(self, handle: object) -> str | None:
        known = self._uuids.get(_address(handle))
        if known is not None or not handle:
            return known
        try:
            named = read("nvmlDeviceGetUUID", handle)
        except LostError:
            return None
        return None if named is None else str(named)

    def close(self) -> None:
        """Free the event set."""
        if self._set is not None:
            read("nvmlEventSetFree", self._set)
            self._set = None


def _address(handle: object) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0  # type: ignore[arg-type]
