"""Opens files in the state directory safely, and for its owner alone.

Root may schedule in a directory of another user, who could plant links there.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from gputui.domain.decoding import decode_json
from gputui.domain.kept_data import BackupRecord, EngineRecord

FILE_MODE = 0o600
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def set_file_mode(fd: int) -> None:
    """Close an open file to others, regardless of the umask, if this user may; raises OSError."""
    status = os.fstat(fd)
    if os.geteuid() in {0, status.st_uid} and stat.S_IMODE(status.st_mode) != FILE_MODE:
        os.fchmod(fd, FILE_MODE)


def open_file(path: Path | str, flags: int) -> int:
    """Open a regular file, without following a link as its last component, and set its mode; raises OSError."""
    fd = open_regular(path, flags)
    try:
        set_file_mode(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_regular(path: Path | str, flags: int = os.O_RDONLY) -> int:
    """Open a regular file, without following a link as its last component and without blocking.

    Raises OSError for others.
    """
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, FILE_MODE)
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


def new_file(path: Path) -> int:
    path.unlink(missing_ok=True)
    return open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def replace_file(path: Path, data: bytes, *, is_durable: bool = False) -> None:
    """Put a new file in the place of this one in one step, and leave nothing else behind; raises OSError.

    Without `is_durable` a power loss soon after may leave the old file, or an empty one.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}")
    try:
        with os.fdopen(new_file(partial), "wb") as file:
            file.write(data)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
        if is_durable:
            folder = os.open(path.parent, _DIRECTORY)
            try:
                os.fsync(folder)  # or the name may be lost
            finally:
                os.close(folder)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise


def is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


@contextmanager
def folder_in(state: Path, place: str) -> Iterator[Path]:
    """Create and open a directory below the state directory; yield a path to it that no user can redirect.

    No link is followed, except those made by root or this user, as for logs on another disk. Raises OSError.
    """
    here = os.open(state, _DIRECTORY)
    try:
        for name in Path(place).parts:
            below = _below(here, name)
            os.close(here)
            here = below
        yield Path(f"/proc/self/fd/{here}")
    finally:
        os.close(here)


def _below(at: int, name: str) -> int:
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=at)
        os.fsync(at)
    link = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    try:
        status = os.fstat(link)
        if stat.S_ISLNK(status.st_mode) and status.st_uid in {0, os.geteuid()}:
            return os.open(os.readlink("", dir_fd=link), _DIRECTORY, dir_fd=at)
    finally:
        os.close(link)
    return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=at)


class EngineFile(Struct):
    """Record of the engine that has the containers of a state directory's queue."""

    path: Path

    def read(self) -> EngineRecord | None:
        """Return the engine; None before the first container. Raises OSError for a file that cannot be read."""
        try:
            return decode_json(read_file(self.path), EngineRecord)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise OSError(errno.EILSEQ, f"it is damaged: {error}", str(self.path)) from error

    def write(self, record: EngineRecord) -> None:
        """Raise OSError where it cannot be written."""
        replace_file(self.path, msgspec.json.encode(record) + b"\n", is_durable=True)


ENGINE_RECORD = "engine.json"
BACKUP_RECORD = "last-backup.json"


def read_backup_record(state: Path) -> BackupRecord | None:
    try:
        return decode_json(read_file(state / BACKUP_RECORD), BackupRecord)
    except (OSError, msgspec.MsgspecError):
        return None


def write_backup_record(state: Path, record: BackupRecord) -> None:
    replace_file(state / BACKUP_RECORD, msgspec.json.encode(record) + b"\n")
