"""The record in the lock file: where the last writer left off.

It lets the next writer append without loading the queue, and lets every reader see that the journal has lost something.
"""

from __future__ import annotations

import os
import zlib
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gputui.domain.errors import StoreError
from gputui.store.files import open_file

Identity = tuple[int, int, int]
"""Inode, time of change and size of a file: one that was replaced has another."""

_SIZE = 256
_NO_CHECKSUM = -1
_ID_LENGTH = 12
_ID_BASE = 36
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Hint:
    """Where the journal ended and which id comes next, as of the last acknowledged write."""

    schema: int
    generation: int
    length: int
    """Of the journal, in bytes."""
    next_id: int
    snapshot: Identity
    caps_waiting: bool
    """Whether the operator's wishes may cap the waiting jobs of any tenant; older versions do not say."""
    checksum: int | None = None
    """CRC-32 of the journal up to `length`; None where an older version wrote it."""
    store_id: str | None = None
    journal: Identity | None = None

    def write(self, fd: int) -> None:
        """Write it into the lock file, not synced.

        It follows the synced line that it tells of. So after a crash it may be old or torn, but never ahead of the
        journal: a journal that is shorter than its record has lost acknowledged lines.
        """
        numbers = (self.schema, self.generation, self.length, self.next_id, *self.snapshot, int(self.caps_waiting))
        checksum = _NO_CHECKSUM if self.checksum is None else self.checksum
        store = int(self.store_id or "0", _ID_BASE)
        body = " ".join(map(str, (*numbers, checksum, store, *(self.journal or (0, 0, 0))))).encode()
        with suppress(OSError):  # the line it tells of is safe
            os.pwrite(fd, b"%08x %s" % (zlib.crc32(body), body.ljust(_SIZE - 10)) + b"\n", 0)


def read_hint(fd: int) -> Hint | None:
    """The hint in the lock file; None when there is none, or it is torn."""
    crc, _, body = os.pread(fd, _SIZE, 0).partition(b" ")
    body = body.rstrip()
    try:
        if int(crc, 16) != zlib.crc32(body):
            return None
        schema, generation, length, next_id, *rest = map(int, body.split())
        inode, changed, size, *later = rest
    except ValueError:
        return None
    snapshot = (inode, changed, size)
    return _with_later(Hint(schema, generation, length, next_id, snapshot, later[:1] != [0]), later[1:])


def _with_later(hint: Hint, fields: list[int]) -> Hint:
    """The hint with what versions after 0.1 add."""
    if len(fields) < 5:
        return hint
    checksum, store, inode, changed, size = fields[:5]
    return replace(
        hint,
        checksum=None if checksum == _NO_CHECKSUM else checksum,
        store_id=_id_of(store) if store else None,
        journal=(inode, changed, size),
    )


def _id_of(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, _ID_BASE)
        digits = _DIGITS[digit] + digits
    return digits.rjust(_ID_LENGTH, "0")


def read_hint_at(path: Path) -> Hint | None:
    """The hint in a lock file that this process has not opened; None where it cannot be read."""
    try:
        fd = open_file(path, os.O_RDONLY)
    except (OSError, StoreError):
        return None
    try:
        return read_hint(fd)
    finally:
        os.close(fd)


def identity_of(status: os.stat_result) -> Identity:
    """The identity of the file so described."""
    return (status.st_ino, status.st_mtime_ns, status.st_size)
