"""Xid events as they come, without ever waiting for one. Part of the probe process."""

from __future__ import annotations

import ctypes

import pynvml

from gputui.gpus.nvml import LostError, call, read
from gputui.gpus.roster import Card


class Xids:
    """An event set on which all GPUs are registered that can be."""

    def __init__(self, cards: list[Card]) -> None:
        self._set: object = read("nvmlEventSetCreate")
        self._uuids: dict[int, str] = {}
        for card in cards:
            if self._set is not None and card.parent is None and card.handle is not None:
                self._uuids[_address(card.handle)] = card.uuid
                self._register(card.handle)

    def _register(self, handle: object) -> None:
        try:
            read("nvmlDeviceRegisterEvents", handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
        except LostError:
            return

    def take(self) -> list[tuple[str | None, int]]:
        """UUID (None when the driver does not say whose it is) and code of each event since the last time."""
        found: list[tuple[str | None, int]] = []
        while self._set is not None and len(found) < 100:
            try:
                event = call("nvmlEventSetWait_v2", self._set, 0)
            except (pynvml.NVMLError, LostError):
                break  # nothing there, or a GPU is lost, which the sweep finds out by itself
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
