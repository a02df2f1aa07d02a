"""Opens files in the state directory safely, with the modes for its owner or for the group that shares it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SHARED = stat.S_ISGID | stat.S_IRWXG
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def is_shared(state: Path) -> bool:
    """Return whether a group shares the state directory."""
    return state.stat().st_mode & _SHARED == _SHARED


def set_file_mode(fd: int, mode: int) -> None:
    """Set the mode of an open file regardless of the umask; raises OSError for a file planted by another user."""
    status = os.fstat(fd)
    if os.geteuid() not in {0, status.st_uid}:
        return
    if mode & stat.S_IWGRP and status.st_nlink > 1:  # the group may write here: it may be another file's name
        raise OSError(errno.EMLINK, "it has another name (a hard link)")
    if stat.S_IMODE(status.st_mode) != mode:
        os.fchmod(fd, mode)


def open_file(path: Path | str, flags: int, mode: int, *, at: int | None = None) -> int:
    """Open a regular file, without following a link as its last component, and set its mode; raises OSError."""
    fd = open_regular(path, flags, mode, at=at)
    try:
        set_file_mode(fd, mode)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_regular(path: Path | str, flags: int = os.O_RDONLY, mode: int = 0o600, *, at: int | None = None) -> int:
    """Open a regular file, without following a link as its last component and without blocking.

    Raises OSError for others.
    """
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=at)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.ELOOP, "it is not a regular file", str(path))
    return fd


MAX_READ = 256 * 1024**2
"""Maximum size in bytes of a file that is read as a whole; a larger one is none of ours."""


def read_file(path: Path) -> bytes:
    """Return the contents of a regular file.

    Raises OSError for a FIFO, a link and the like instead of blocking, and for a file that is too large to be ours.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > MAX_READ:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read()


def new_file(path: Path, mode: int) -> int:
    """Create a new file with that mode, replacing any file of that name; raises OSError."""
    path.unlink(missing_ok=True)
    return open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)


def replace_file(path: Path, data: bytes, mode: int) -> None:
    """Put a new file in the place of this one in one step, and leave nothing else behind; raises OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(new_file(partial, mode), "wb") as file:
            file.write(data)
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise


def is_file(path: Path) -> bool:
    """Return whether it is a regular file, not a link to one."""
    return path.is_file() and not path.is_symlink()


def file_mode(state: Path) -> int:
    """Return the mode of files in the state directory."""
    return 0o660 if is_shared(state) else 0o600


@contextmanager
def folder_in(state: Path, place: str) -> Iterator[Path]:
    """Create and open a directory below the state directory; yield a path to it that no user can redirect.

    In a shared state directory a member may have planted links. None is followed, except those made by root or this
    user, as for logs on another disk. Raises OSError.
    """
    mode = 0o2770 if is_shared(state) else 0o700
    here = os.open(state, _DIRECTORY)
    try:
        for name in Path(place).parts:
            below = _below(here, name, mode)
            os.close(here)
            here = below
        yield Path(f"/proc/self/fd/{here}")
    finally:
        os.close(here)


def _below(at: int, name: str, mode: int) -> int:
    is_new = False
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=at)
        is_new = True
    link = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    try:
        status = os.fstat(link)
        if stat.S_ISLNK(status.st_mode) and status.st_uid in {0, os.geteuid()}:
            return os.open(os.readlink("", dir_fd=link), _DIRECTORY, dir_fd=at)
    finally:
        os.close(link)
    fd = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
    if is_new and os.fstat(fd).st_uid == os.geteuid():
        os.fchmod(fd, mode)
    return fd
