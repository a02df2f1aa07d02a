"""Atomic writing of an attempt's kept log: complete under its name, or not at all."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_ABANDONED = 24 * 3600
"""Seconds without a write after which a partial file counts as abandoned and is removed."""


@contextmanager
def kept_log(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that is renamed to `path` when the block ends without an exception. Raises OSError.

    Each caller writes its own partial file, so concurrent writers of one log cannot mix their output.
    """
    _remove_stale(path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(part, flags, 0o600), "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _remove_stale(path: Path) -> None:
    """Remove partial files of this log that killed processes left behind."""
    for part in path.parent.glob(f".{path.name}.*.part"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime > _ABANDONED:
                part.unlink()
