"""Who may read and write the state directory: its owner alone, or a group as well."""

from __future__ import annotations

import errno
import grp
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from gputui.domain.errors import StoreAccessError

SHARED = 0o2770
_SHARED_FILE = 0o660


@dataclass(frozen=True)
class Permissions:
    """Modes and owners of the directory and its files, whatever the umask."""

    gid: int | None = None
    """The group that shares the directory; None: its owner alone."""
    uid: int | None = None
    """Owner of new files when root acts in somebody else's directory; None: whoever makes them."""

    @property
    def file_mode(self) -> int:
        """Of every file."""
        return 0o600 if self.gid is None else _SHARED_FILE

    @property
    def directory_mode(self) -> int:
        """Of the directory. Setgid, so that what others put there is the group's too."""
        return 0o700 if self.gid is None else SHARED

    def settle_file(self, fd: int) -> None:
        """Give an open file its mode and owners, if it is ours to change."""
        status = os.fstat(fd)
        if os.geteuid() not in {0, status.st_uid}:
            return
        if self.gid is not None and status.st_nlink > 1:  # the group may write here: it may be another file's name
            raise OSError(errno.EMLINK, "it has another name (a hard link)")
        if (self.uid is not None and status.st_uid != self.uid) or (self.gid is not None and status.st_gid != self.gid):
            os.fchown(fd, -1 if self.uid is None else self.uid, -1 if self.gid is None else self.gid)
        if stat.S_IMODE(status.st_mode) != self.file_mode:
            os.fchmod(fd, self.file_mode)

    def settle_directory(self, directory: Path) -> None:
        """Give the directory its mode and group, if it is ours to change."""
        status = directory.stat()
        if os.geteuid() not in {0, status.st_uid}:
            return
        if self.gid is not None and status.st_gid != self.gid:
            os.chown(directory, -1, self.gid)
        if stat.S_IMODE(status.st_mode) != self.directory_mode:
            directory.chmod(self.directory_mode)


def permissions_for(directory: Path, group: str | None, queue: Path) -> Permissions:
    """The permissions in an existing directory that is shared with `group`.

    Without a group those that the queue has by now: who shares it may have said so in other settings.
    """
    status = directory.stat()
    uid = status.st_uid if os.geteuid() == 0 and status.st_uid != 0 else None
    gid = _gid_of(group) if group is not None else _shared_with(status, queue)
    return Permissions(gid=gid, uid=uid)


def _shared_with(directory: os.stat_result, queue: Path) -> int | None:
    """The group that the directory and the queue in it are shared with already."""
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
