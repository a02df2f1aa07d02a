"""What each GPU's load was, for the graphs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import datetime, timedelta

from gputui.domain.snapshot import Snapshot

STEP = timedelta(seconds=10)
"""Time of a cell: a graph of 40 cells shows nearly seven minutes, and costs the terminal little."""
KEPT = 160


class History:
    """The mean load of each GPU in each step of time, newest last."""

    def __init__(self) -> None:
        self._steps: dict[str, deque[float | None]] = {}
        self._now: dict[str, list[float]] = {}
        self._since: datetime | None = None

    def of(self, uuid: str) -> Sequence[float | None]:
        """The steps that are over."""
        return tuple(self._steps.get(uuid, ()))

    def add(self, snapshot: Snapshot) -> None:
        """Take in the readings of a picture; stale ones count as not read."""
        if self._since is None:
            self._since = snapshot.taken_at
        if snapshot.taken_at - self._since >= STEP:
            self._close_step()
            self._since = snapshot.taken_at
        for view in snapshot.gpus:
            readings = self._now.setdefault(view.gpu.uuid, [])
            if view.sample is not None and view.sample.utilization is not None and not view.stale:
                readings.append(view.sample.utilization)

    def _close_step(self) -> None:
        for uuid, readings in self._now.items():
            steps = self._steps.setdefault(uuid, deque(maxlen=KEPT))
            steps.append(sum(readings) / len(readings) if readings else None)
        self._now = {}
