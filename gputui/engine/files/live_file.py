"""Live view of the leader for other processes: GPUs, runtimes, progress. One small file, replaced as a whole.

It may be lost at any time, so it is never synced to disk; readers judge it by its age.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct, field

from gputui.domain.decoding import decode_json
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import Leader, Node, Notice, Snapshot, Usage
from gputui.engine.files.file_modes import read_file, replace_file

LIVE_FILE = "live.json"


class Published(Struct, frozen=True):
    """View of the leader at one moment."""

    taken_at: datetime
    leader: Leader
    nodes: tuple[Node, ...] = ()
    progress: Mapping[JobId, str] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()
    usage: Usage = Usage()


class LiveFile:
    """Writer of the leader's view: at once when it has news, else after `interval` seconds."""

    def __init__(self, directory: Path, leader: Leader, mode: int, interval: float) -> None:
        self._directory = directory
        self._leader = leader
        self._mode = mode
        self._interval = interval
        self._written: object = None
        self._written_at = 0.0

    def update(self, snapshot: Snapshot) -> None:
        """Write the view of this snapshot where it is due."""
        news = (
            tuple((view.gpu.uuid, view.state, view.job_ids) for view in snapshot.gpus),
            snapshot.progress,
            snapshot.notices,
        )
        if news == self._written and time.monotonic() - self._written_at < self._interval:
            return
        self._written, self._written_at = news, time.monotonic()
        view = Published(
            snapshot.taken_at, self._leader, snapshot.nodes, snapshot.progress, snapshot.notices, snapshot.usage
        )
        write(self._directory, view, self._mode)


def write(directory: Path, published: Published, mode: int = 0o600) -> None:
    """Replace the file. On errors, such as a full disk, the old one stays and ages."""
    with contextlib.suppress(OSError):
        replace_file(directory / LIVE_FILE, msgspec.json.encode(published), mode)


def read(directory: Path) -> Published | None:
    """Return the last view; None if there is none, or a newer gputui wrote it."""
    try:
        return decode_json(read_file(directory / LIVE_FILE), Published)
    except (OSError, msgspec.MsgspecError):
        return None
