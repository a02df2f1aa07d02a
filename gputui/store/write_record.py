"""Record of the last write, kept in the lock file.

With it the next writer can append without loading the queue, and readers notice that the journal has lost something.
"""

from __future__ import annotations

import os
import zlib
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.errors import StoreError
from gputui.store.files import FileStamp, open_file

_SIZE = 256
_NO_CHECKSUM = -1
_ID_LENGTH = 12
_ID_BASE = 36
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class WriteRecord(Struct, frozen=True):
    """End of the journal and next id as of the last acknowledged write."""

    schema: int
    generation: int
    length: int
    """Length of the journal in bytes."""
    next_id: int
    snapshot: FileStamp
    caps_waiting: bool
    """True if any tenant's submissions may have limits; assumed for records of older versions."""
    checksum: int | None = None
    """CRC-32 of the journal up to `length`; None in records of version 0.1."""
    store_id: str | None = None
    journal: FileStamp | None = None

    def write(self, fd: int, *, durably: bool = False) -> None:
        """Write the record to the lock file. Only the first one of a journal is synced, before its first line.

        It is written after its journal line was synced. So after a crash it may be old, but never ahead of the journal:
        a journal shorter than its record has lost acknowledged lines.
        """
        numbers = (self.schema, self.generation, self.length, self.next_id, *self.snapshot, int(self.caps_waiting))
        checksum = _NO_CHECKSUM if self.checksum is None else self.checksum
        # one of another length was written by hand, and would come back with zeros before it
        store = int(self.store_id, _ID_BASE) if self.store_id and len(self.store_id) == _ID_LENGTH else 0
        body = " ".join(map(str, (*numbers, checksum, store, *(self.journal or (0, 0, 0))))).encode()
        with suppress(OSError):  # the journal line is already safe
            os.pwrite(fd, b"%08x %s" % (zlib.crc32(body), body.ljust(_SIZE - 10)) + b"\n", 0)
            if durably:
                os.fdatasync(fd)


def read_record(fd: int) -> WriteRecord | None:
    """Return the record in an open lock file; None if it is missing or torn."""
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
    return _with_later(WriteRecord(schema, generation, length, next_id, snapshot, later[:1] != [0]), later[1:])


def _with_later(hint: WriteRecord, fields: list[int]) -> WriteRecord:
    """Return the record with the fields that versions after 0.1 add."""
    if len(fields) < 5:
        return hint
    checksum, store, inode, changed, size = fields[:5]
    return replace(
        hint,
        checksum=None if checksum == _NO_CHECKSUM else checksum,
        store_id=_store_id_of(store) if store else None,
        journal=(inode, changed, size),
    )


def _store_id_of(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, _ID_BASE)
        digits = _DIGITS[digit] + digits
    return digits.rjust(_ID_LENGTH, "0")


def read_record_at(path: Path) -> WriteRecord | None:
    """Return the record in the lock file at a path; None if it cannot be read."""
    try:
        fd = open_file(path, os.O_RDONLY)
    except (OSError, StoreError):
        return None
    try:
        return read_record(fd)
    finally:
        os.close(fd)
