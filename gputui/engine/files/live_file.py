"""Live view of the leader for other processes: GPUs, runtimes, progress. One small file, replaced as a whole.

It may be lost at any time, so it is never synced to disk; readers judge it by its age.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct, field

from gputui.domain.job import JobId
from gputui.domain.snapshot import Leader, Node, Notice, Usage
from gputui.engine.files.file_modes import new_file, read_file

LIVE_FILE = "live.json"


class Published(Struct, frozen=True):
    """View of the leader at one moment."""

    taken_at: datetime
    leader: Leader
    nodes: tuple[Node, ...] = ()
    progress: Mapping[JobId, str] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()
    usage: Usage = Usage()


def write(directory: Path, published: Published, mode: int = 0o600) -> None:
    """Replace the file. On errors, such as a full disk, the old one stays and ages."""
    path = directory / LIVE_FILE
    partial = directory / f".{LIVE_FILE}.{os.getpid()}"
    try:
        with os.fdopen(new_file(partial, mode), "wb") as file:
            file.write(msgspec.json.encode(published))
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()


def read(directory: Path) -> Published | None:
    """Return the last view written; None where there is none, or a newer gputui wrote it."""
    try:
        return msgspec.json.decode(read_file(directory / LIVE_FILE), type=Published)
    except (OSError, msgspec.MsgspecError):
        return None
