"""Files the engine keeps in the state directory: for its owner alone, or for the group that shares the directory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_SHARED = stat.S_ISGID | stat.S_IRWXG


def is_shared(state: Path) -> bool:
    """Whether the store has given the state directory to a group."""
    return state.stat().st_mode & _SHARED == _SHARED


def settle_file(fd: int, mode: int) -> None:
    """Give an open file its mode whatever the umask, if it is ours."""
    status = os.fstat(fd)
    if stat.S_IMODE(status.st_mode) != mode and os.geteuid() in {0, status.st_uid}:
        os.fchmod(fd, mode)


def settle_path(path: Path, state: Path) -> None:
    """Give a file its mode; one that another user of the group made and closed to us stays as it is."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        settle_file(fd, 0o660 if is_shared(state) else 0o600)
    finally:
        os.close(fd)


def make_directories(path: Path, state: Path) -> None:
    """Make a directory below the state directory, and those above it, each with its mode."""
    mode = 0o2770 if is_shared(state) else 0o700
    for place in (*reversed(path.relative_to(state).parents[:-1]), path.relative_to(state)):
        directory = state / place
        if not directory.exists():
            directory.mkdir(exist_ok=True)
            directory.chmod(mode)
