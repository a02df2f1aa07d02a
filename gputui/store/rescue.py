"""Queues written down from memory by processes whose files have lost something, for `gputui state repair`."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from gputui.store.journal import Document
from gputui.store.permissions import Permissions
from gputui.store.replica import AuditKey, Loaded
from gputui.store.snapshot_file import Meta, Tables, write_whole


class Rescue(msgspec.Struct):
    """A whole queue, as of `offset` in the journal of its generation."""

    meta: Meta
    next_id: int
    offset: int
    checksum: int
    tables: Tables
    audit: list[tuple[AuditKey, Document]]


def rescue_path(snapshot: Path) -> Path:
    """Return the path of this process's rescue."""
    return snapshot.with_name(f"{snapshot.name}.rescue.{os.getpid()}")


def rescue_paths(snapshot: Path) -> list[Path]:
    """Return the paths of all rescues."""
    return sorted(path for path in snapshot.parent.glob(f"{snapshot.name}.rescue.*") if path.suffix[1:].isdigit())


def write_rescue(path: Path, state: Loaded, permissions: Permissions) -> None:
    """Write the queue down, durably."""
    rescue = Rescue(state.meta, state.next_id, state.offset, state.checksum, state.tables, state.audit)
    write_whole(path, msgspec.json.encode(rescue), permissions)


def read_rescue(path: Path) -> Rescue | None:
    """Return a rescue; None where the file is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Rescue)
    except (OSError, msgspec.MsgspecError):
        return None
