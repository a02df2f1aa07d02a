"""The state directory: made if need be, on a file system that can be trusted, and closed to others."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gputui.domain.errors import StoreAccessError
from gputui.store.faults import os_errors
from gputui.store.files import open_file, read_file
from gputui.store.filesystem import check_file_system
from gputui.store.permissions import SHARED, Permissions, permissions_for
from gputui.store.snapshot_file import sync_directory

QUEUE = "queue.json"
MARKER = ".gputui"
"""A file that says whether gputui made the directory, and may change its mode."""
_MADE = b"gputui made this directory, and sets its mode as store.group says.\n"
_FOUND = b"gputui found this directory, and leaves its mode alone.\n"
_OWN = ("queue.json", "history-", "audit-", "scheduler.lock", "live.json", "gpus.jsonl", "gputui.log", "serve.err")
_OWN_DIRECTORIES = {"logs", "attempts"}


def open_directory(directory: Path, group: str | None) -> Permissions:
    """Make the directory if it is not there; the permissions of its files.

    The mode is set of a directory that gputui makes here, or made before and is to share with a group. Any other keeps
    its mode, whatever is in it: it may be somebody's home, or /tmp.
    """
    check_file_system(directory)
    with os_errors(directory):
        if not directory.exists() and directory.is_symlink():
            raise StoreAccessError("it is a link to nothing", where=str(directory))
        is_new = _make(directory)
        permissions = permissions_for(directory, group, directory / QUEUE)
        if is_new:
            permissions.settle_directory(directory)
            _mark(directory, permissions, _MADE)
        elif not (directory / QUEUE).exists():
            _mark(directory, permissions, _FOUND)
        elif group is not None and _is_own(directory, permissions):
            permissions.settle_directory(directory)
    return permissions


def _make(directory: Path) -> bool:
    """Make the directory and those above it, durably; whether it was not there."""
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


def _is_own(directory: Path, permissions: Permissions) -> bool:
    """Whether gputui made it; version 0.1 left no mark, but a mode of its own and nothing of others."""
    try:
        return read_file(directory / MARKER)[0] == _MADE
    except FileNotFoundError:
        pass
    mode = stat.S_IMODE(directory.stat().st_mode)
    names = {path.name for path in directory.iterdir()}
    if mode not in {0o700, SHARED} or any(not name.startswith(_OWN) for name in names - _OWN_DIRECTORIES):
        return False
    _mark(directory, permissions, _MADE)
    return True


def _mark(directory: Path, permissions: Permissions, note: bytes) -> None:
    """Say in the directory, once, whether gputui made it."""
    try:
        fd = open_file(directory / MARKER, os.O_WRONLY | os.O_CREAT | os.O_EXCL, permissions.file_mode)
    except FileExistsError:
        return
    try:
        permissions.settle_file(fd)
        os.write(fd, note)
    finally:
        os.close(fd)
