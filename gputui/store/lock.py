"""The one lock of a state directory: among threads and among processes, and re-entrant."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gputui.store.faults import os_errors
from gputui.store.permissions import Permissions
from gputui.store.watch import Watch


class StoreLock:
    """An flock on a side file, never on the data, whose inode changes with every rename.

    The kernel lets go of it when its holder dies. The descriptor is closed on exec: a child that
    inherited it would keep the lock.
    """

    def __init__(self, path: Path, permissions: Permissions) -> None:
        self._path = path
        self._permissions = permissions
        self._threads = threading.RLock()
        self._depth = 0
        self._fd: int | None = None

    @property
    def fd(self) -> int:
        """The open side file, made on first use."""
        if self._fd is None:
            with os_errors(self._path):
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, self._permissions.file_mode)
                self._permissions.settle_file(self._fd)
        return self._fd

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread holds it."""
        # RLock tells its owner in every CPython, though the stub does not know
        return bool(self._threads._is_owned()) and self._depth > 0  # type: ignore[attr-defined]

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock, waiting for it as long as it takes."""
        with self._threads:
            if self._depth == 0:
                fd = self.fd
                with os_errors(self._path):
                    fcntl.flock(fd, fcntl.LOCK_EX)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0 and self._fd is not None:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)

    def watch(self) -> Watch:
        """Word of every write to the side file, where each writer leaves off; raises OSError."""
        with self._threads:
            return Watch(Path(f"/proc/self/fd/{self.fd}"))  # this very file, whatever has its name by now

    def close(self) -> None:
        """Let go of the file."""
        with self._threads:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None
