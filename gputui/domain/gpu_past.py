"""What a GPU's readings were, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from gputui.domain.gpu import GpuSample

STEP = timedelta(seconds=10)
"""Time of a step: a graph of 40 cells shows nearly seven minutes, and costs the terminal little."""
KEPT = 360
"""Steps: an hour."""


class Step(NamedTuple):
    """The means of a step; None where nothing was read in it."""

    utilization: float | None = None
    memory_used: float | None = None
    power: float | None = None
    temperature: float | None = None
    sm_clock: float | None = None
    memory_utilization: float | None = None
    pcie_tx: float | None = None
    pcie_rx: float | None = None
    nvlink_tx: float | None = None
    nvlink_rx: float | None = None


@dataclass(frozen=True, eq=False)
class Past:
    """The steps that are over, newest last. There is a new one at each step, so it is as good as a key of a cache."""

    steps: tuple[Step, ...] = ()
    number: int = 0
    """How many steps there were in all."""

    def values(self, name: str, most: float | None = None) -> list[float | None]:
        """One reading over time, as shares of `most`."""
        readings = [getattr(step, name) for step in self.steps]
        if most is None:
            return readings
        return [None if value is None or not most else value / most for value in readings]


NO_PAST = Past()


def mean(samples: list[GpuSample]) -> Step:
    """The means of what was read in a step."""
    return Step(*(_mean([getattr(sample, name) for sample in samples]) for name in Step._fields))


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
