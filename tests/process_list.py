"""Processes of this machine, any of which may end while they are read: their command lines and children."""

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


def children(pid: int | str) -> list[int]:
    """Return the children of a process, of all its threads, zombies included; pid may be "self"."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread or the process has ended meanwhile
            found += map(int, task.read_text().split())
    return found
