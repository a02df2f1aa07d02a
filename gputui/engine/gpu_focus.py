"""The GPU that a console shows in detail, told to the process that schedules: only its probe can read PCIe and NVLink.

A small file in the state directory names the GPU. The console renews it while the page is open; it lapses by itself, so
a console that was killed leaves nothing behind. It may be lost at any time.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from pathlib import Path

from gputui.engine.sharing import settle_file

FOCUS_FILE = "gpu-focus"
LAPSES_AFTER = 5.0
"""Seconds after which a focus that is not renewed is over."""
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,80}")


def tell(directory: Path, uuid: str, mode: int) -> None:
    """Name the GPU to whoever schedules. A directory that cannot be written to leaves the readings unknown."""
    partial = directory / f".{FOCUS_FILE}.{os.getpid()}"
    try:
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "w") as file:
            settle_file(fd, mode)
            file.write(uuid)
        partial.replace(directory / FOCUS_FILE)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()


def asked_for(directory: Path) -> str | None:
    """Return the UUID of the GPU that some console shows now; None when none does."""
    try:
        fd = os.open(directory / FOCUS_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or abs(time.time() - status.st_mtime) > LAPSES_AFTER:
            return None
        uuid = os.read(fd, 100).decode("ascii", "replace")
    except OSError:
        return None
    finally:
        os.close(fd)
    return uuid if _UUID.fullmatch(uuid) else None
