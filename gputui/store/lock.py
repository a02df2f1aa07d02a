"""The lock that writers of a state directory take: among threads and among processes, and re-entrant."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gputui.domain.errors import StoreBusyError
from gputui.store.faults import os_errors
from gputui.store.files import is_same_file, open_file
from gputui.store.holders import holder_of
from gputui.store.permissions import Permissions
from gputui.store.watch import Watch

PATIENCE = 60.0
"""Seconds to wait for other writers, unless the settings say otherwise."""
TELL_AFTER = 2.0
"""Seconds of waiting after which it is told."""
_FIRST_PAUSE = 0.0005
_LONGEST_PAUSE = 0.02


def log_waiting(sentence: str) -> None:
    """Log that a writer waits."""
    import logging  # not for every command

    logging.getLogger(__name__).warning("%s", sentence)


class StoreLock:
    """An flock on a side file, never on the data, whose inode changes with every rename.

    The kernel lets go of it when its holder dies. The descriptor is closed on exec: a child that
    inherited it would keep the lock.
    """

    def __init__(
        self,
        path: Path,
        permissions: Permissions,
        patience: float = PATIENCE,
        waiting: Callable[[str], None] = log_waiting,
    ) -> None:
        """`patience` is in seconds; `waiting` is called with a sentence when a wait takes long."""
        self._path = path
        self._permissions = permissions
        self._patience = patience
        self._waiting = waiting
        self._hurry = threading.local()
        self._threads = threading.RLock()
        self._depth = 0
        self._fd: int | None = None

    @property
    def fd(self) -> int:
        """The open side file, made on first use."""
        if self._fd is None:
            with os_errors(self._path):
                self._fd = open_file(self._path, os.O_RDWR | os.O_CREAT, self._permissions.file_mode)
                self._permissions.settle_file(self._fd)
        return self._fd

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread holds it."""
        # RLock tells its owner in every CPython, though the stub does not know
        return bool(self._threads._is_owned()) and self._depth > 0  # type: ignore[attr-defined]

    @contextmanager
    def hurried(self, seconds: float) -> Iterator[None]:
        """In the block, let this thread wait no longer than so many seconds each time."""
        before, self._hurry.seconds = getattr(self._hurry, "seconds", None), seconds
        try:
            yield
        finally:
            self._hurry.seconds = before

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock; raises StoreBusyError where others keep it for too long."""
        hurry = getattr(self._hurry, "seconds", None)
        patience = self._patience if hurry is None else min(hurry, self._patience)
        deadline = time.monotonic() + patience
        if not self._threads.acquire(timeout=patience):
            raise self._busy("another thread of this process", patience)
        try:
            if self._depth == 0:
                self._take(deadline, patience)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0 and self._fd is not None:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def watch(self) -> Watch:
        """Word of every write to the side file, where each writer leaves off; raises OSError."""
        with self._threads:
            return Watch(Path(f"/proc/self/fd/{self.fd}"))  # this very file, whatever has its name by now

    def close(self) -> None:
        """Let go of the file."""
        with self._threads:
            self._close()

    def _take(self, deadline: float, patience: float) -> None:
        """Lock the file that has the name now: one that was removed keeps nobody out."""
        tell_at, pause = time.monotonic() + TELL_AFTER, _FIRST_PAUSE
        while not self._is_taken():
            now = time.monotonic()
            if now >= deadline:
                raise self._busy(holder_of(self.fd), patience)
            if now >= tell_at:
                self._waiting(f"waiting for {self._path}, which is locked by {holder_of(self.fd)}")
                tell_at = deadline
            time.sleep(min(pause, max(0.0, deadline - now)))
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    def _is_taken(self) -> bool:
        """Try to lock the file; whether it is ours now."""
        fd = self.fd
        with os_errors(self._path):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not is_same_file(self._path, fd):
                    self._close()
                return False
            if is_same_file(self._path, fd):
                return True
            self._close()
            return False

    def _busy(self, holder: str, patience: float) -> StoreBusyError:
        return StoreBusyError(
            f"it has been locked for {patience:.0f} s by {holder}; nothing of this was stored",
            where=str(self._path),
            hint="end that process or wait for it; store.lock_timeout sets how long gputui waits",
        )

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
