"""Processes of this machine, any of which may end while they are read: their command lines and children."""

from __future__ import annotations

import os
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
    """Return the children of a process, zombies included; pid may be "self".

    By their parents, as the lists of a process's threads miss a child whose thread ends meanwhile.
    """
    wanted = str(os.getpid() if pid == "self" else pid)
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if path.read_text(errors="replace").rpartition(")")[2].split()[1] == wanted:
                found.append(int(path.parent.name))
    return sorted(found)
