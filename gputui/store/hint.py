"""What the last writer left in the lock file, so that the next one need not load the queue."""

from __future__ import annotations

import os
import zlib
from contextlib import suppress
from dataclasses import dataclass

Identity = tuple[int, int, int]
"""Inode, time of change and size of a file: one that was replaced has another."""

_SIZE = 256


@dataclass(frozen=True)
class Hint:
    """Where the journal ended and which id comes next. True only as long as the files agree with it."""

    schema: int
    generation: int
    length: int
    """Of the journal, in bytes."""
    next_id: int
    snapshot: Identity
    caps_waiting: bool
    """Whether the operator's wishes may cap the waiting jobs of any tenant; older versions do not say."""

    def write(self, fd: int) -> None:
        """Leave it in the lock file, not synced: a lost or torn one, or an older one, is merely not believed."""
        numbers = (self.schema, self.generation, self.length, self.next_id, *self.snapshot)
        fields = (*numbers, int(self.caps_waiting))
        body = " ".join(map(str, fields)).encode()
        with suppress(OSError):  # the line it tells of is safe
            os.pwrite(fd, b"%08x %s" % (zlib.crc32(body), body.ljust(_SIZE - 10)) + b"\n", 0)


def read_hint(fd: int) -> Hint | None:
    """The hint in the lock file; None when there is none, or it is torn."""
    crc, _, body = os.pread(fd, _SIZE, 0).partition(b" ")
    body = body.rstrip()
    try:
        if int(crc, 16) != zlib.crc32(body):
            return None
        schema, generation, length, next_id, *identity = map(int, body.split())
        inode, changed, size, *capped = identity
    except ValueError:
        return None
    return Hint(schema, generation, length, next_id, (inode, changed, size), capped != [0])


def identity_of(status: os.stat_result) -> Identity:
    """The identity of the file so described."""
    return (status.st_ino, status.st_mtime_ns, status.st_size)
