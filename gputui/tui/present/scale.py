"""Time laid out in cells, and the times written above it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
STEPS = tuple(timedelta(seconds=seconds) for seconds in _SECONDS)
"""What a cell may stand for, finest first."""
_TICKS = (*STEPS, *(timedelta(days=days) for days in (2, 7, 14, 28)))
_APART = 9
"""Cells from one written time to the next, at least."""


@dataclass(frozen=True)
class Scale:
    """So many cells from `start` on, each `step` long."""

    start: datetime
    step: timedelta
    cells: int

    @property
    def end(self) -> datetime:
        """The end of the last cell."""
        return self.start + self.step * self.cells

    def cell(self, at: datetime) -> int:
        """The cell that holds this time: below 0 before the first, from `cells` on after the last."""
        return (at - self.start) // self.step

    def ticks(self) -> list[tuple[int, str]]:
        """Cells above which local times are written, and these."""
        apart = next((tick for tick in _TICKS if tick / self.step >= _APART), _TICKS[-1])
        midnight = self.start.astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
        at = midnight + apart * ((self.start - midnight) // apart)
        found = []
        while (cell := self.cell(at)) < self.cells:
            if cell >= 0:
                found.append((cell, _words(at.astimezone(), apart)))
            at += apart
        return found


def step_for(span: timedelta, cells: int) -> timedelta:
    """The finest step by which the span fits into so many cells."""
    return next((step for step in STEPS if step * cells >= span), STEPS[-1])


def zoomed(step: timedelta, finer: int) -> timedelta:
    """The step so many finer, or coarser where it is negative."""
    here = next((number for number, known in enumerate(STEPS) if known >= step), len(STEPS) - 1)
    return STEPS[max(0, min(len(STEPS) - 1, here - finer))]


def _words(at: datetime, apart: timedelta) -> str:
    if at.hour == at.minute == at.second == 0 and apart >= timedelta(minutes=1):
        return f"{at:%a} {at.day}"
    return f"{at:%H:%M}" if apart >= timedelta(minutes=1) else f"{at:%H:%M:%S}"
