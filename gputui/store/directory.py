"""The state directory: created on first use, refused on network file systems, closed to other users."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from gputui.domain.errors import StoreAccessError
from gputui.store.files import SHARED, FileAccess, access_for, open_file, os_errors, read_file, sync_directory

MOUNTINFO = Path("/proc/self/mountinfo")
_SHARED = frozenset(
    {"nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "coda"}
    | {"ceph", "lustre", "beegfs", "gpfs", "glusterfs", "ocfs2", "gfs2", "pvfs2", "orangefs"}
    | {"9p", "virtiofs", "vboxsf", "vmhgfs", "prl_fs", "fuse"}
    | {"overlay", "overlayfs", "aufs"}
)
"""File systems on which flock, rename or inotify behave differently from a local disk."""
QUEUE = "queue.json"
MARKER = ".gputui"
"""File that records whether gputui created the directory and may therefore change its mode."""
_MADE = b"gputui made this directory, and sets its mode as store.group says.\n"
_FOUND = b"gputui found this directory, and leaves its mode alone.\n"
_OWN = ("queue.json", "history-", "audit-", "scheduler.lock", "live.json", "gpus.jsonl", "gputui.log", "serve.err")
_OWN_DIRECTORIES = {"logs", "attempts"}


def check_file_system(directory: Path, *, mountinfo: Path = MOUNTINFO) -> None:
    """Raise StoreAccessError when the directory is on a network, FUSE or overlay file system."""
    kind = file_system_of(directory, mountinfo=mountinfo)
    if kind is not None and (kind in _SHARED or kind.startswith("fuse.")):
        raise StoreAccessError(
            f"it is on {kind}, where locks and renames are not reliable enough for a queue",
            where=str(directory),
            hint="set --state or GPUTUI_STATE to a directory on a local disk (ext4, xfs, btrfs, zfs) or tmpfs",
        )


def file_system_of(directory: Path, *, mountinfo: Path = MOUNTINFO) -> str | None:
    """Return the kernel's name of the file system of the directory; None if /proc does not show it."""
    try:
        lines = mountinfo.read_bytes().decode(errors="surrogateescape").split("\n")
    except OSError:
        return None
    place = directory.resolve()
    best: tuple[int, str] | None = None
    for line in filter(None, lines):
        before, _, after = line.partition(" - ")  # see proc(5)
        point = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), before.split(" ")[4]))
        # of two mounts on one point the later hides the earlier
        if place.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), after.split(" ")[0])
    return best[1] if best else None


def open_directory(directory: Path, group: str | None) -> FileAccess:
    """Create the directory if it is missing, and return the access rights of its files.

    The mode is set only on a directory that gputui creates now, or created earlier and now shares with a group. Any
    other directory keeps its mode: it may be a home directory or /tmp.
    """
    check_file_system(directory)
    with os_errors(directory):
        if not directory.exists() and directory.is_symlink():
            raise StoreAccessError("it is a dangling symbolic link", where=str(directory))
        is_new = not directory.is_dir() and _make(directory)
        access = access_for(directory, group, directory / QUEUE)
        if is_new:
            access.apply_to_directory(directory)
            _mark(directory, access, _MADE)
        elif not (directory / QUEUE).exists():
            _mark(directory, access, _FOUND)
        elif group is not None and _is_own(directory, access):
            access.apply_to_directory(directory)
    return access


def _make(directory: Path) -> bool:
    """Create the directory and its parents, durably; return whether it is new."""
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        if not directory.is_dir():
            raise StoreAccessError("it is not a directory", where=str(directory)) from None
        return False
    except FileNotFoundError:
        if directory.parent.exists():
            raise
        _make(directory.parent)
        return _make(directory)
    sync_directory(directory.parent)
    return True


def _is_own(directory: Path, access: FileAccess) -> bool:
    """Return whether gputui made the directory; version 0.1 left no mark, but its own mode and only its own files."""
    try:
        return read_file(directory / MARKER)[0] == _MADE
    except FileNotFoundError:
        pass
    mode = stat.S_IMODE(directory.stat().st_mode)
    names = {path.name for path in directory.iterdir()}
    if mode not in {0o700, SHARED} or any(not name.startswith(_OWN) for name in names - _OWN_DIRECTORIES):
        return False
    _mark(directory, access, _MADE)
    return True


def _mark(directory: Path, access: FileAccess, note: bytes) -> None:
    """Record in the directory, once, whether gputui created it."""
    try:
        fd = open_file(directory / MARKER, os.O_WRONLY | os.O_CREAT | os.O_EXCL, access.file_mode)
    except FileExistsError:
        return
    try:
        access.apply_to_file(fd)
        os.write(fd, note)
    finally:
        os.close(fd)
