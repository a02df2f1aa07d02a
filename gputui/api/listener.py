"""The listening socket of the door: bound by the owner, or inherited from systemd or from the owner before."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

BACKLOG = 512
"""Connections that wait. Who calls `listen` again is from then on the process that the kernel names to clients."""
FIRST_FD = 3
"""First descriptor that systemd passes."""


class Listener(Struct, frozen=True):
    """A listening socket, and the file by which it is reached."""

    socket: socket.socket
    file: tuple[int, int] | None = None
    """Device and inode of its file; None: systemd has bound it, and keeps it."""

    def is_at(self, path: Path) -> bool:
        """Return whether whoever connects to the path reaches this socket."""
        return self.file is None or self.file == _file_of(path)

    @property
    def passed(self) -> str:
        """Name by which `taken` of a process that inherits the descriptor finds the socket."""
        numbers = (self.socket.fileno(), *(self.file or ()))
        return ":".join(map(str, numbers))


def bind(path: Path, mode: int) -> Listener:
    """Return a socket that listens at the path, in place of what is there. Raises OSError.

    Only the owner may call it, the holder of the lock. The new socket takes the path in one step, so nobody finds none.
    It is bound by the directory's descriptor: the path itself may be longer than sockets allow.
    """
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    new = f".{path.name}.{os.getpid()}"
    try:
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=directory)
        listener.bind(f"/proc/self/fd/{directory}/{new}")
        os.chmod(new, mode, dir_fd=directory)
        listener.listen(BACKLOG)
        status = os.stat(new, dir_fd=directory, follow_symlinks=False)
        os.rename(new, path.name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        listener.close()
        with suppress(OSError):
            os.unlink(new, dir_fd=directory)
        raise
    finally:
        os.close(directory)
    return Listener(listener, (status.st_dev, status.st_ino))


def inherited(environ: Mapping[str, str] = os.environ) -> Listener | None:
    """Return the first socket that systemd passed to this process; None if it passed none."""
    for descriptor in _descriptors(environ):
        with suppress(OSError):  # systemd's own stays open for a later term, and for the next program
            os.set_inheritable(descriptor, False)
            if (found := _listening(os.dup(descriptor))) is not None:
                if not os.geteuid():  # else clients trust systemd, and not this account
                    found.listen(BACKLOG)
                return Listener(found)
    return None


def has_inherited(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether systemd passed sockets to this process."""
    return bool(_descriptors(environ))


def keep_inherited(environ: Mapping[str, str] = os.environ) -> None:
    """Keep the sockets that systemd passed for a program that replaces this one in the same process."""
    for descriptor in _descriptors(environ):
        with suppress(OSError):
            os.set_inheritable(descriptor, True)


def _descriptors(environ: Mapping[str, str]) -> range:
    """Return the descriptors that systemd passed to this process."""
    number = environ.get("LISTEN_FDS", "")
    is_mine = environ.get("LISTEN_PID") == str(os.getpid()) and number.isdecimal() and len(number) < 4
    return range(FIRST_FD, FIRST_FD + int(number)) if is_mine else range(0)


def taken(passed: str) -> Listener | None:
    """Return the socket that the owner before passed, by its `passed`; None if it is none that listens."""
    numbers = passed.split(":")
    if len(numbers) not in {1, 3} or not all(number.isdecimal() for number in numbers):
        return None
    descriptor, *file = map(int, numbers)
    if (found := _listening(descriptor)) is None:
        return None
    found.listen(BACKLOG)
    return Listener(found, (file[0], file[1]) if file else None)


def _listening(descriptor: int) -> socket.socket | None:
    """Return the socket of the descriptor, whose owner it becomes; None, and closed, if it is none that listens."""
    try:
        found = socket.socket(fileno=descriptor)
    except OSError:  # it is no socket
        with suppress(OSError):
            os.close(descriptor)
        return None
    if found.family == socket.AF_UNIX and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        os.set_inheritable(descriptor, False)
        return found
    found.close()
    return None


def _file_of(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
