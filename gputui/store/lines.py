"""Files of lines that only ever grow: the audit and the history."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from gputui.store.faults import os_errors
from gputui.store.files import open_file
from gputui.store.journal import append
from gputui.store.permissions import Permissions
from gputui.store.snapshot_file import sync_directory

_STEP = 1 << 16


def append_lines(path: Path, data: bytes, permissions: Permissions) -> None:
    """Append whole lines, durably; a line that a crash tore off at the end is cut away first."""
    with os_errors(path):
        is_new = not path.exists()
        fd = open_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, permissions.file_mode)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # for as long as an append takes
            permissions.settle_file(fd)
            os.ftruncate(fd, whole_lines(fd))
            append(fd, data)
        finally:
            os.close(fd)
        if is_new:
            sync_directory(path.parent)


def whole_lines(fd: int) -> int:
    """Length of the file up to the end of its last whole line."""
    end = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - _STEP)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
