"""Writers' lock of a state directory, across threads and processes, with its holder and a watch for writes."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from gputui.domain.errors import StoreBusyError
from gputui.store.files import FileAccess, is_same_file, open_file, os_errors

_IN_MODIFY = 0x2
PATIENCE = 60.0
"""Seconds to wait for other writers, unless the settings say otherwise."""
TELL_AFTER = 2.0
"""Seconds of waiting after which a message is shown."""
_FIRST_PAUSE = 0.0005
_LONGEST_PAUSE = 0.02
PROC = Path("/proc")
_LONGEST = 60
"""Characters of a command in messages."""


class ChangeWatch:
    """inotify descriptor that becomes readable when any process writes to a file.

    Polling would cost most when nothing happens.
    """

    def __init__(self, path: Path) -> None:
        """Raise OSError when the kernel refuses: inotify instances are limited per user."""
        import ctypes  # not needed by every command that opens a store

        libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        if libc.inotify_add_watch(self.fd, os.fsencode(path), _IN_MODIFY) < 0:
            error = ctypes.get_errno()
            os.close(self.fd)
            raise OSError(error, "inotify_add_watch", str(path))

    def fileno(self) -> int:
        return self.fd

    def clear(self) -> None:
        """Consume pending events, so that it is readable again only after the next write."""
        with suppress(BlockingIOError):
            while True:
                os.read(self.fd, 1 << 16)

    def close(self) -> None:
        os.close(self.fd)


def holder_of(fd: int) -> str:
    """Return a phrase for the process that has locked the open file: `process 4711 (rsync …)`."""
    inode, pid = str(os.fstat(fd).st_ino), 0
    with suppress(OSError):
        for words in map(str.split, (PROC / "locks").read_text(encoding="ascii", errors="replace").splitlines()):
            # "7: FLOCK ADVISORY WRITE 4711 08:01:131 0 EOF"; those who wait have "->" behind the number
            if len(words) > 5 and words[1] == "FLOCK" and words[5].split(":")[-1] == inode:
                pid = int(words[4]) if words[4].isdigit() else 0
                break
    if pid <= 0:  # the kernel does not show it
        return "another process"
    notes = []
    with suppress(OSError):
        command = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
        text = " ".join(word.decode(errors="replace") for word in command if word)
        notes.append(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…")
    with suppress(OSError):
        status = (PROC / str(pid) / "stat").read_text(errors="replace")
        notes.append("stopped" if status.rpartition(")")[2].split()[:1] in (["T"], ["t"]) else "")
    told = ", ".join(filter(None, notes))
    return f"process {pid} ({told})" if told else f"process {pid}"


def log_waiting(sentence: str) -> None:
    import logging  # rarely needed

    logging.getLogger(__name__).warning("%s", sentence)


class StoreLock(Struct, eq=False):
    """Re-entrant flock on a side file, not on the data, whose inode changes with every rename.

    The kernel releases it when its holder dies. The descriptor is closed on exec: a child that inherited it would
    keep the lock.
    """

    _path: Path
    _access: FileAccess
    _patience: float = PATIENCE
    """Seconds to wait for others."""
    _waiting: Callable[[str], None] = log_waiting
    """Called with a sentence when a wait takes long."""
    _hurry: threading.local = field(default_factory=threading.local)
    _threads: Any = field(default_factory=threading.RLock)
    _depth: int = 0
    _owner: int | None = None
    """Identifier of the thread that holds the lock."""
    _fd: int | None = None

    @property
    def fd(self) -> int:
        """Descriptor of the side file, created on first use."""
        if self._fd is None:
            with os_errors(self._path):
                self._fd = open_file(self._path, os.O_RDWR | os.O_CREAT, self._access.file_mode)
                self._access.apply_to_file(self._fd)
        return self._fd

    @property
    def is_mine(self) -> bool:
        return self._owner == threading.get_ident()

    @contextmanager
    def lock_timeout(self, seconds: float) -> Iterator[None]:
        """Within the block, limit each wait of this thread for the lock to that many seconds."""
        before, self._hurry.seconds = getattr(self._hurry, "seconds", None), seconds
        try:
            yield
        finally:
            self._hurry.seconds = before

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock; raises StoreBusyError when others keep it for too long."""
        hurry = getattr(self._hurry, "seconds", None)
        patience = self._patience if hurry is None else min(hurry, self._patience)
        deadline = time.monotonic() + patience
        if not self._threads.acquire(timeout=patience):
            raise self._busy("another thread of this process", patience)
        try:
            if self._depth == 0:
                self._acquire_file(deadline, patience)
                self._owner = threading.get_ident()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._owner = None
                    if self._fd is not None:
                        fcntl.flock(self._fd, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def watch(self) -> ChangeWatch:
        """Return a watch for writes to the side file, which every writer writes last; raises OSError."""
        with self._threads:
            return ChangeWatch(Path(f"/proc/self/fd/{self.fd}"))  # this same file, even if another one has its name now

    def close(self) -> None:
        with self._threads:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    def _acquire_file(self, deadline: float, patience: float) -> None:
        """Lock the file that currently has the name: a removed file would keep no one out."""
        tell_at, pause = time.monotonic() + TELL_AFTER, _FIRST_PAUSE
        while True:
            fd = self.fd
            with os_errors(self._path):
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    is_locked = True
                except BlockingIOError:
                    is_locked = False
                if not is_same_file(self._path, fd):
                    self.close()
                elif is_locked:
                    return
            now = time.monotonic()
            if now >= deadline:
                raise self._busy(holder_of(self.fd), patience)
            if now >= tell_at:
                self._waiting(f"waiting for {self._path}, which is locked by {holder_of(self.fd)}")
                tell_at = deadline
            time.sleep(min(pause, max(0.0, deadline - now)))
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    def _busy(self, holder: str, patience: float) -> StoreBusyError:
        return StoreBusyError(
            f"it has been locked for {patience:.0f} s by {holder}; nothing was stored",
            where=str(self._path),
            hint="end that process or wait for it; store.lock_timeout sets how long gputui waits",
        )
