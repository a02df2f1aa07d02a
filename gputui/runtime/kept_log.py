"""Writes the kept log of an attempt: whole under its name, or not at all."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_ABANDONED = 24 * 3600
"""Seconds without a write after which a part belongs to a process that died."""


@contextmanager
def kept(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that becomes `path` when the block is left without an exception. Raises OSError.

    Each caller writes a part of its own, so two that save the same log at once cannot mix their output.
    """
    _sweep(path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(part, flags, 0o600), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _sweep(path: Path) -> None:
    """Remove parts of this log that killed processes left behind."""
    for part in path.parent.glob(f".{path.name}.*.part"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime > _ABANDONED:
                part.unlink()
