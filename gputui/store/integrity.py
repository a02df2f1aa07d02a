"""Whether the files hold all that was acknowledged, judged by the record in the lock file.

The record is written after its line was synced, so it is never ahead of the journal, whatever crashes: a snapshot or a
journal that is behind it has lost something. It may itself be old, torn or lost, and then proves less, never more.
A torn tail beyond the record was not acknowledged and is no loss.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gputui.domain.errors import StoreDamagedError
from gputui.store.hint import Hint
from gputui.store.journal import Line
from gputui.store.snapshot_file import Meta

REPAIR = "run `gputui state repair`: it says what is lost before it does anything"


@dataclass(frozen=True)
class Loss:
    """Acknowledged changes that cannot be read."""

    path: Path
    what: str

    @property
    def error(self) -> StoreDamagedError:
        """The error for whoever wants to write, or to be told."""
        return StoreDamagedError(
            f"{self.what}; nothing is stored until this is repaired", where=str(self.path), hint=REPAIR
        )


def loss_of_journal(path: Path, data: bytes | None, lines: Sequence[Line], record: Hint | None) -> Loss | None:
    """The loss in the journal of the snapshot's generation; `record` is None where it tells of another, or nothing."""
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


def acknowledged_end(lines: Sequence[Line], length: int, record: Hint | None) -> int:
    """Where the journal ends without damaged lines that only a crash can have left behind its last good one.

    Without a record any of them may have been acknowledged.
    """
    end = length
    for line in reversed(lines):
        if line.entry is not None or record is None or line.start < record.length:
            break
        end = line.start
    return end


def loss_of_snapshot(path: Path, meta: Meta, record: Hint | None) -> Loss | None:
    """The loss where the snapshot is older than what was acknowledged, or that of another queue."""
    if record is None:
        return None
    if record.store_id is not None and record.store_id != meta.store_id:
        return Loss(path, f"it is queue {meta.store_id}, and its lock file tells of queue {record.store_id}")
    if record.generation > meta.generation:
        return Loss(path, f"it is generation {meta.generation} of the queue, and {record.generation} was acknowledged")
    return None
