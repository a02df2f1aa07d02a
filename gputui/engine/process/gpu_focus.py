"""Which GPU the probe reads in detail: only the scheduler's probe reads PCIe and NVLink, and only of one GPU."""

from __future__ import annotations

import re

from gputui.ports import GpuProbe

_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,80}", re.ASCII)


class GpuFocus:
    """GPU to read in detail: the one that this console shows, or else the one that another console asks for."""

    def __init__(self) -> None:
        self._shown: str | None = None
        """UUID of the GPU that this process shows in detail."""
        self._asked: str | None = None
        """UUID of the one that others show."""
        self._read: str | None = None
        """UUID of the GPU that the probe was asked to read in detail."""
        self._probe: GpuProbe | None = None

    @property
    def shown(self) -> str | None:
        """UUID of the GPU that this process shows in detail."""
        return self._shown

    def use(self, probe: GpuProbe | None) -> None:
        """Set the probe of this process; None: it does not schedule."""
        self._probe, self._read = probe, None
        self._follow()

    def show(self, uuid: str | None) -> None:
        """Request readings of the GPU that this process shows. Never blocks."""
        self._shown = uuid
        self._follow()

    def ask(self, uuid: str | None) -> None:
        """Request readings of a GPU for others, who may send anything. Never blocks."""
        self._asked = uuid if uuid is not None and _UUID.fullmatch(uuid) else None
        self._follow()

    def _follow(self) -> None:
        wanted = self._shown or self._asked
        if self._probe is not None and wanted != self._read:
            self._read = wanted
            self._probe.want_pcie(wanted)
