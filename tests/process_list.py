"""Command lines of this machine's processes, any of which may end while they are read."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def command_lines() -> dict[int, list[bytes]]:
    """Return the words of each process by pid."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found[int(path.parent.name)] = path.read_bytes().split(b"\0")
    return found
