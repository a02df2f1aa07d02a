"""Errors of the operating system as errors of the store."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gputui.domain.errors import StoreAccessError, StoreError, StoreFullError
from gputui.store.journal import UndoError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


@contextmanager
def os_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into the StoreError that says what to do."""
    try:
        yield
    except OSError as error:
        raise of_os_error(error, path) from error


def of_os_error(error: OSError, path: Path) -> StoreError:
    """Return the StoreError for an OSError."""
    what = (error.strerror or str(error)).lower()
    if isinstance(error, UndoError):
        return _not_taken_back(what, error, path)
    if error.errno in _FULL:
        return StoreFullError(
            f"{what}; nothing of this was stored, what was stored before is kept",
            where=str(path),
            hint="make room, then try again",
        )
    if error.errno in _REFUSED:
        return StoreAccessError(what, where=str(path), hint="see who owns it and whether you may write there")
    return StoreError(what, where=str(path))


def _not_taken_back(what: str, error: UndoError, path: Path) -> StoreError:
    """The StoreError for a write that failed and may count all the same."""
    kind = StoreFullError if error.errno in _FULL else StoreError
    return kind(
        f"{what}, and it could not be undone: whether this was stored is not known; what was stored before is kept",
        where=str(path),
        hint="see `gputui queue` before you try again",
    )
