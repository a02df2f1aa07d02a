"""Opening the files of a state directory: regular files only, and never through a symbolic link."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from gputui.domain.errors import StoreAccessError

_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


def open_file(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a regular file; its descriptor, closed on exec. Never blocks.

    Raises StoreAccessError for a link, a FIFO and the like, and OSError.
    """
    try:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, mode)
    except OSError as error:
        kind = _refused_kind(error)
        if kind is None:
            raise
        raise _not_regular(path, kind) from None
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode):
        return fd
    os.close(fd)
    raise _not_regular(path, _kind_of(status.st_mode))


def read_file(path: Path, size: int = -1) -> tuple[bytes, os.stat_result]:
    """Return the first `size` bytes of a regular file, or all of it, and its status."""
    with open(open_file(path, os.O_RDONLY), "rb", buffering=0) as file:
        data = file.read(size)
        return data or b"", os.fstat(file.fileno())


def is_same_file(path: Path, fd: int) -> bool:
    """Whether the path leads to the very file that is open."""
    try:
        there, here = path.stat(), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def _refused_kind(error: OSError) -> str | None:
    if error.errno == errno.ELOOP:
        return "a symbolic link"
    if error.errno == errno.ENXIO:
        return "a FIFO or a socket"
    if error.errno == errno.EISDIR:
        return "a directory"
    return None


def _kind_of(mode: int) -> str:
    return next((name for is_so, name in _KINDS if is_so(mode)), "no regular file")


def _not_regular(path: Path, kind: str) -> StoreAccessError:
    return StoreAccessError(f"it is {kind}, where gputui keeps a regular file", where=str(path), hint="move it away")
