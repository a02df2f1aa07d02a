"""What the scheduler shows other processes beyond the store: GPUs, runtimes, progress. One small file, replaced whole.

It is a convenience that may be lost at any moment, so it is never synced to disk; its age tells its worth.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import msgspec

from gputui.domain.job import JobId
from gputui.domain.snapshot import Leader, Node, Notice, Usage
from gputui.engine.sharing import new_file, read_file

LIVE_FILE = "live.json"


@dataclass(frozen=True)
class Published:
    """The scheduler's own view of the world at one moment."""

    taken_at: datetime
    leader: Leader
    nodes: tuple[Node, ...] = ()
    progress: Mapping[JobId, str] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()
    usage: Usage = Usage()


def write(directory: Path, published: Published, mode: int = 0o600) -> None:
    """Replace the file. A full disk is no reason to stop scheduling: then the old one just ages."""
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
    """The last one written; None when there is none, or a newer gputui wrote it."""
    try:
        return msgspec.json.decode(read_file(directory / LIVE_FILE), type=Published)
    except (OSError, msgspec.MsgspecError):
        return None
