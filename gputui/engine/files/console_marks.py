"""What a console leaves for the leader: the GPU that it shows in detail.

Only the leader's probe can read PCIe and NVLink, so a file names the GPU that a console shows in detail. The console
renews it while the page is open; it expires by itself, so a killed console leaves nothing behind.

It may be lost at any time.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

from gputui.engine.files.file_modes import open_regular, replace_file
from gputui.ports import GpuProbe

FOCUS_FILE = "gpu-focus"
LAPSES_AFTER = 5.0
"""Seconds after which a focus expires unless it is renewed."""
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,80}")


class GpuFocus:
    """GPU to read in detail: the one that this console shows, or else the one that another console shows."""

    def __init__(self, directory: Path, mode: int) -> None:
        self._directory = directory
        self._mode = mode
        self._shown: str | None = None
        """UUID of the GPU that this process shows in detail."""
        self._read: str | None = None
        """UUID of the GPU that the probe was asked to read in detail."""
        self._probe: GpuProbe | None = None

    def use(self, probe: GpuProbe | None) -> None:
        """Set the probe of this process; None: it does not schedule."""
        self._probe, self._read = probe, None

    def show(self, uuid: str | None) -> None:
        """Request readings of the GPU that this process shows. Never blocks."""
        self._shown = uuid
        if self._probe is not None:
            self._probe.want_pcie(uuid)

    def follow(self) -> None:
        """Have the probe read the GPU that is shown, here or elsewhere."""
        wanted = self._shown or read_focus(self._directory)
        if self._probe is not None and wanted != self._read:
            self._read = wanted
            self._probe.want_pcie(wanted)

    def publish(self) -> None:
        """Tell the leader, in another process, which GPU this one shows."""
        if self._shown is not None:
            write_focus(self._directory, self._shown, self._mode)


def write_focus(directory: Path, uuid: str, mode: int) -> None:
    """Write the GPU that this console shows. If the directory is not writable, its readings stay unknown."""
    with contextlib.suppress(OSError):
        replace_file(directory / FOCUS_FILE, uuid.encode(), mode)


def read_focus(directory: Path) -> str | None:
    """Return the UUID of the GPU that some console shows now; None if none does."""
    try:
        fd = open_regular(directory / FOCUS_FILE)
    except OSError:
        return None
    try:
        if abs(time.time() - os.fstat(fd).st_mtime) > LAPSES_AFTER:
            return None
        uuid = os.read(fd, 100).decode("ascii", "replace")
    except OSError:
        return None
    finally:
        os.close(fd)
    return uuid if _UUID.fullmatch(uuid) else None
