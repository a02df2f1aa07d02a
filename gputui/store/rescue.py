"""Rescue files: the queue written from memory by a process whose files were damaged, for `gputui state repair`."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from gputui.domain.decoding import decode_json
from gputui.store.documents import Document
from gputui.store.file_access import FileAccess
from gputui.store.files import write_whole
from gputui.store.migrations import Tables
from gputui.store.replica import AuditKey, LoadedQueue
from gputui.store.snapshot_file import Meta


class Rescue(msgspec.Struct):
    """Complete queue as of `offset` in the journal of its generation."""

    meta: Meta
    next_id: int
    offset: int
    checksum: int
    tables: Tables
    audit: list[tuple[AuditKey, Document]]


def rescue_path(snapshot: Path) -> Path:
    """Return the path of this process's rescue file."""
    return snapshot.with_name(f"{snapshot.name}.rescue.{os.getpid()}")


def rescue_paths(snapshot: Path) -> list[Path]:
    """Return the paths of all rescue files."""
    return sorted(path for path in snapshot.parent.glob(f"{snapshot.name}.rescue.*") if path.suffix[1:].isdigit())


def write_rescue(path: Path, state: LoadedQueue, access: FileAccess) -> None:
    """Write the queue to a rescue file, durably."""
    rescue = Rescue(state.meta, state.next_id, state.offset, state.checksum, state.tables, state.audit)
    write_whole(path, msgspec.json.encode(rescue), access)


def read_rescue(path: Path) -> Rescue | None:
    """Return the content of a rescue file; None if it is unreadable."""
    try:
        return decode_json(path.read_bytes(), Rescue)
    except (OSError, msgspec.MsgspecError):
        return None
