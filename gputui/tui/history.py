"""What each GPU's readings were, for the graphs."""

from __future__ import annotations

from datetime import datetime

from gputui.domain.gpu import GpuSample
from gputui.domain.snapshot import Snapshot
from gputui.tui.present.past import KEPT, NO_PAST, STEP, Past, mean


class History:
    """The mean readings of each GPU in each step of time."""

    def __init__(self) -> None:
        self._pasts: dict[str, Past] = {}
        self._now: dict[str, list[GpuSample]] = {}
        self._since: datetime | None = None

    def of(self, uuid: str) -> Past:
        """The steps that are over."""
        return self._pasts.get(uuid, NO_PAST)

    def add(self, snapshot: Snapshot) -> None:
        """Take in the readings of a picture; stale ones count as not read."""
        if self._since is None:
            self._since = snapshot.taken_at
        if abs(snapshot.taken_at - self._since) >= STEP:  # a clock may be set back: readings would pile up
            self._close_step()
            self._since = snapshot.taken_at
        for view in snapshot.gpus:
            readings = self._now.setdefault(view.gpu.uuid, [])
            if view.sample is not None and not view.stale:
                readings.append(view.sample)

    def _close_step(self) -> None:
        for uuid, readings in self._now.items():
            past = self._pasts.get(uuid, NO_PAST)
            self._pasts[uuid] = Past((*past.steps, mean(readings))[-KEPT:], past.number + 1)
        self._now = {}
