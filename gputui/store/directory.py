"""The state directory: made if need be, on a file system that can be trusted, and closed to others."""

from __future__ import annotations

from pathlib import Path

from gputui.domain.errors import StoreAccessError
from gputui.store.faults import os_errors
from gputui.store.filesystem import check_file_system
from gputui.store.permissions import Permissions, permissions_for

QUEUE = "queue.json"


def open_directory(directory: Path, group: str | None, *, marker: str) -> Permissions:
    """The permissions its files are to have; `marker` is a file that shows it to be a state directory."""
    check_file_system(directory)
    with os_errors(directory):
        is_new = not directory.exists()
        if not is_new and not directory.is_dir():
            raise StoreAccessError("it is not a directory", where=str(directory))
        if is_new and directory.is_symlink():
            raise StoreAccessError("it is a link to nothing", where=str(directory))
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        permissions = permissions_for(directory, group)
        # a directory that was there before and holds other things keeps its mode: it may be somebody's home
        if is_new or (directory / marker).exists() or not any(directory.iterdir()):
            permissions.settle_directory(directory)
    return permissions
