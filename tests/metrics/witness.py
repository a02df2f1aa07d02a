"""A second reader of the machine, beside the probe: processors, memory, network, disks and files of the queue.

It reads four times a second. What the probe shows at a moment is a rate or a value of the last seconds, so it must lie
between the least and the largest of what was read here around that time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

EVERY = 0.25
"""Seconds between two readings."""
SPAN = 30.0
"""Seconds before a moment whose readings count: files are measured every 15 s, disks every few seconds."""
RATE = (0.5, 2.5)
"""Seconds that a rate of the probe may be taken over: one sweep, or two when one is late."""


FILES = {
    "queue": "queue.json",
    "journal": "queue.json.wal.*",
    "history": "history-*",
    "audit": "audit-*",
    "log": "gputui.log*",
}
"""Names of the queue's files by kind."""


class Seen(NamedTuple):
    """Values of one reading."""

    at: float
    busy: int
    """Busy ticks of all processors since the start of the machine."""
    ticks: int
    memory: int
    """Bytes in use."""
    received: int
    sent: int
    disks: Mapping[str, float]
    """Free share by role."""
    files: Mapping[str, int]
    """Bytes of the queue's files by kind."""


class Bounds(NamedTuple):
    """Least and largest value."""

    least: float
    most: float


class Witness:
    """Reads until it is closed."""

    def __init__(self, state: Path, docker: Path) -> None:
        """`state` is the state directory, `docker` that of the engine's data."""
        self._state = state
        self._disks = {"state": state, "docker": docker}
        self._seen: list[Seen] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of the disks."""
        return tuple(self._disks)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(EVERY):
            self._seen.append(self._read())

    def _read(self) -> Seen:
        words = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        lines = Path("/proc/meminfo").read_text().splitlines()
        memory = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
        received, sent = _network()
        return Seen(
            time.time(),
            sum(words) - words[3] - words[4],
            sum(words),
            memory["MemTotal"] - memory["MemAvailable"],
            received,
            sent,
            {role: _free(path) for role, path in self._disks.items()},
            {kind: sum(map(_size, self._state.glob(pattern))) for kind, pattern in FILES.items()},
        )

    def _around(self, moment: float) -> list[Seen]:
        return [each for each in self._seen if moment - SPAN <= each.at <= moment + EVERY]

    def values(self, moment: float, of: Callable[[Seen], float]) -> Bounds:
        """Return the bounds of a value before the moment."""
        return _bounds(of(each) for each in self._around(moment))

    def processors(self, moment: float) -> Bounds:
        """Return the bounds of the busy share."""
        return _bounds((later.busy - first.busy) / (later.ticks - first.ticks) for first, later in self._pairs(moment))

    def rate(self, moment: float, of: Callable[[Seen], int]) -> Bounds:
        """Return the bounds of bytes per second."""
        return _bounds((of(later) - of(first)) / (later.at - first.at) for first, later in self._pairs(moment))

    def _pairs(self, moment: float) -> Iterable[tuple[Seen, Seen]]:
        seen = self._around(moment)
        for number, first in enumerate(seen):
            for later in seen[number + 1 :]:
                if RATE[0] <= later.at - first.at <= RATE[1] and later.ticks > first.ticks:
                    yield first, later


def _bounds(values: Iterable[float]) -> Bounds:
    found = list(values)
    assert found, "nothing was read around that moment"
    return Bounds(min(found), max(found))


def _network() -> tuple[int, int]:
    """Return the bytes received and sent over interfaces that have a device."""
    devices = [path for path in Path("/sys/class/net").iterdir() if (path / "device").exists()]
    counted = [[int((path / "statistics" / name).read_text()) for name in ("rx_bytes", "tx_bytes")] for path in devices]
    return sum(each[0] for each in counted), sum(each[1] for each in counted)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # removed since it was listed
        return 0


def _free(path: Path) -> float:
    """Return the share of a disk that ordinary users can still write to."""
    found = os.statvfs(path)
    return found.f_bavail / (found.f_blocks - found.f_bfree + found.f_bavail)
