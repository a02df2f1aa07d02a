"""The kernel's word that a file was written to, for those who wait for it: a poll costs more the less happens."""

from __future__ import annotations

import os
from pathlib import Path

_IN_MODIFY = 0x2


class Watch:
    """A descriptor that becomes readable whenever a file is written to, by whatever process."""

    def __init__(self, path: Path) -> None:
        """Raise OSError where the kernel gives none: a user may have only so many."""
        import ctypes  # not for every command that opens a store

        libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        if libc.inotify_add_watch(self.fd, os.fsencode(path), _IN_MODIFY) < 0:
            error = ctypes.get_errno()
            os.close(self.fd)
            raise OSError(error, "inotify_add_watch", str(path))

    def fileno(self) -> int:
        """The descriptor."""
        return self.fd

    def take(self) -> None:
        """Have it readable no more, until the next write."""
        try:
            while os.read(self.fd, 1 << 16):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        """Watch no more."""
        os.close(self.fd)
