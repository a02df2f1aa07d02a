"""One scheduler per state directory: whoever holds the lock on `scheduler.lock`.

The kernel frees a flock the moment its holder dies, however it dies, so there is no stale lock to clean up. What is
written in the file only says who it is.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import msgspec

from gputui.domain.snapshot import Leader
from gputui.engine.sharing import settle_file

LOCK_FILE = "scheduler.lock"


class Leadership:
    """The right to schedule in one state directory."""

    def __init__(self, directory: Path, mode: int = 0o600) -> None:
        self._path = directory / LOCK_FILE
        self._mode = mode
        self._fd: int | None = None

    @property
    def is_mine(self) -> bool:
        """Whether this process holds it."""
        return self._fd is not None

    def holds(self) -> bool:
        """Whether it still is: not when the file was removed or replaced, since then others may take it too."""
        if self._fd is None:
            return False
        try:
            here, there = os.fstat(self._fd), self._path.stat()
        except OSError:
            return False
        return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)

    def acquire(self, me: Leader) -> bool:
        """Take it if nobody has it; whether it is ours now."""
        if self._fd is not None:
            return True
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, self._mode)
        except FileNotFoundError:  # the state directory was removed
            return False
        if not _lock(fd):
            os.close(fd)
            return False
        settle_file(fd, self._mode)
        os.ftruncate(fd, 0)
        os.pwrite(fd, msgspec.json.encode(me), 0)
        self._fd = fd
        return True

    def release(self) -> None:
        """Let another process have it."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None


def _lock(fd: int) -> bool:
    """Lock it, trying a few times: somebody who only looks holds it for an instant."""
    for pause in (0.002, 0.005, 0.01, 0):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(pause)
        else:
            return True
    return False


def current_leader(directory: Path) -> Leader | None:
    """Who schedules there now; None when nobody does."""
    try:
        fd = os.open(directory / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read(fd)
        return None
    finally:
        os.close(fd)


def _read(fd: int) -> Leader | None:
    try:
        return msgspec.json.decode(os.pread(fd, 4096, 0), type=Leader)
    except msgspec.MsgspecError:
        return None  # caught between taking the lock and writing the name
