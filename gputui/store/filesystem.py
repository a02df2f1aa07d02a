"""Which file system a directory is on, and whether it can keep the store's promises."""

from __future__ import annotations

import re
from pathlib import Path

from gputui.domain.errors import StoreAccessError

MOUNTINFO = Path("/proc/self/mountinfo")

_SHARED = frozenset(
    {"nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "coda"}
    | {"ceph", "lustre", "beegfs", "gpfs", "glusterfs", "ocfs2", "gfs2", "pvfs2", "orangefs"}
    | {"9p", "virtiofs", "vboxsf", "vmhgfs", "prl_fs", "fuse"}
    | {"overlay", "overlayfs", "aufs"}
)
"""Where flock, rename or inotify differ from what a local disk does."""


def check_file_system(directory: Path, *, mountinfo: Path = MOUNTINFO) -> None:
    """Raise StoreAccessError when the directory is on a network, FUSE or overlay file system."""
    kind = file_system_of(directory, mountinfo=mountinfo)
    if kind is not None and (kind in _SHARED or kind.startswith("fuse.")):
        raise StoreAccessError(
            f"it is on {kind}, where locks and renames are not dependable enough for a queue",
            where=str(directory),
            hint="give --state or GPUTUI_STATE a directory on a local disk (ext4, xfs, btrfs, zfs) or tmpfs",
        )


def file_system_of(directory: Path, *, mountinfo: Path = MOUNTINFO) -> str | None:
    """The kernel's name of the file system that holds the directory; None when /proc does not tell."""
    try:
        lines = mountinfo.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    place = directory.resolve()
    best: tuple[int, str] | None = None
    for line in lines:
        point, kind = _parsed(line)
        # of two mounts on one point the later hides the earlier
        if place.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), kind)
    return best[1] if best else None


def _parsed(line: str) -> tuple[Path, str]:
    """Mount point and type of a line of mountinfo; see proc(5)."""
    before, _, after = line.partition(" - ")
    point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), before.split(" ")[4])
    return Path(point), after.split(" ")[0]
