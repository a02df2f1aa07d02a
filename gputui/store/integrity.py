"""Checks whether the files contain every acknowledged change, using the write record in the lock file.

The record is written after its journal line was synced, so it is never ahead of the journal: a snapshot or journal that
is behind the record has lost something. The record itself may be old, torn or missing; it then proves less, never more.
Damaged lines at the end, beyond the record, count as torn: written in part as the power failed, and never acknowledged.
For that the first record of each journal is synced before its first line.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from gputui.domain.errors import StoreDamagedError
from gputui.store.journal import JournalLine
from gputui.store.snapshot_file import Meta
from gputui.store.write_record import WriteRecord

REPAIR = "run `gputui state repair`: it lists the losses before it changes anything"


class Loss(Struct, frozen=True):
    """Loss of acknowledged changes in one file."""

    path: Path
    what: str

    @property
    def error(self) -> StoreDamagedError:
        """Error to raise on writes and checks."""
        return StoreDamagedError(
            f"{self.what}; nothing is stored until this is repaired", where=str(self.path), hint=REPAIR
        )


def loss_of_journal(
    path: Path, data: bytes | None, lines: Sequence[JournalLine], record: WriteRecord | None
) -> Loss | None:
    """Return the loss in the journal of the snapshot's generation, if any.

    `record` is None if there is none of this generation.
    """
    if data is None:
        told = f", and {record.length} bytes of acknowledged changes with it" if record and record.length else ""
        return Loss(path, f"the journal is missing{told}")
    if record is not None:
        if len(data) < record.length:
            return Loss(path, f"the journal has {len(data)} bytes, and {record.length} were acknowledged")
        if record.checksum is not None and zlib.crc32(memoryview(data)[: record.length]) != record.checksum:
            return Loss(path, f"the first {record.length} bytes of the journal are not those that were acknowledged")
    damaged = [line.start for line in lines if line.entry is None]
    if not damaged:
        return None
    some = "the line" if len(damaged) == 1 else f"{len(damaged)} lines, the first"
    return Loss(path, f"{some} at byte {damaged[0]} is damaged")


def acknowledged_end(lines: Sequence[JournalLine], length: int, record: WriteRecord | None) -> int:
    """Return the length of the journal without damaged lines at its end that a crash must have left.

    Without a record any line may have been acknowledged, so the whole length is returned.
    """
    end = length
    for line in reversed(lines):
        if line.entry is not None or record is None or line.start < record.length:
            break
        end = line.start
    return end


def loss_of_snapshot(path: Path, meta: Meta, record: WriteRecord | None) -> Loss | None:
    """Return the loss when the snapshot is older than the record, or belongs to another queue."""
    if record is None:
        return None
    if record.store_id is not None and record.store_id != meta.store_id:
        return Loss(path, f"it is queue {meta.store_id}, but its lock file belongs to queue {record.store_id}")
    if record.generation > meta.generation:
        return Loss(
            path,
            f"it is generation {meta.generation} of the queue, but generation {record.generation} was acknowledged",
        )
    return None
