"""A console's connections to several servers, and the last snapshot of them all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gputui.bootstrap.servers import open_servers
from gputui.domain.settings import ServerSettings
from gputui.domain.snapshot import EMPTY, Snapshot

_SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
shift 2
exec sh -c "$*"
"""


def local_ssh(directory: Path) -> Path:
    """Make a program in place of ssh that runs each command here; return its directory, to be put first in PATH."""
    program = directory / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(_SSH)
    program.chmod(0o755)
    return program.parent


class Connections:
    """Connections, opened and not started."""

    def __init__(self, settings: Sequence[ServerSettings], patience: float) -> None:
        """`patience` is how many seconds a wait lasts at most."""
        self._patience = patience
        self.snapshot: Snapshot = EMPTY
        self.there = open_servers(settings)
        self._publishing = threading.Thread(target=self.there.publish, args=(self._take,), daemon=True)

    def start(self) -> None:
        self._publishing.start()

    def _take(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def until(self, true: Callable[[Snapshot], object], what: str = "the snapshot is so") -> Snapshot:
        """Wait until the snapshot is so; return it."""
        deadline = time.monotonic() + self._patience
        while not true(snapshot := self.snapshot):
            problems = [server.problem for server in snapshot.servers]
            assert time.monotonic() < deadline, f"{what}: {problems}, {[job.shown_id for job in snapshot.jobs]}"
            time.sleep(0.02)
        return snapshot
