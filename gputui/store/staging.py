"""A state directory that is filled as a whole or not at all."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gputui.domain.errors import StoreAccessError
from gputui.store.directory import QUEUE, check_file_system
from gputui.store.files import os_errors, sync_directory

_OF_THE_SYSTEM = {"lost+found"}


@contextmanager
def staged(directory: Path) -> Iterator[Path]:
    """Yield a new directory, whose content is moved into the empty or missing `directory` at the end of the block.

    The journal and its record go first and `queue.json` last: gputui refuses to begin a new queue in a directory where
    that was interrupted. Raises StoreAccessError for a directory that has something in it.
    """
    is_new = not directory.exists()
    with os_errors(directory):
        if not is_new and (found := sorted({path.name for path in directory.iterdir()} - _OF_THE_SYSTEM)):
            hint = "name an empty or a new directory by --state; nothing is overwritten"
            raise StoreAccessError(f"it is not empty: {found[0]} is there", where=str(directory), hint=hint)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_file_system(directory)
    staging = directory / f".filling.{os.getpid()}"
    try:
        with os_errors(staging):
            staging.mkdir(mode=0o700)
            yield staging
            os.sync()
            if is_new:
                _take_over(staging, directory)
            _move(staging, directory)
            staging.rmdir()
            sync_directory(directory)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        if is_new:
            with suppress(OSError):
                directory.rmdir()
        raise


def _move(staging: Path, directory: Path) -> None:
    for path in sorted(staging.iterdir(), key=_place):
        _move_new(path, directory / path.name)
        if path.name.startswith(QUEUE):
            sync_directory(directory)


def _move_new(path: Path, target: Path) -> None:
    """Move a file or directory; raises StoreAccessError where another process has put one of that name meanwhile."""
    if target.exists() or target.is_symlink():
        hint = "another gputui began a queue there: stop it, and name an empty or a new directory"
        raise StoreAccessError(f"{target.name} appeared meanwhile", where=str(target.parent), hint=hint)
    path.rename(target)


def _take_over(staging: Path, directory: Path) -> None:
    """Give the directory the owner and mode of the one that was filled."""
    status = staging.stat()
    if os.geteuid() == 0:
        os.chown(directory, status.st_uid, status.st_gid)
    else:
        with suppress(PermissionError):
            os.chown(directory, -1, status.st_gid)
    directory.chmod(stat.S_IMODE(status.st_mode))


def _place(path: Path) -> tuple[int, str]:
    """Return the place of a file in the order of moves."""
    if path.name == QUEUE:
        return 2, path.name
    return (0 if path.name.startswith(QUEUE) else 1), path.name
