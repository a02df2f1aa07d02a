"""GPU that a console shows in detail, as a file for the leader: only its probe can read PCIe and NVLink.

The file names the GPU. The console renews it while the page is open; it lapses by itself, so a killed console leaves
nothing behind. It may be lost at any time.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

from gputui.engine.files.file_modes import new_file, open_regular

FOCUS_FILE = "gpu-focus"
LAPSES_AFTER = 5.0
"""Seconds after which a focus that is not renewed is over."""
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,80}")


def write_focus(directory: Path, uuid: str, mode: int) -> None:
    """Write the GPU that this console shows. Where the directory is not writable the readings stay unknown."""
    partial = directory / f".{FOCUS_FILE}.{os.getpid()}"
    try:
        with os.fdopen(new_file(partial, mode), "w") as file:
            file.write(uuid)
        partial.replace(directory / FOCUS_FILE)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()


def read_focus(directory: Path) -> str | None:
    """Return the UUID of the GPU that some console shows now; None when none does."""
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
