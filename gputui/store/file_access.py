"""Modes and owners of the state directory and its files: private to the owner, or shared with a group."""

from __future__ import annotations

import errno
import grp
import os
import stat
from pathlib import Path

from msgspec import Struct

from gputui.domain.errors import StoreAccessError

SHARED = 0o2770
_SHARED_FILE = 0o660


class FileAccess(Struct, frozen=True):
    """Modes and owners of the directory and its files, independent of the umask."""

    gid: int | None = None
    """Group that shares the directory; None: private to its owner."""
    uid: int | None = None
    """Owner of new files when root works in another user's directory; None: the user who creates them."""

    @property
    def file_mode(self) -> int:
        """Mode of every file."""
        return 0o600 if self.gid is None else _SHARED_FILE

    @property
    def directory_mode(self) -> int:
        """Mode of the directory; setgid when shared, so that new files belong to the group."""
        return 0o700 if self.gid is None else SHARED

    def apply_to_file(self, fd: int) -> None:
        """Set mode and owners of an open file, if this user may."""
        status = os.fstat(fd)
        if os.geteuid() not in {0, status.st_uid}:
            return
        if self.gid is not None and status.st_nlink > 1:  # the group may write here: it may be another file's name
            raise OSError(errno.EMLINK, "it has another name (a hard link)")
        if (self.uid is not None and status.st_uid != self.uid) or (self.gid is not None and status.st_gid != self.gid):
            os.fchown(fd, -1 if self.uid is None else self.uid, -1 if self.gid is None else self.gid)
        if stat.S_IMODE(status.st_mode) != self.file_mode:
            os.fchmod(fd, self.file_mode)

    def apply_to_directory(self, directory: Path) -> None:
        """Set mode and group of the directory, if this user may."""
        status = directory.stat()
        if os.geteuid() not in {0, status.st_uid}:
            return
        if self.gid is not None and status.st_gid != self.gid:
            os.chown(directory, -1, self.gid)
        if stat.S_IMODE(status.st_mode) != self.directory_mode:
            directory.chmod(self.directory_mode)


def access_for(directory: Path, group: str | None, queue: Path) -> FileAccess:
    """Return the access rights of an existing directory that is shared with `group`.

    Without a group, return the queue's present rights: it may have been shared by other settings.
    """
    status = directory.stat()
    uid = status.st_uid if os.geteuid() == 0 and status.st_uid != 0 else None
    gid = _gid_of(group) if group is not None else _shared_with(status, queue)
    return FileAccess(gid=gid, uid=uid)


def _shared_with(directory: os.stat_result, queue: Path) -> int | None:
    """Return the group with which directory and queue are already shared."""
    try:
        status = queue.lstat()
    except OSError:
        return None
    is_shared = directory.st_mode & SHARED == SHARED and stat.S_IMODE(status.st_mode) == _SHARED_FILE
    return status.st_gid if is_shared and status.st_gid == directory.st_gid else None


def _gid_of(group: str) -> int:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise StoreAccessError(f"there is no group {group!r}", where="store.group", hint="see `getent group`") from None
